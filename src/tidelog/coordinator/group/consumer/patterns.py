"""Topics by regular expression: what a pattern may be, and which topics it matches (google-re2, as Kafka uses RE2/J).

Owns the limits that keep a hostile pattern from stalling everybody else: RE2 takes linear time whatever the pattern is; a pattern's text
and the memory it compiles into are bounded; and topics are matched in slices of bounded work, with pauses between them, one group after
the other, in turns. A pattern is matched against every topic, internal ones too, as a whole, when it is new, when there are new topics, and now and
then, but not more often than every ten seconds per group. What it matched is a record that all members of the group share; what is too much
for the log matches nothing, and is tried again as seldom as patterns are matched anyway.

The package is imported when the first pattern comes, and not before: most servers never see one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

from tidelog.coordinator.group.consumer import entries
from tidelog.coordinator.group.consumer.environment import Environment
from tidelog.coordinator.group.consumer.group import ConsumerGroup, MatchedTopics, Refreshed
from tidelog.coordinator.group.consumer.member import Member
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.world import Topics
from tidelog.coordinator.outcome import Now, Outcome
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

CHARACTERS_MAX: Final = 4096
MEMORY_BYTES_MAX: Final = 1 << 20
"""Of one compiled pattern, its cache of states included; what does not fit matches more slowly, or is refused."""
REFRESH_INTERVAL_MIN_MS: Final = 10_000
"""Between two times that a group's patterns are matched. Kafka has this number too, and no setting for it."""
SLICE_WORK: Final = 2_000_000
"""Steps of a slice: some milliseconds, at worst."""
MATCH_WORK: Final = 1_000
"""What a call costs, in steps, however short the name is."""
PAUSE_MS: Final = 20
"""Between slices, for everybody else."""

_TIMER: Final = "consumer group patterns"
_NOT_TAKEN_MAX: Final = 1000


class Pattern(Protocol):
    """A compiled one."""

    @property
    def programsize(self) -> int: ...

    def fullmatch(self, text: bytes) -> object | None: ...


def compile_pattern(text: str) -> Pattern:
    """RequestError where it is no pattern, or not one that we can afford."""
    if len(text) > CHARACTERS_MAX:
        raise RequestError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"a pattern of {len(text)} characters is too long: {CHARACTERS_MAX} is the most",
        )
    re2 = _engine()
    if re2 is None:
        raise RequestError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "this server cannot match patterns: install the package google-re2 (pip install google-re2) on it and"
            " start it anew, or subscribe to topics by name",
        )
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        pattern: Pattern = re2.compile(text, options=options)
    except re2.error as error:
        raise RequestError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{text!r} is not a pattern that RE2 takes: {_text_of(error)}",
        ) from error
    return pattern


class Patterns:
    """The groups whose patterns are being matched, in the order in which they came; each slice of work is one turn of a timer."""

    __slots__ = ("_environment", "_matching", "_names", "_not_before_ms")

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._matching: dict[str, _Matching] = {}
        self._names = _Names()
        self._not_before_ms: dict[str, int] = {}  # groups whose matches the log did not take

    def match_if_due(self, group: ConsumerGroup, before: Member, after: Member, now: Now) -> None:
        """Called with every heartbeat: `before`, which is in the group or wants nothing, becomes `after`."""
        if not group.pattern_users and not after.pattern:
            return
        used = _used_patterns(group, before, after)
        if not used or group.id in self._matching or not self._is_due(group, used, now):
            return
        if _engine() is None:
            return  # what was matched elsewhere stays; a new pattern was refused before it came here
        self._environment.metadata.look()
        self._matching[group.id] = _Matching(used, now.wall_ms)
        if _TIMER not in self._environment.timers:
            self._environment.timers.schedule(_TIMER, now.ms, self._one_slice)

    def _is_due(self, group: ConsumerGroup, used: list[str], now: Now) -> bool:
        if now.ms < self._not_before_ms.get(group.id, now.ms):
            return False
        if not group.patterns:
            return True
        # They were all matched together, so any of them would do.
        last_ms = max(matched.timestamp_ms for matched in group.patterns.values())
        version = max(matched.version for matched in group.patterns.values())
        since_ms = now.wall_ms - last_ms
        if 0 <= since_ms <= REFRESH_INTERVAL_MIN_MS:
            return False
        return (
            any(text not in group.patterns for text in used)
            or version < self._environment.metadata.new_topics_offset
            or not 0 <= since_ms <= self._environment.settings.consumer_regex_refresh_interval_ms
        )

    def _one_slice(self, now: Now) -> Outcome:
        group_id = next(iter(self._matching))
        matching = self._matching.pop(group_id)
        outcome = Outcome()
        if not matching.work(SLICE_WORK, self._names.of(self._environment.topics)):
            self._matching[group_id] = matching  # behind the others
        else:
            self._not_before_ms.pop(group_id, None)
            group = self._environment.groups.get(group_id)
            if group is not None:
                outcome = self._written(group, matching.found(), now)
        if self._matching:
            self._environment.timers.schedule(_TIMER, now.ms + PAUSE_MS, self._one_slice)
        else:
            self._names.forget()
        return outcome

    def _written(self, group: ConsumerGroup, found: Mapping[str, MatchedTopics], now: Now) -> Outcome:
        """What was matched becomes records, also where it is the same as before: when it was matched is part of them. Patterns that
        nobody uses any more are passed over.
        """
        found = {text: matched for text, matched in found.items() if text in group.pattern_users}
        after = {**group.patterns, **found}
        outcome = Outcome(
            on_failed=partial(self._not_taken, group.id),
            records=[
                entries.matched_topics(
                    group.id,
                    text,
                    matched.topics,
                    version=matched.version,
                    timestamp_ms=matched.timestamp_ms,
                )
                for text, matched in found.items()
            ],
        )
        names = set(group.subscribers).union(*(matched.topics for matched in after.values()))
        metadata_hash = self._environment.metadata.hash_of(names)
        # What is matched for the first time always counts, also if it is nothing: a member may have given up other topics for it, and
        # those are still meant for it.
        if metadata_hash != group.metadata_hash or any(
            text not in group.patterns or matched.topics != group.patterns[text].topics
            for text, matched in found.items()
        ):
            epoch = group.epoch + 1
            outcome.records.append(entries.group_epoch(group.id, epoch, metadata_hash))
            group.refreshed = Refreshed(self._environment.metadata.generation, epoch)
            if group.epoch == group.assignment_epoch:
                detail = "its patterns match other topics"
                self._environment.note(now, group.id, Event.REBALANCE_BEGAN, epoch, detail=detail)
        return outcome

    def _not_taken(self, group_id: str, code: ErrorCode, now: Now) -> Outcome:
        """Too much for one batch, which time does not change, or the log takes nothing at the moment."""
        pause_ms = REFRESH_INTERVAL_MIN_MS
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            pause_ms = self._environment.settings.consumer_regex_refresh_interval_ms
        if len(self._not_before_ms) >= _NOT_TAKEN_MAX:
            self._not_before_ms.clear()
        self._not_before_ms[group_id] = now.ms + pause_ms
        return Outcome()


class _Listed(NamedTuple):
    """All topics there were at one moment, as text and as RE2 reads it."""

    version: int
    names: list[tuple[str, bytes]]


class _Names:
    """Sorted and encoded once for all groups that ask at the same moment: there may be a hundred thousand topics."""

    __slots__ = ("_listed",)

    def __init__(self) -> None:
        self._listed: _Listed | None = None

    def forget(self) -> None:
        self._listed = None

    def of(self, topics: Topics) -> _Listed:
        if self._listed is None or self._listed.version != topics.offset:
            self._listed = _Listed(topics.offset, [(name, name.encode()) for name in sorted(topics.names())])
        return self._listed


class _Matching:
    """Some patterns against all topics there are when its first turn comes."""

    __slots__ = ("_found", "_listed", "_next", "_patterns", "_timestamp_ms")

    def __init__(self, patterns: Iterable[str], wall_ms: int) -> None:
        self._timestamp_ms = wall_ms
        self._found: dict[str, set[str]] = {text: set() for text in patterns}
        self._listed: _Listed | None = None
        self._patterns: list[tuple[str, Pattern]] = []
        self._next = 0  # among all pairs, pattern by pattern

    def work(self, steps: int, listed: _Listed) -> bool:
        """Whether it is done. At least one pair is matched, however few steps are allowed."""
        if self._listed is None:
            self._listed = listed
            self._patterns = [
                (text, pattern) for text in self._found if (pattern := _compiled_or_none(text)) is not None
            ]
        names = self._listed.names
        pairs = len(self._patterns) * len(names)
        while self._next < pairs and steps > 0:
            number, position = divmod(self._next, len(names))
            text, pattern = self._patterns[number]
            name, encoded = names[position]
            if pattern.fullmatch(encoded) is not None:
                self._found[text].add(name)
            steps -= MATCH_WORK + pattern.programsize * len(encoded)
            self._next += 1
        return self._next >= pairs

    def found(self) -> dict[str, MatchedTopics]:
        assert self._listed is not None
        return {
            text: MatchedTopics(frozenset(topics), self._listed.version, self._timestamp_ms)
            for text, topics in self._found.items()
        }


def _used_patterns(group: ConsumerGroup, before: Member, after: Member) -> list[str]:
    """What the group uses once `before` has become `after`."""
    used = set(group.pattern_users)
    used.discard(group.pattern_without_users(before, after) or "")
    if after.pattern:
        used.add(after.pattern)
    return sorted(used)


def _compiled_or_none(text: str) -> Pattern | None:
    """A pattern that another release accepted and this one does not matches nothing."""
    try:
        return compile_pattern(text)
    except RequestError:
        return None


def _engine() -> Any | None:
    try:
        return import_module("re2")
    except ImportError:
        return None


def _text_of(error: Exception) -> str:
    """The package hands RE2's message on as bytes."""
    reason: Any = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
