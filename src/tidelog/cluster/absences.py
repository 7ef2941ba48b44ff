"""Who is away, since when and why: brokers that are fenced or stop, replicas that are in no ISR, partitions that nobody leads. Read off the metadata as it changes, for people who ask.

Soft state of one node, and nothing decides by it. Metadata says how things are, not since when: a node notes the time at which it hears of a change, and of what was so before
it had caught up it knows only that it was so (`is_exact` is False, and the time that of its start). Bounded by what is away: an entry goes when what it speaks of is well again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from tidelog.cluster.image_change import ImageChange, between
from tidelog.controller.image import EMPTY_IMAGE, BrokerImage, MetadataImage, PartitionImage
from tidelog.controller.metadata_records import NO_LEADER


class BrokerState(Enum):
    """The texts are told to clients, as they are."""

    ACTIVE = "active"
    SHUTTING_DOWN = "shutting down"
    SHUT_DOWN = "shut down"
    STARTING = "starting"
    """Registered, and not let in yet: it opens its logs, or catches up with the metadata."""
    FENCED = "fenced"
    """While it was active: it has not been heard of, or it was stopped and led nothing, which nobody can tell apart."""


class Why(Enum):
    """What took a replica out of the ISR. The texts are told to clients, as they are."""

    FENCED = "its broker was fenced"
    SHUT_DOWN = "its broker shut down"
    RESTARTED = "its broker came back and may have lost records"
    UNREGISTERED = "its broker was unregistered"
    DISK_FAILED = "its log directory failed"
    LATE = "it did not catch up in time"


class Since(NamedTuple):
    at_ms: int
    is_exact: bool


class BrokerAbsence(NamedTuple):
    state: BrokerState
    since: Since


class ReplicaAbsence(NamedTuple):
    why: Why
    since: Since


PartitionKey = tuple[bytes, int]
_NOBODY: Final[Mapping[int, ReplicaAbsence]] = {}


class Absences:
    def __init__(self) -> None:
        self._image = EMPTY_IMAGE
        self._brokers: dict[int, BrokerAbsence] = {}
        self._replicas: dict[PartitionKey, dict[int, ReplicaAbsence]] = {}
        self._leaderless: dict[PartitionKey, Since] = {}

    # ---- for people

    @property
    def brokers(self) -> Mapping[int, BrokerAbsence]:
        """Every registered broker, those that are active included."""
        return self._brokers

    def of_partition(self, topic_id: bytes, index: int) -> Mapping[int, ReplicaAbsence]:
        """By broker: the replicas that are not in the ISR."""
        return self._replicas.get((topic_id, index), _NOBODY)

    def leaderless(self, topic_id: bytes, index: int) -> Since | None:
        return self._leaderless.get((topic_id, index))

    # ---- from the metadata

    def begin_with(self, image: MetadataImage, *, now_ms: int) -> None:
        """What a snapshot says."""
        self.changed(between(self._image, image), image, now_ms=now_ms, is_news=False)

    def changed(self, change: ImageChange, image: MetadataImage, *, now_ms: int, is_news: bool) -> None:
        """`is_news`: it happened just now. Else this node is catching up with what has happened before."""
        before, self._image = self._image, image
        since = Since(now_ms, is_news)
        for broker_id in change.brokers:
            self._broker_changed(
                broker_id, before.brokers.get(broker_id), image.brokers.get(broker_id), since
            )
        for topic in change.deleted:
            for index in topic.partitions:
                self._forget((topic.topic_id, index))
        for topic_id, partitions in change.partitions.items():
            for index, partition in partitions.items():
                self._partition_changed((topic_id, index), partition, before, since)

    def _broker_changed(
        self, broker_id: int, before: BrokerImage | None, after: BrokerImage | None, since: Since
    ) -> None:
        if after is None:
            self._brokers.pop(broker_id, None)
            return
        state = self._state(broker_id, before, after)
        known = self._brokers.get(broker_id)
        if known is None or known.state is not state:
            self._brokers[broker_id] = BrokerAbsence(state, since)

    def _state(self, broker_id: int, before: BrokerImage | None, after: BrokerImage) -> BrokerState:
        if not after.fenced:
            return BrokerState.SHUTTING_DOWN if after.in_controlled_shutdown else BrokerState.ACTIVE
        if after.in_controlled_shutdown:
            return BrokerState.SHUT_DOWN
        if before is None or before.epoch != after.epoch:
            return BrokerState.STARTING
        if not before.fenced:
            return BrokerState.FENCED
        known = self._brokers.get(broker_id)
        return known.state if known is not None else BrokerState.FENCED

    def _partition_changed(
        self, key: PartitionKey, after: PartitionImage, image_before: MetadataImage, since: Since
    ) -> None:
        if after.leader != NO_LEADER:
            self._leaderless.pop(key, None)
        else:
            self._leaderless.setdefault(key, since)
        if len(after.isr) == len(after.replicas):
            self._replicas.pop(key, None)
            return
        known = self._replicas.get(key, _NOBODY)
        absent: dict[int, ReplicaAbsence] = {}
        for broker_id in after.replicas:
            if broker_id in after.isr:
                continue
            absence = known.get(broker_id)
            if absence is None:
                absence = ReplicaAbsence(self._why(broker_id, after, image_before), since)
            absent[broker_id] = absence
        self._replicas[key] = absent

    def _why(self, broker_id: int, after: PartitionImage, image_before: MetadataImage) -> Why:
        was, now = image_before.brokers.get(broker_id), self._image.brokers.get(broker_id)
        if now is None:
            return Why.UNREGISTERED
        if now.in_controlled_shutdown:
            return Why.SHUT_DOWN
        if not now.has_online(after.directory_of(broker_id)):
            return Why.DISK_FAILED
        if was is not None and was.epoch != now.epoch:
            return Why.RESTARTED
        return Why.FENCED if now.fenced else Why.LATE

    def _forget(self, key: PartitionKey) -> None:
        self._replicas.pop(key, None)
        self._leaderless.pop(key, None)
