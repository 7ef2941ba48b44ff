"""The last resort before an unclean election: who of those that were last in sync has the longest log (D10, KIP-966).

Nobody is left in ISR and ELR: every replica that was counted has come back without a promise that it lost nothing, as after a power cut
with `durability=replicated`. Brokers report (last epoch, end offset) of such replicas with their heartbeats; when all of the last known ELR have,
or `wait_s` after the first, the longest log leads. It is reported as unclean, because what was only in the others is gone.

Soft state of the active controller. Owns the reports and the choice; the record is made by `elections`.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.controller.elections import leaders_now, partition_change, rules_for
from tidelog.controller.image import MetadataImage, PartitionImage
from tidelog.controller.metadata_records import NO_LEADER
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest


class LogEnd(NamedTuple):
    """In the order in which logs are compared: of two leaders' last records the later leader's are the newer ones."""

    last_epoch: int
    end_offset: int


class Survivor(NamedTuple):
    topic_id: bytes
    partition_index: int
    broker_id: int


class _Waiting:
    __slots__ = ("ends", "leader_epoch", "since")

    def __init__(self, leader_epoch: int, since: float) -> None:
        self.leader_epoch = leader_epoch
        self.since = since
        self.ends: dict[int, tuple[int, LogEnd]] = {}
        """By broker: the epoch of the run that said it, and its log's end."""


def is_abandoned(partition: PartitionImage) -> bool:
    """Nobody in sync will ever come back."""
    return (
        partition.leader == NO_LEADER
        and not partition.isr
        and not partition.elr
        and bool(partition.last_known_elr)
    )


class LastKnownLogs:
    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._waiting: dict[tuple[bytes, int], _Waiting] = {}

    def clear(self) -> None:
        self._waiting.clear()

    def report(self, image: MetadataImage, request: BrokerHeartbeatRequest, now: float) -> None:
        """Takes what a heartbeat says about leaderless replicas; about others nothing is kept."""
        for asked in request.leaderless_log_ends:
            topic = image.topic_by_id(asked.topic_id)
            for said in asked.partitions if topic is not None else ():
                partition = topic.partitions.get(said.partition_index) if topic is not None else None
                if (
                    partition is None
                    or not is_abandoned(partition)
                    or said.leader_epoch != partition.leader_epoch
                    or request.broker_id not in partition.last_known_elr
                ):
                    continue
                key = (asked.topic_id, said.partition_index)
                waiting = self._waiting.get(key)
                if waiting is None or waiting.leader_epoch != partition.leader_epoch:
                    waiting = self._waiting[key] = _Waiting(partition.leader_epoch, now)
                end = LogEnd(said.last_epoch, said.log_end_offset)
                waiting.ends[request.broker_id] = (request.broker_epoch, end)

    def survivors(self, image: MetadataImage, now: float) -> list[Survivor]:
        """Who is to lead now. What has been settled meanwhile is forgotten."""
        chosen: list[Survivor] = []
        for (topic_id, index), waiting in list(self._waiting.items()):
            topic = image.topic_by_id(topic_id)
            partition = topic.partitions.get(index) if topic is not None else None
            if (
                partition is None
                or not is_abandoned(partition)
                or partition.leader_epoch != waiting.leader_epoch
            ):
                del self._waiting[topic_id, index]
                continue
            longest = self._longest(image, partition, waiting, now)
            if longest is not None:
                chosen.append(Survivor(topic_id, index, longest))
        return chosen

    def _longest(
        self, image: MetadataImage, partition: PartitionImage, waiting: _Waiting, now: float
    ) -> int | None:
        awaited = [broker for broker in partition.last_known_elr if broker in image.brokers]
        ends: dict[int, LogEnd] = {}
        for broker in awaited:
            run, end = waiting.ends.get(broker, (None, None))
            if end is not None and image.brokers[broker].epoch == run and image.brokers[broker].active:
                ends[broker] = end
        if not ends or (len(ends) < len(awaited) and now < waiting.since + self._wait_s):
            return None
        return max(ends, key=lambda broker: (ends[broker], -partition.replicas.index(broker)))

    def next_deadline(self, now: float) -> float | None:
        """When waiting ends for some partition. One whose time is over waits for a broker to come back, not for a moment."""
        ends = (waiting.since + self._wait_s for waiting in self._waiting.values())
        return min((end for end in ends if end > now), default=None)


def elect_survivors(
    image: MetadataImage, survivors: list[Survivor], settings: ControllerSettings
) -> ControllerResult[None]:
    records: list[MetadataRecord] = []
    may_lead = leaders_now(image)
    for survivor in survivors[: settings.elections_per_balance_max]:
        topic = image.topics_by_id[survivor.topic_id]
        rules = rules_for(image, topic.name, settings, may_lead)
        record = partition_change(topic, survivor.partition_index, rules, survivor=survivor.broker_id)
        if record is not None:
            records.append(record)
    return ControllerResult(None, records)
