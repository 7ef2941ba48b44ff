"""In which order the sealed segments of a log directory are scrubbed, and what is remembered of it across restarts.

A round goes through the directory's partitions by name and through each one's segments by offset, so the segment that was looked at the
longest time ago is always next, and a position is all that must be kept. Only segments below the recovery point are due: what is above
is recovery's business (I3). Rounds begin at most once per interval.

`scrub-checkpoint` in the log directory holds that position and every damage that is known, as JSON. Without it a restart would serve
damage again until the round comes by. What it says is not believed for long: those segments are checked first after a start, because they may have
been restored from a backup. It may be deleted (I4).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from tidelog.errors import CorruptDataError, RequestError
from tidelog.storage import files
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager
from tidelog.storage.recovery_report import Damage
from tidelog.storage.scrub import SegmentFacts
from tidelog.storage.segment import Segment

_VERSION: Final = 0
_LOGS_PER_LOOK: Final = 500  # most have no sealed segment; no turn of the loop passes more of them


class Target(NamedTuple):
    """A segment to be checked, as it was when its turn came."""

    key: TopicPartition
    log: Log
    segment: Segment
    facts: SegmentFacts
    truncation_count: int

    def is_there(self, manager: LogManager) -> bool:
        """The segment is still what it was: not deleted, truncated or replaced."""
        log = self.log
        if find_log(manager, self.key) is not log or log.truncation_count != self.truncation_count:
            return False
        segment = log.segments[log.segment_number(self.facts.base_offset)]
        return segment is self.segment and segment is not log.active and segment.size == self.facts.size


def find_log(manager: LogManager, key: TopicPartition) -> Log | None:
    return manager.logs.get(key) or manager.internal_logs.get(key)


def target_at(key: TopicPartition, log: Log, number: int) -> Target | None:
    """The log's segment of this number, if it is sealed and durable."""
    if number + 1 >= len(log.segments):
        return None
    segment, end_offset = log.segments[number], log.segments[number + 1].base_offset
    if end_offset > log.recovery_point:
        return None
    facts = SegmentFacts(
        segment.base_offset,
        end_offset,
        segment.size,
        log.log_start_offset,
        tuple(log.epochs.checkpoint_entries()),
    )
    return Target(key, log, segment, facts, log.truncation_count)


class Round:
    """The rounds through one log directory."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir = log_dir
        self.began_ms = -1
        self.rounds = 0  # finished since the start
        self._keys: list[TopicPartition] | None = None  # None: between two rounds
        self._number = 0
        self._after = -1  # base offset of the last segment that was checked in the log at hand
        self._resume_at: tuple[str, int, int] | None = None

    @property
    def is_idle(self) -> bool:
        return self._keys is None

    def next(self, manager: LogManager, *, now_ms: int, interval_ms: int) -> Target | None:
        """The segment whose turn it is, until it is `finished`. None: nothing is due, or (not `is_idle`) ask again for the rest of the partitions."""
        if self._keys is None and not self._begin(manager, now_ms, interval_ms):
            return None
        assert self._keys is not None
        for _ in range(_LOGS_PER_LOOK):
            if self._number >= len(self._keys):
                self._keys = None
                self.rounds += 1
                return None
            key = self._keys[self._number]
            log = find_log(manager, key)
            target = self._next_in(key, log) if log is not None else None
            if target is not None:
                return target
            self._number += 1
            self._after = -1
        return None

    def finished(self, target: Target) -> None:
        """Its check is over: the round goes on behind it."""
        if self._keys is not None and self._keys[self._number] == target.key:
            self._after = target.facts.base_offset

    def _begin(self, manager: LogManager, now_ms: int, interval_ms: int) -> bool:
        resume_at, self._resume_at = self._resume_at, None
        self.began_ms = min(self.began_ms, now_ms)  # a wall clock that was put back must not stop the rounds
        if resume_at is None:
            if self.began_ms >= 0 and now_ms - self.began_ms < interval_ms:
                return False
            self.began_ms = now_ms
        self._keys = sorted(
            key
            for logs in (manager.logs, manager.internal_logs)
            for key, log in logs.items()
            if files.parent(log.directory) == self.log_dir
        )
        self._number, self._after = 0, -1
        if resume_at is not None:
            self._number = bisect_left(self._keys, resume_at[:2])
            if self._number < len(self._keys) and self._keys[self._number] == resume_at[:2]:
                self._after = resume_at[2]
        return True

    def _next_in(self, key: TopicPartition, log: Log) -> Target | None:
        number = log.segment_number(self._after)
        if log.segments[number].base_offset <= self._after:
            number += 1
        return target_at(key, log, number)

    # ---- across restarts

    def encoded(self, damages: Iterable[tuple[TopicPartition, int, Damage]]) -> bytes:
        """The checkpoint's text. `damages` come with their partition and their segment's base offset."""
        position = None
        if self._keys is not None and self._number < len(self._keys):
            position = [*self._keys[self._number], self._after]
        content = {
            "version": _VERSION,
            "round_began_ms": self.began_ms,
            "position": position,
            "damages": [
                {"topic": topic, "partition": partition, "segment": base_offset, **_without_path(damage)}
                for (topic, partition), base_offset, damage in damages
            ],
        }
        return json.dumps(content, indent=1).encode() + b"\n"

    def load(self, text: bytes, path: str) -> dict[tuple[TopicPartition, int], tuple[Damage, ...]]:
        """Go on where the checkpoint says; returns the damages by partition and base offset. CorruptDataError: it says nothing."""
        try:
            content = json.loads(text)
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']} is not known")
            found: dict[tuple[TopicPartition, int], tuple[Damage, ...]] = {}
            for entry in content["damages"]:
                key, damage = self._decoded(entry)
                found[key] = (*found.get(key, ()), damage)
            position = content["position"]
            resume_at = None if position is None else (str(position[0]), int(position[1]), int(position[2]))
            self.began_ms, self._resume_at = int(content["round_began_ms"]), resume_at
        except (ValueError, KeyError, TypeError, IndexError, RequestError) as error:
            raise CorruptDataError(f"{path} cannot be read, and is not needed: {error}") from error
        return found

    def _decoded(self, entry: Mapping[str, Any]) -> tuple[tuple[TopicPartition, int], Damage]:
        topic, partition, base_offset = (
            files.validate_topic_name(str(entry["topic"])), int(entry["partition"]), int(entry["segment"]),
        )  # fmt: skip
        directory = files.partition_dir(self.log_dir, topic, partition)
        damage = Damage(
            files.segment_path(directory, base_offset, files.LOG),
            int(entry["position"]),
            int(entry["length"]),
            int(entry["first_offset"]),
            int(entry["end_offset"]),
            str(entry["problem"]),
        )
        return ((topic, partition), base_offset), damage


def _without_path(damage: Damage) -> dict[str, Any]:
    fields = asdict(damage)
    del fields["path"]
    return fields
