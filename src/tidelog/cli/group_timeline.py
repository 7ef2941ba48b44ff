"""A group's history in order: the rebalances with what led to them, and the lives of its members. Pure, no advice.

Entries come oldest first, as a broker noted them; the oldest ones may be missing, because a broker's memory has an end. So a rebalance may end
that never began, and a member may leave that never joined: nothing here relies on a beginning. A rebalance that begins again before
it has ended (somebody joined in between) is one to those who wait for it, and is counted as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidelog.client.group_history import HistoryEntry
from tidelog.coordinator.group.history import Event

GONE = frozenset({Event.LEFT.value, Event.TIMED_OUT.value, Event.MISSED_REBALANCE.value, Event.FENCED.value})
_ABOUT_MEMBERS = GONE | {Event.JOINED.value}
_REBALANCE = frozenset({Event.REBALANCE_BEGAN.value, Event.REBALANCE_ENDED.value})
_NAMED_MAX = 3


class Rebalance(NamedTuple):
    began_ms: int
    ended_ms: int | None
    """None: it is under way."""
    generation: int
    began_count: int
    reason: str
    """What the coordinator gave as the reason, in its words."""
    events: tuple[HistoryEntry, ...]
    """What happened since the rebalance before, up to the end of this one."""
    from_empty: bool
    """Nobody was there who had to stop for it."""

    @property
    def took_ms(self) -> int | None:
        return None if self.ended_ms is None else max(0, self.ended_ms - self.began_ms)

    @property
    def why(self) -> str:
        """Who came and went; where nobody did, the coordinator's words."""
        return _told(self.events, self.began_ms) or self.reason or "unknown"


class Life(NamedTuple):
    """One member from its join to its end, as far as the history knows either."""

    member_id: str
    client: str
    joined_ms: int | None
    gone_ms: int | None = None
    how: str = ""
    """The event that ended it; empty while it is there."""
    detail: str = ""

    @property
    def client_id(self) -> str:
        return self.client.rpartition(" (")[0] or self.client

    @property
    def lasted_ms(self) -> int | None:
        return None if self.joined_ms is None or self.gone_ms is None else self.gone_ms - self.joined_ms


def rebalances_of(entries: Iterable[HistoryEntry]) -> list[Rebalance]:
    found: list[Rebalance] = []
    since: list[HistoryEntry] = []
    began: HistoryEntry | None = None
    began_count, was_empty = 0, False
    for entry in entries:
        since.append(entry)
        if entry.event == Event.REBALANCE_BEGAN.value:
            began_count += 1
            began = began or entry
        elif entry.event == Event.REBALANCE_ENDED.value:
            if began is not None:
                found.append(_rebalance(began, entry, began_count, since, was_empty))
            was_empty = _emptied(entry)
            since, began, began_count = [], None, 0
    if began is not None:
        found.append(_rebalance(began, None, began_count, since, was_empty))
    return found


def _rebalance(
    began: HistoryEntry,
    ended: HistoryEntry | None,
    began_count: int,
    since: Sequence[HistoryEntry],
    was_empty: bool,
) -> Rebalance:
    last = ended or began
    return Rebalance(
        began_ms=began.wall_ms,
        ended_ms=None if ended is None else ended.wall_ms,
        generation=last.generation,
        began_count=began_count,
        reason=began.detail,
        events=tuple(since),
        from_empty=was_empty or began.generation <= 0,
    )


def _emptied(ended: HistoryEntry) -> bool:
    """The coordinator's words for a rebalance after which nobody is left."""
    return "no member" in ended.detail


def since_then(entries: Sequence[HistoryEntry]) -> str:
    """Who came and went after the last rebalance, without one: the last member of a group, or a static one. Else empty."""
    last = max((n for n, e in enumerate(entries) if e.event in _REBALANCE), default=-1)
    ended = last < 0 or entries[last].event == Event.REBALANCE_ENDED.value
    return _told(entries[last + 1 :], 0) if ended else ""


def _told(events: Iterable[HistoryEntry], triggered_until_ms: int) -> str:
    told: dict[str, list[str]] = {}
    for entry in events:
        triggered = entry.wall_ms <= triggered_until_ms and entry.event not in _REBALANCE
        if entry.event in _ABOUT_MEMBERS or (triggered and entry.client):
            told.setdefault(entry.event, []).append(entry.client or entry.member_id)
    return "; ".join(f"{_some(who)} {event}" for event, who in told.items())


def lives_of(entries: Iterable[HistoryEntry]) -> list[Life]:
    """In the order in which they were first heard of."""
    lives: list[Life] = []
    here: dict[str, int] = {}
    for entry in entries:
        if entry.event == Event.JOINED.value and entry.member_id not in here:
            here[entry.member_id] = len(lives)
            lives.append(Life(entry.member_id, entry.client, entry.wall_ms))
        elif entry.event in GONE:
            number = here.pop(entry.member_id, None)
            known = Life(entry.member_id, entry.client, None) if number is None else lives[number]
            ended = known._replace(gone_ms=entry.wall_ms, how=entry.event, detail=entry.detail)
            if number is None:
                lives.append(ended)
            else:
                lives[number] = ended
    return lives


def by_client(lives: Iterable[Life]) -> dict[str, list[Life]]:
    found: dict[str, list[Life]] = {}
    for life in lives:
        found.setdefault(life.client, []).append(life)
    return found


def gaps(moments: Sequence[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(moments)]


# -- words for people -----------------------------------------------------------------------------------------------


def how_often(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"


def span(ms: float) -> str:
    """A length of time for people."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _some(names: Sequence[str]) -> str:
    """Names with their number of times, the first few of them."""
    counted = {name: names.count(name) for name in names}
    shown = [f"{name} ×{times}" if times > 1 else name for name, times in counted.items()]
    more = f" and {len(shown) - _NAMED_MAX} more" if len(shown) > _NAMED_MAX else ""
    return ", ".join(shown[:_NAMED_MAX]) + more
