"""Who leads a partition, and who is in sync, after a broker came or went.

Owns the choice of a leader: from the ISR, then from the eligible leader replicas (KIP-966), then the only replica there is
(D10), then, where the topic allows it, any replica, marked as recovering because data is lost (KIP-704). Keeps I23: a
replica that leaves the ISR while that is below min.insync.replicas goes to the ELR unless its disk may have lost data.
Returns a record with what changes, or None; it changes nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Final

from tidelog.controller.image import (
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
    ResourceType,
    TopicImage,
)
from tidelog.controller.metadata_records import NO_LEADER, PartitionChangeRecord

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION: Final = "unclean.leader.election.enable"

_NOBODY: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """What holds for one topic, and which brokers may lead now."""

    is_active: Callable[[int], bool]
    min_insync_replicas: int = 1
    unclean_allowed: bool = False


def topic_setting(image: MetadataImage, topic: str, name: str, default: str) -> str:
    """A setting whose broker-side name is the same: the topic's own value, that of all brokers, or the default."""
    own = image.config(ResourceType.TOPIC, topic).get(name)
    return own if own is not None else image.broker_defaults.get(name, default)


def rules_for(
    image: MetadataImage, topic: str, is_active: Callable[[int], bool], *, min_isr: int, unclean: bool
) -> ElectionRules:
    """`min_isr` and `unclean` are what the server's own configuration says."""
    return ElectionRules(
        is_active,
        int(topic_setting(image, topic, MIN_INSYNC_REPLICAS, str(min_isr))),
        topic_setting(image, topic, UNCLEAN_LEADER_ELECTION, str(unclean)).lower() == "true",
    )


def partition_change(
    topic: TopicImage,
    index: int,
    rules: ElectionRules,
    *,
    leaving: Set[int] = _NOBODY,
    lossy: Set[int] = _NOBODY,
) -> PartitionChangeRecord | None:
    """What must be written when the brokers in `leaving` leave the ISR; those in `lossy` leave the ELR as well."""
    before = topic.partitions[index]
    isr = tuple(broker for broker in before.isr if broker not in leaving and broker not in lossy)
    elr = _next_elr(before, isr, rules, lossy)
    leader, unclean = _elect(before, isr, elr, rules)
    if leader != NO_LEADER and leader not in isr:
        isr = (leader,)
        elr = () if unclean else _next_elr(before, isr, rules, lossy)
    last_known = _next_last_known(before, isr, rules)
    record = PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id)
    if isr != before.isr:
        record.isr = list(isr)
    # A leaderless partition whose leader is named again gets a new epoch, even if it is the same broker.
    if leader != before.leader:
        record.leader = leader
    if unclean and before.leader_recovery_state != LeaderRecoveryState.RECOVERING:
        record.leader_recovery_state = LeaderRecoveryState.RECOVERING
    if elr != before.elr:
        record.eligible_leader_replicas = list(elr)
    if last_known != before.last_known_elr:
        record.last_known_elr = list(last_known)
    unchanged = PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id)
    return None if record == unchanged else record


def _elect(
    partition: PartitionImage, isr: tuple[int, ...], elr: tuple[int, ...], rules: ElectionRules
) -> tuple[int, bool]:
    """The leader, and whether choosing it loses data."""
    if partition.leader in isr and rules.is_active(partition.leader):
        return partition.leader, False
    active = [broker for broker in partition.replicas if rules.is_active(broker)]
    for candidates in (isr, elr):
        for broker in active:
            if broker in candidates:
                return broker, False
    if active and len(partition.replicas) == 1:
        # Nobody could hold more than the only replica does: waiting would not bring anything back.
        return active[0], False
    if active and rules.unclean_allowed:
        return active[0], True
    return NO_LEADER, False


def _below_min(partition: PartitionImage, isr: tuple[int, ...], rules: ElectionRules) -> bool:
    return len(isr) < min(rules.min_insync_replicas, len(partition.replicas))


def _next_elr(
    before: PartitionImage, isr: tuple[int, ...], rules: ElectionRules, lossy: Set[int]
) -> tuple[int, ...]:
    if not _below_min(before, isr, rules):
        return ()
    return tuple(
        broker
        for broker in before.replicas
        if broker not in isr and broker not in lossy and (broker in before.isr or broker in before.elr)
    )


def _next_last_known(before: PartitionImage, isr: tuple[int, ...], rules: ElectionRules) -> tuple[int, ...]:
    """Where a recovery by hand or by the longest log would look, once nobody is in sync."""
    if not _below_min(before, isr, rules):
        return ()
    if isr:
        return before.last_known_elr
    once = {*before.isr, *before.elr, *before.last_known_elr}
    return tuple(broker for broker in before.replicas if broker in once)
