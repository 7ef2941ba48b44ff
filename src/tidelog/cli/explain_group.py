"""Why a group rebalances, and what to change: a pure function from its history and description to findings.

Each finding names who, says what was seen with the numbers it rests on, and what to do. A healthy group gives none: members that start
together, one that is restarted, one more or less, are what groups are for. The thresholds stand below; a finding needs a pattern, or something
that no healthy group does (a missed rebalance, a member that falls silent).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from tidelog.cli.group_timeline import (
    Life,
    Rebalance,
    by_client,
    gaps,
    how_often,
    lives_of,
    rebalances_of,
    span,
)
from tidelog.client.group_description import CLASSIC, CONSUMER, GroupDescription
from tidelog.client.group_history import HistoryEntry
from tidelog.coordinator.group.history import Event

MINUTE: Final = 60_000

FLAPS_MIN: Final = 3
FLAP_LIFE_MS_MAX: Final = 5 * MINUTE
FLAP_INTERVAL_MS_MAX: Final = 2 * MINUTE
COME_BACK_MS_MAX: Final = 5 * MINUTE
"""A client that is there again within this time was restarted, or had only been held up."""
ROLLING_MS_MAX: Final = 30 * MINUTE
FENCED_MIN: Final = 3
FENCED_INTERVAL_MS_MAX: Final = 5 * MINUTE
CHANGES_MIN: Final = 3
LONG_PAUSE_MS: Final = 5_000
VERY_LONG_PAUSE_MS: Final = 30_000
UNDER_WAY_MS: Final = 30_000

EAGER: Final = frozenset({"range", "roundrobin", "sticky"})
SETTLED: Final = frozenset({"Stable", "Empty", "Dead"})
_MS: Final = re.compile(r"(\d+) ms")
_INSTANCE_ID: Final = re.compile(r"instance (?:id )?(\S+)")
_POLL_TIMEOUT: Final = "poll timeout"
"""Part of the reason that Kafka's Java client gives when it leaves because nobody polled for max.poll.interval.ms."""
_BACK_SOON: Final = "will be back"
"""Part of what the coordinator notes when a static member leaves for a restart."""


class Finding(NamedTuple):
    kind: str
    who: str
    what: str
    advice: str
    numbers: dict[str, Any]


class Explanation(NamedTuple):
    rebalances: list[Rebalance]
    findings: list[Finding]


def explain(
    entries: Sequence[HistoryEntry], group: GroupDescription | None, now_ms: int, *, protocol: str = ""
) -> Explanation:
    """`entries` oldest first; `group` is None when it is gone. `protocol` is what the history says, while no description does."""
    rebalances = rebalances_of(entries)
    lives = lives_of(entries)
    flapping = _flapping(lives, rebalances)
    flappers = {finding.who for finding in flapping}
    others = [life for life in lives if life.client not in flappers]
    findings = [
        *flapping,
        *_missed(others, rebalances),
        *_timed_out(others),
        *_rolling_restart(others, rebalances, group),
        *_fenced(entries),
        *_changed_subscriptions(entries, rebalances, group.protocol if group is not None else protocol),
        *_eager_pauses(rebalances, group),
        *_under_way(rebalances, group, now_ms),
    ]
    return Explanation(rebalances, findings)


# -- members that come and go ---------------------------------------------------------------------------------------


def _flapping(lives: Sequence[Life], rebalances: Sequence[Rebalance]) -> list[Finding]:
    """A client that joins and is gone again, over and over: a crash loop, a failing health check, a job that is no consumer."""
    short: dict[str, list[Life]] = {}
    for life in lives:
        ended_itself = life.how in (Event.LEFT.value, Event.TIMED_OUT.value) and not _polled_too_late(life)
        if ended_itself and life.lasted_ms is not None and life.lasted_ms <= FLAP_LIFE_MS_MAX:
            short.setdefault(life.client, []).append(life)
    findings: list[Finding] = []
    for client, its in short.items():
        joins = sorted(life.joined_ms for life in its if life.joined_ms is not None)
        if len(its) < FLAPS_MIN:
            continue
        interval_ms = median(gaps(joins))
        if interval_ms > FLAP_INTERVAL_MS_MAX:
            continue
        ends = Counter(life.how for life in its)
        life_ms = median(life.lasted_ms or 0 for life in its)
        members = {life.member_id for life in its}
        caused = sum(any(e.member_id in members for e in r.events) for r in rebalances)
        silent = ends[Event.TIMED_OUT.value]
        how = ", ".join(f"{how_often(count)} it {event}" for event, count in ends.items())
        findings.append(
            Finding(
                "flapping",
                client,
                f"{client} joined {len(its)} times, every {span(interval_ms)}, and was gone again after {span(life_ms)} "
                f"({how}); {caused} rebalances came of it",
                (
                    "it dies without leaving: look for what kills it (memory, a health check, a crash)"
                    if silent * 2 > len(its)
                    else "it closes its consumer each time: look in its own log for why it stops, or for what restarts it"
                )
                + "; until that is mended, keep it out of the group",
                {
                    "times": len(its),
                    "interval_ms": round(interval_ms),
                    "life_ms": round(life_ms),
                    "left": ends[Event.LEFT.value],
                    "timed_out": silent,
                    "rebalances": caused,
                },
            )
        )
    return findings


def _missed(lives: Sequence[Life], rebalances: Sequence[Rebalance]) -> list[Finding]:
    """Alive, because it sends heartbeats, and too busy to poll."""
    findings: list[Finding] = []
    for client, its in by_client(
        life for life in lives if life.how == Event.MISSED_REBALANCE.value or _polled_too_late(life)
    ).items():
        waited = [
            life.gone_ms - r.began_ms
            for life in its
            for r in rebalances
            if life.gone_ms is not None
            and life.how == Event.MISSED_REBALANCE.value
            and r.began_ms <= life.gone_ms <= (r.ended_ms or life.gone_ms)
        ]
        waiting = f"; the others waited {span(max(waited))} for it" if waited else ""
        limits = [int(m[1]) for life in its if (m := _MS.search(life.detail))] or waited
        limit = f" (about {span(max(limits))})" if limits else ""
        findings.append(
            Finding(
                "missed rebalance",
                client,
                f"{client} did not come back to the group in time, {how_often(len(its))}{waiting}",
                f"it works for longer than its max.poll.interval.ms{limit} between two polls: raise that above its slowest batch, "
                "or let it take less at a time (max.poll.records)",
                {"times": len(its), "waited_ms_max": max(waited, default=None)},
            )
        )
    return findings


def _timed_out(lives: Sequence[Life]) -> list[Finding]:
    findings: list[Finding] = []
    joins = [(life.client, life.joined_ms) for life in lives if life.joined_ms is not None]
    for client, its in by_client(life for life in lives if life.how == Event.TIMED_OUT.value).items():
        session_ms = max((int(m[1]) for life in its if (m := _MS.search(life.detail))), default=None)
        back: list[int] = []
        replaced = 0
        for life in its:
            gone_ms = life.gone_ms or 0
            later = [at - gone_ms for name, at in joins if name == client]
            if any(-(session_ms or 0) < gap <= 0 and gone_ms + gap != life.joined_ms for gap in later):
                replaced += 1
            elif soon := [gap for gap in later if 0 < gap <= COME_BACK_MS_MAX]:
                back.append(min(soon))
        limit = f" (session.timeout.ms: {session_ms})" if session_ms is not None else ""
        findings.append(
            Finding(
                "timed out",
                client,
                f"{client} was silent for longer than its session allows{limit}, {how_often(len(its))}"
                + (f"; it was back after {span(max(back))}" if back else "")
                + (f"; {how_often(replaced)} its successor had already joined" if replaced else ""),
                _advice_on_silence(session_ms, back, replaced),
                {
                    "times": len(its),
                    "session_timeout_ms": session_ms,
                    "came_back": len(back),
                    "away_ms_max": max(back, default=None),
                    "replaced": replaced,
                },
            )
        )
    return findings


def _advice_on_silence(session_ms: int | None, back: Sequence[int], replaced: int) -> str:
    if replaced:
        return (
            "it is stopped without leaving, and its partitions lie idle until the session ends: close the consumer when it stops "
            "(SIGTERM too), or give it a group.instance.id"
        )
    if back:
        enough = (
            f" of {_rounded_up((session_ms or 0) + max(back))} or more"
            if session_ms is not None
            else " that is longer"
        )
        return (
            "it was held up rather than dead (a long garbage collection, a suspended machine, the network): a session.timeout.ms"
            f"{enough} would have outlasted it, with a heartbeat.interval.ms of a third of that at most"
        )
    return (
        "it died or lost its network: no setting helps it; close consumers when they stop, so that the others need not wait for "
        "the session to end"
    )


def _rolling_restart(
    lives: Sequence[Life], rebalances: Sequence[Rebalance], group: GroupDescription | None
) -> list[Finding]:
    """Members that were there together, and left and came back one after another."""
    static = {m.client_id for m in group.members if m.instance_id is not None} if group is not None else set()
    free = sorted((life.joined_ms, life.client_id) for life in lives if life.joined_ms is not None)
    restarts: list[tuple[Life, int]] = []
    for life in sorted(
        (one for one in lives if one.how == Event.LEFT.value), key=lambda one: one.gone_ms or 0
    ):
        if (
            life.client_id in static
            or life.gone_ms is None
            or _polled_too_late(life)
            or _BACK_SOON in life.detail
        ):
            continue
        back = next(
            (
                (at, name)
                for at, name in free
                if name == life.client_id and 0 <= at - life.gone_ms <= COME_BACK_MS_MAX
            ),
            None,
        )
        if back is not None:
            free.remove(back)
            restarts.append((life, back[0]))
    if not restarts:
        return []
    first_ms = restarts[0][0].gone_ms or 0
    rolled = [
        (life, back_ms)
        for life, back_ms in restarts
        if back_ms - first_ms <= ROLLING_MS_MAX and (life.joined_ms is None or life.joined_ms < first_ms)
    ]
    if len(rolled) < 2:
        return []
    last_ms = max(back_ms for _, back_ms in rolled)
    caused = [r for r in rebalances if first_ms <= r.began_ms <= last_ms]
    away_ms = max(back_ms - (life.gone_ms or 0) for life, back_ms in rolled)
    paused_ms = sum(r.took_ms or 0 for r in caused)
    return [
        Finding(
            "rolling restart",
            ", ".join(sorted({life.client for life, _ in rolled})),
            f"{len(rolled)} members were restarted within {span(last_ms - first_ms)}, which cost {len(caused)} rebalances, "
            f"{span(paused_ms)} in all",
            f"give each member a group.instance.id of its own and a session.timeout.ms above the time a restart takes (seen: up to "
            f"{span(away_ms)}): then a restart is no rebalance",
            {
                "members": len(rolled),
                "rebalances": len(caused),
                "paused_ms": paused_ms,
                "away_ms_max": away_ms,
            },
        )
    ]


def _fenced(entries: Sequence[HistoryEntry]) -> list[Finding]:
    """Once is a restart of a static member; again and again is two processes with one id."""
    by_instance: dict[str, list[HistoryEntry]] = {}
    for entry in entries:
        if entry.event == Event.FENCED.value and (named := _INSTANCE_ID.search(entry.detail)):
            by_instance.setdefault(named[1], []).append(entry)
    findings: list[Finding] = []
    for instance, fenced in by_instance.items():
        if len(fenced) < FENCED_MIN:
            continue
        interval_ms = median(gaps([entry.wall_ms for entry in fenced]))
        if interval_ms > FENCED_INTERVAL_MS_MAX:
            continue
        clients = sorted({entry.client for entry in fenced})
        findings.append(
            Finding(
                "shared instance id",
                instance,
                f"the instance id {instance} was taken over {len(fenced)} times, every {span(interval_ms)}, from "
                f"{', '.join(clients)}",
                "two processes have the same group.instance.id and fence each other: give each its own",
                {"times": len(fenced), "interval_ms": round(interval_ms), "clients": clients},
            )
        )
    return findings


# -- rebalances as such ---------------------------------------------------------------------------------------------


def _changed_subscriptions(
    entries: Sequence[HistoryEntry], rebalances: Sequence[Rebalance], protocol: str
) -> list[Finding]:
    """Only changes that set off a rebalance: sticky members tell what they own in each join, which looks like a change."""
    if "sticky" in protocol:
        return []
    began = {r.began_ms for r in rebalances}
    changes = Counter(
        entry.client
        for entry in entries
        if entry.event == Event.CHANGED_SUBSCRIPTION.value and entry.wall_ms in began
    )
    return [
        Finding(
            "changing subscription",
            client,
            f"{client} changed its subscription {times} times, each time for all members of the group",
            "subscribe once to all topics, or to a pattern; members that read different topics are better off in groups of their own",
            {"times": times},
        )
        for client, times in changes.items()
        if times >= CHANGES_MIN
    ]


def _eager_pauses(rebalances: Sequence[Rebalance], group: GroupDescription | None) -> list[Finding]:
    if group is None or group.type != CLASSIC or group.protocol not in EAGER:
        return []
    pauses = [r.took_ms for r in rebalances if r.took_ms is not None and not r.from_empty]
    long = [pause for pause in pauses if pause >= LONG_PAUSE_MS]
    if len(long) < 2 and max(pauses, default=0) < VERY_LONG_PAUSE_MS:
        return []
    return [
        Finding(
            "eager protocol",
            f"group {group.group_id}",
            f"{len(long)} of {len(pauses)} rebalances took {span(LONG_PAUSE_MS)} or longer, the longest {span(max(pauses))}, all "
            f"{span(sum(pauses))}; with the assignor {group.protocol!r} every member stops for every rebalance",
            "use cooperative-sticky (partition.assignment.strategy), with which members keep what does not move, or "
            "group.protocol=consumer (KIP-848), with which nobody waits for the slowest",
            {
                "rebalances": len(pauses),
                "long": len(long),
                "longest_ms": max(pauses),
                "paused_ms": sum(pauses),
                "protocol": group.protocol,
            },
        )
    ]


def _under_way(rebalances: Sequence[Rebalance], group: GroupDescription | None, now_ms: int) -> list[Finding]:
    """A rebalance that does not end, and in a consumer group also for whom it waits. The state has the last word."""
    if group is None or group.state in SETTLED:
        return []
    since_ms = rebalances[-1].began_ms if rebalances and rebalances[-1].ended_ms is None else None
    if since_ms is not None and now_ms - since_ms < UNDER_WAY_MS:
        return []
    behind: list[str] = []
    if group.type == CONSUMER:
        behind = [f"{m.client_id} ({m.host})" for m in group.members if m.epoch != group.epoch]
    if since_ms is None and (rebalances or not behind):
        return []
    since = f" for {span(now_ms - since_ms)}" if since_ms is not None else ""
    waits = f", waiting for {', '.join(behind)}" if behind else ""
    return [
        Finding(
            "unfinished rebalance",
            ", ".join(behind) or f"group {group.group_id}",
            f"a rebalance has been under way{since}{waits}",
            "members have as long as their max.poll.interval.ms to follow; look at what holds up the slowest",
            {"since_ms": since_ms, "behind": behind},
        )
    ]


# -- small things ---------------------------------------------------------------------------------------------------


def _polled_too_late(life: Life) -> bool:
    return life.how == Event.LEFT.value and _POLL_TIMEOUT in life.detail


def _rounded_up(ms: int) -> int:
    """To whole five seconds: a setting that a person would choose."""
    return math.ceil(ms / 5000) * 5000
