"""Who leads a partition, and who is in sync, after something changed: a broker came or went, the leader proposed an ISR, a person asked.

Owns the choice of a leader: from the ISR, then from the eligible leader replicas (KIP-966), then the only replica there is
(D10), then the survivor that `last_known` chose by its log, then, where it is allowed, any replica. The last two are marked as
recovering because data is lost (KIP-704). Keeps I23: a replica that leaves the ISR while that is below min.insync.replicas goes to the ELR
unless its disk may have lost data. Returns a record with what changes, or None; it changes nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tidelog.controller.image import (
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
    ResourceType,
    TopicImage,
)
from tidelog.controller.metadata_records import NO_LEADER, PartitionChangeRecord
from tidelog.controller.result import ControllerSettings

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION: Final = "unclean.leader.election.enable"

NOBODY: Final[frozenset[int]] = frozenset()
MayLead = Callable[[int, bytes], bool]
"""Whether a broker can lead now a replica that it keeps in this log directory."""


class Election(Enum):
    ONLINE = "the leader stays if it can"
    PREFERRED = "the first replica, if it is in sync"
    UNCLEAN = "anybody, if nobody is in sync"


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """What holds for one topic, and which brokers may lead now."""

    may_lead: MayLead
    min_insync_replicas: int = 1
    unclean_allowed: bool = False


class _Chosen(NamedTuple):
    leader: int
    unclean: bool = False


def topic_setting(image: MetadataImage, topic: str, name: str, default: str) -> str:
    """A setting whose broker-side name is the same: the topic's own value, that of all brokers, or the default."""
    own = image.config(ResourceType.TOPIC, topic).get(name)
    return own if own is not None else image.broker_defaults.get(name, default)


def rules_for(
    image: MetadataImage, topic: str, settings: ControllerSettings, may_lead: MayLead | None = None
) -> ElectionRules:
    """The topic's own settings, those of all brokers, or what the server's own configuration says."""
    min_isr, unclean = settings.min_insync_replicas, settings.unclean_leader_election_enable
    return ElectionRules(
        may_lead or leaders_now(image),
        int(topic_setting(image, topic, MIN_INSYNC_REPLICAS, str(min_isr))),
        topic_setting(image, topic, UNCLEAN_LEADER_ELECTION, str(unclean)).lower() == "true",
    )


def leaders_now(image: MetadataImage, *, without: Set[int] = NOBODY, returning: int | None = None) -> MayLead:
    """Active brokers, with replicas in directories that work; `returning` is about to be unfenced."""
    active = {key: broker for key, broker in image.brokers.items() if broker.active and key not in without}
    if returning is not None:
        active[returning] = image.brokers[returning]

    def may_lead(broker: int, directory: bytes) -> bool:
        found = active.get(broker)
        return found is not None and found.has_online(directory)

    return may_lead


def partition_change(
    topic: TopicImage,
    index: int,
    rules: ElectionRules,
    *,
    isr: Sequence[int] | None = None,
    leaving: Set[int] = NOBODY,
    lossy: Set[int] = NOBODY,
    election: Election = Election.ONLINE,
    survivor: int | None = None,
    recovery_state: int | None = None,
) -> PartitionChangeRecord | None:
    """What must be written when the ISR becomes `isr` (None: stays), without the brokers in `leaving`.

    Those in `lossy` leave ISR and ELR. `survivor` leads if nobody in sync can, and `recovery_state` is what the leader says of itself.
    """
    before = topic.partitions[index]
    state = before.leader_recovery_state if recovery_state is None else recovery_state
    kept = before.isr if isr is None else tuple(isr)
    after = tuple(broker for broker in kept if broker not in leaving and broker not in lossy)
    elr = _next_elr(before, after, rules, lossy)
    last_known = _next_last_known(before, after, elr, rules)
    leader, unclean = _elect(before, after, elr, rules, election, survivor)
    if unclean:
        # What the leader holds is the truth from now on: nobody else is known to have it.
        after, elr, last_known, state = (leader,), (), (), LeaderRecoveryState.RECOVERING
    elif leader != NO_LEADER and leader not in after:
        after = (leader,)
        elr = _next_elr(before, after, rules, lossy)
        last_known = _next_last_known(before, after, elr, rules)
    found = (after, leader, state, elr, last_known)
    if found == (before.isr, before.leader, before.leader_recovery_state, before.elr, before.last_known_elr):
        return None
    record = PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id)
    if after != before.isr:
        record.isr = list(after)
    # A leaderless partition whose leader is named again gets a new epoch, even if it is the same broker.
    if leader != before.leader:
        record.leader = leader
    if state != before.leader_recovery_state:
        record.leader_recovery_state = state
    if elr != before.elr:
        record.eligible_leader_replicas = list(elr)
    if last_known != before.last_known_elr:
        record.last_known_elr = list(last_known)
    return record


def _elect(
    partition: PartitionImage,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    rules: ElectionRules,
    election: Election,
    survivor: int | None,
) -> _Chosen:
    """The leader, and whether choosing it loses data."""
    able = [
        broker
        for broker, directory in zip(partition.replicas, partition.directories, strict=True)
        if rules.may_lead(broker, directory)
    ]
    for candidates in (isr, elr):
        clean = [broker for broker in able if broker in candidates]
        if election is Election.PREFERRED and clean and clean[0] == partition.replicas[0]:
            return _Chosen(clean[0])
        if partition.leader in clean:
            return _Chosen(partition.leader)
        if clean:
            return _Chosen(clean[0])
    if able and len(partition.replicas) == 1:
        # Nobody could hold more than the only replica does: waiting would not bring anything back.
        return _Chosen(able[0])
    if survivor in able and not isr and not elr:
        return _Chosen(survivor, unclean=True)
    unclean_allowed = election is Election.UNCLEAN or (election is Election.ONLINE and rules.unclean_allowed)
    if able and unclean_allowed:
        return _Chosen(able[0], unclean=True)
    return _Chosen(NO_LEADER)


def below_min(partition: PartitionImage, isr: Sequence[int], min_insync_replicas: int) -> bool:
    """Whether the high watermark stands still with this ISR (I21)."""
    return len(isr) < min(min_insync_replicas, len(partition.replicas))


def _next_elr(
    before: PartitionImage, isr: tuple[int, ...], rules: ElectionRules, lossy: Set[int]
) -> tuple[int, ...]:
    if not below_min(before, isr, rules.min_insync_replicas):
        return ()
    return tuple(
        broker
        for broker in before.replicas
        if broker not in isr and broker not in lossy and (broker in before.isr or broker in before.elr)
    )


def _next_last_known(
    before: PartitionImage, isr: tuple[int, ...], elr: tuple[int, ...], rules: ElectionRules
) -> tuple[int, ...]:
    """Who was in sync since the ISR fell below its minimum, and may have lost data since. With an empty ISR, everybody who was.

    That is where the longest log is looked for, once nobody is in sync (`last_known`).
    """
    if not below_min(before, isr, rules.min_insync_replicas):
        return ()
    once = {*before.isr, *before.elr, *before.last_known_elr}
    if isr:
        once -= {*isr, *elr}
        once |= set(before.last_known_elr)
    return tuple(broker for broker in before.replicas if broker in once)
