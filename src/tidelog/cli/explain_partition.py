"""What `explain partition` finds: who is not in sync, since when and why, what holds the high watermark, and what to do. Pure: the cluster was asked elsewhere, `partition_report.py` prints it.

A finding is something that is not as it should be, or soon will not be, with its numbers and what to do about it. Of a partition that is well nothing is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidelog.cli.cluster_facts import Facts, TopicRules
from tidelog.cli.cluster_status import since_text
from tidelog.cli.explain_topic import long_span
from tidelog.client.cluster_admin import PartitionDescription
from tidelog.client.metadata import TopicPartition
from tidelog.client.replica_states import BrokerState, ReplicaState, Standing

STALLED_MS: Final = 2_000
"""A follower asks again at least every half second, if it can."""


class Finding(NamedTuple):
    kind: str
    what: str
    advice: str


class Explanation(NamedTuple):
    tp: TopicPartition
    described: PartitionDescription
    rules: TopicRules
    leader: ReplicaState | None
    facts: Facts
    findings: list[Finding]


def explain(
    facts: Facts, tp: TopicPartition, described: PartitionDescription, rules: TopicRules
) -> Explanation:
    leader = facts.leader_of(described)
    case = _Case(facts, tp, described, rules, leader)
    return Explanation(tp, described, rules, leader, facts, list(case.findings()))


class _Case:
    def __init__(
        self,
        facts: Facts,
        tp: TopicPartition,
        described: PartitionDescription,
        rules: TopicRules,
        leader: ReplicaState | None,
    ) -> None:
        self.facts = facts
        self.tp = tp
        self.described = described
        self.rules = rules
        self.leader = leader

    def findings(self) -> Iterator[Finding]:
        if self.described.leader < 0:
            yield self._no_leader()
        elif self.facts.silence_of(self.described.leader) is not None:
            yield self._silent_leader()
        elif self.leader is None and self.facts.replica(self.tp, self.described.leader) is not None:
            yield Finding(
                "leader changing",
                f"the metadata says that broker {self.described.leader} leads, and it does not yet, or not any more",
                "ask again in a moment",
            )
        if self._is_below_min:
            yield self._below_min()
        for broker_id in self.described.replicas:
            if broker_id not in self.described.isr:
                yield self._out_of_sync(broker_id)
        yield from self._held()
        preferred = self.described.replicas[0] if self.described.replicas else -1
        if 0 <= self.described.leader != preferred and preferred in self.described.isr:
            yield Finding(
                "not the preferred leader",
                f"broker {self.described.leader} leads, and broker {preferred}, the first replica, is in sync and could",
                f"nothing is wrong with it; the controller gives it back from time to time, `tidelog partition elect {self.tp}` at once",
            )

    # ---- nobody leads

    def _no_leader(self) -> Finding:
        since = self.facts.leaderless_since(self.tp)
        what = f"nobody leads {self.tp}" + (f", {since_text(since)}" if since is not None else "")
        what += ": it takes no records and gives none"
        candidates = [*self.described.isr, *self.described.elr]
        if candidates:
            named = ", ".join(self._broker(broker) for broker in candidates)
            return Finding(
                "no leader",
                f"{what}. Who has everything that was committed: {named}",
                f"start {_any_of(candidates)}: the first that comes back leads, and nothing is lost. "
                + self._last_resort(),
            )
        last = list(self.described.last_known_elr) or [
            broker for broker in self.described.replicas if self._is_away(broker)
        ]
        if self.described.last_known_elr:
            waits_for = [broker for broker in last if self._is_away(broker)]
            waiting = ", ".join(self._broker(broker) for broker in waits_for)
            return Finding(
                "no leader",
                f"{what}. Nobody is known to have all of it; last known in sync: {listed(last)}"
                + (f"; away: {waiting}" if waits_for else ""),
                (f"start {listed(waits_for)}; w" if waits_for else "w")
                + "hen all of them are there, the one with the longest log leads, and it is reported as an unclean election. "
                + self._last_resort(),
            )
        return Finding(
            "no leader",
            f"{what}. No replica is in sync; away: {listed(last)}",
            f"start {listed(last) if last else 'its brokers'}. " + self._last_resort(),
        )

    def _last_resort(self) -> str:
        if self.rules.unclean_allowed:
            return "unclean.leader.election.enable is true: any replica that comes back may lead, with what it has"
        return f"If they are gone for good: `tidelog partition elect --unclean {self.tp}` takes a replica that is there, and what only they had is lost"

    def _silent_leader(self) -> Finding:
        leader = self.described.leader
        return Finding(
            "leader does not answer",
            f"broker {leader} leads and does not answer: {self.facts.silence_of(leader)}",
            "if the controller does not hear from it either, it is fenced within broker.session.timeout.ms and another one leads; "
            "if it stays the leader, look at the network between here and it, and at its machine",
        )

    # ---- too few

    @property
    def _is_below_min(self) -> bool:
        if self.leader is not None:
            return self.leader.below_min
        least = self.rules.min_insync_replicas
        if least is None or self.described.leader < 0:
            return False
        return len(self.described.isr) < min(least, len(self.described.replicas))

    def _below_min(self) -> Finding:
        least = self.rules.min_insync_replicas
        what = f"{len(self.described.isr)} of {len(self.described.replicas)} replicas are in sync, min.insync.replicas asks for {least}: "
        what += "writes with acks=all are refused (NOT_ENOUGH_REPLICAS)"
        if self.leader is not None and self.leader.high_watermark is not None:
            what += f", and the high watermark stands at {self.leader.high_watermark}"
            hidden = (self.leader.log_end_offset or 0) - self.leader.high_watermark
            if hidden > 0:
                what += f": {records_text(hidden)} behind it, written with acks=1 or before, stay invisible"
        out = [broker for broker in self.described.replicas if broker not in self.described.isr]
        return Finding(
            "below min.insync.replicas",
            what,
            f"bring back {_any_of(out)}; it goes on by itself then. Lower min.insync.replicas only if one copy is enough for you",
        )

    # ---- who is out

    def _out_of_sync(self, broker_id: int) -> Finding:
        absence = self.facts.absence_of(self.tp, broker_id)
        state = self.facts.state_of(broker_id)
        head = f"broker {broker_id} is not in sync"
        if absence is not None:
            head += f", {since_text(absence.since)}: {absence.why}"
        own = self.facts.replica(self.tp, broker_id)
        if own is not None and own.role == "offline":
            return Finding(
                "disk failed", f"{head}; it says: {own.problem}", _REPLACE_DISK.format(broker=broker_id)
            )
        if state is None and self.facts.answers:
            return Finding(
                "unregistered",
                f"{head}. The cluster knows no broker {broker_id} any more",
                f"start a broker with node.id={broker_id}: it copies everything anew",
            )
        if state is not None and state.state == "active":
            return self._catching_up(broker_id, head)
        return self._away(broker_id, head, state)

    def _away(self, broker_id: int, head: str, state: BrokerState | None) -> Finding:
        answers = self.facts.silence_of(broker_id) is None and self.facts.told.get(broker_id) is not None
        name = state.state if state is not None else "fenced"
        if state is not None:
            head += f". The broker is {name} {since_text(state.since)}"
        if name == "starting":
            return Finding(
                "starting",
                head,
                "it opens its logs and catches up; its log says how far it is. It joins by itself",
            )
        if name in ("shutting down", "shut down"):
            return Finding(
                "shut down", head, f"start broker {broker_id} again: it copies what it has missed, and joins"
            )
        if answers:
            return Finding(
                "cut off from the controller",
                f"{head}. It answers clients, but the controller does not hear from it",
                "look at the network between it and the controllers (`tidelog quorum describe` shows who they are), and at its log",
            )
        return Finding(
            "broker away",
            f"{head}. It does not answer",
            f"it was stopped, its process has died or stands still, or its machine or the network is gone: look at its log and start broker {broker_id} again. It copies what it has missed, and joins",
        )

    def _catching_up(self, broker_id: int, head: str) -> Finding:
        standing = self._standing(broker_id)
        if standing is None:
            return Finding(
                "not in sync", head, "nobody tells how far it is: ask again when the leader answers"
            )
        end = self.leader.log_end_offset if self.leader is not None else None
        if standing.log_end_offset is None or end is None:
            head += f". It has fetched nothing from broker {self.described.leader} since that leads"
            return Finding(
                "does not fetch", head, _NOT_FETCHING.format(broker=broker_id, leader=self.described.leader)
            )
        behind = end - standing.log_end_offset
        head += f". It has {standing.log_end_offset} of {end}, {records_text(behind)} behind"
        if standing.fetched_ms_ago is not None and standing.fetched_ms_ago > STALLED_MS:
            head += f", and last fetched {long_span(standing.fetched_ms_ago)} ago"
            return Finding(
                "does not fetch", head, _NOT_FETCHING.format(broker=broker_id, leader=self.described.leader)
            )
        return Finding(
            "catching up",
            f"{head}, and fetches",
            "it joins when it has reached the high watermark. If it never does, it is slower than the producers: look at its disk, its network and its processor",
        )

    # ---- what holds the watermark

    def _held(self) -> Iterator[Finding]:
        leader = self.leader
        if leader is None or leader.below_min:
            return
        end, watermark = leader.log_end_offset, leader.high_watermark
        if end is None or watermark is None or watermark >= end:
            return
        for standing in leader.standings:
            if standing.holds_watermark and standing.broker_id != self.described.leader:
                silent = standing.fetched_ms_ago is None or standing.fetched_ms_ago > STALLED_MS
                if silent:
                    yield self._held_by_silent(standing, end)

    def _held_by_silent(self, standing: Standing, end: int) -> Finding:
        broker_id = standing.broker_id
        since = (
            "has not fetched since this leader began"
            if standing.fetched_ms_ago is None
            else f"last fetched {long_span(standing.fetched_ms_ago)} ago"
        )
        what = f"the high watermark waits for broker {broker_id}, which has {standing.log_end_offset or 0} of {end} and {since}"
        limit = self.rules.lag_max_ms
        if limit is not None and standing.caught_up_ms_ago is not None and standing.in_sync:
            left = limit - standing.caught_up_ms_ago
            what += f": it leaves the ISR in {long_span(max(0, left))} (replica.lag.time.max.ms is {long_span(limit)})"
        return Finding(
            "watermark held",
            what,
            f"acks=all waits until then. Broker {broker_id} stands still, or does not reach broker {self.described.leader}: look at both",
        )

    # ---- small things

    def _standing(self, broker_id: int) -> Standing | None:
        standings = self.leader.standings if self.leader is not None else ()
        return next((standing for standing in standings if standing.broker_id == broker_id), None)

    def _is_away(self, broker_id: int) -> bool:
        state = self.facts.state_of(broker_id)
        return state is None or state.state != "active"

    def _broker(self, broker_id: int) -> str:
        state = self.facts.state_of(broker_id)
        if state is None:
            return f"{broker_id}"
        return f"{broker_id} ({state.state} {since_text(state.since)})"


_REPLACE_DISK: Final = "repair or replace the disk and start broker {broker} again: with an empty directory it copies everything anew"
_NOT_FETCHING: Final = "broker {broker} does not reach broker {leader}: look at the network between them, and at the log of broker {broker}"


def _any_of(brokers: list[int]) -> str:
    return f"broker {brokers[0]}" if len(brokers) == 1 else f"one of the brokers {listed(brokers)}"


def listed(brokers: list[int]) -> str:
    return ", ".join(map(str, brokers))


def records_text(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"
