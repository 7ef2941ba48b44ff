"""What must hold of a cluster's metadata after every step, as small named checks. Each says the number of the promise it is about.

Two kinds: `check_image` looks at one image, `check_change` at two that follow each other in the log. What brokers really hold is the
model's to know (`cluster_model`).
"""

from __future__ import annotations

from tidelog.controller.alter_partition import UNCHECKED_EPOCH
from tidelog.controller.elections import rules_for
from tidelog.controller.image import LeaderRecoveryState, MetadataImage, PartitionImage
from tidelog.controller.last_known import is_abandoned
from tidelog.controller.result import ControllerSettings
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


class Violation(AssertionError):
    """The controller broke a promise."""


def require(holds: bool, promise: str, what: object) -> None:
    if not holds:
        raise Violation(f"{promise}: {what}")


def check_image(image: MetadataImage, settings: ControllerSettings) -> None:
    require(image.partition_count == sum(1 for _ in image.partitions()), "the count is right", image)
    for topic, index, partition in image.partitions():
        where = f"{topic.name}-{index} is {partition}"
        isr, elr = set(partition.isr), set(partition.elr)
        replicas = set(partition.replicas)
        require(isr <= replicas and len(isr) == len(partition.isr), "the ISR is a set of replicas", where)
        require(elr | set(partition.last_known_elr) <= replicas, "the ELR is a set of replicas", where)
        require(not isr & elr, "ELR ∩ ISR = ∅ (I23)", where)
        require(partition.leader == -1 or partition.leader in isr, "the leader is in the ISR", where)
        # With eligible leader replicas an ISR may be empty: nobody out of service needs to stay in one.
        for broker in partition.isr:
            known = image.brokers.get(broker)
            require(known is not None and known.active, "no fenced broker in an ISR (I22)", where)
        minimum = min(rules_for(image, topic.name, settings).min_insync_replicas, len(replicas))
        require(not elr or len(isr) < minimum, "|ISR| ≥ min.isr ⇒ ELR = ∅ (I23)", f"{where}, min {minimum}")
        require(bool(isr) or partition.leader == -1, "nobody leads an empty ISR", where)
        require(bool(isr | elr | set(partition.last_known_elr)), "somebody can be waited for (D10)", where)
        recovering = partition.leader_recovery_state == LeaderRecoveryState.RECOVERING
        require(not recovering or len(isr) <= 1, "a recovering leader is alone (H9)", where)


def check_change(
    before: MetadataImage, after: MetadataImage, settings: ControllerSettings, *, by_hand: bool
) -> None:
    """`by_hand`: somebody asked for unclean elections."""
    for broker_id, broker in after.brokers.items():
        known = before.brokers.get(broker_id)
        require(known is None or broker.epoch >= known.epoch, "broker epochs rise", broker)
    for topic, index, now in after.partitions():
        was = before.partition(topic.name, index)
        if was is None or was is now or before.topics_by_name[topic.name].topic_id != topic.topic_id:
            continue
        where = f"{topic.name}-{index} was {was} and is {now}"
        require(now.partition_epoch > was.partition_epoch, "every change has a partition epoch", where)
        require(now.leader_epoch >= was.leader_epoch, "leader epochs never go back", where)
        if now.leader != was.leader:
            require(now.leader_epoch > was.leader_epoch, "every leadership has an epoch (I10)", where)
        if now.leader not in (-1, was.leader):
            _check_election(
                was, now, rules_for(after, topic.name, settings).unclean_allowed or by_hand, where
            )


def check_accepted(
    image: MetadataImage, request: AlterPartitionRequest, response: AlterPartitionResponse
) -> None:
    """A proposal that was accepted on this image: it spoke of the partition as it was, and of brokers as they are."""
    for asked, answered in zip(request.topics, response.topics, strict=True):
        for proposal, answer in zip(asked.partitions, answered.partitions, strict=True):
            if answer.error_code != ErrorCode.NONE:
                continue
            partition = image.topics_by_id[asked.topic_id].partitions[proposal.partition_index]
            epochs = (proposal.leader_epoch, proposal.partition_epoch)
            current = (partition.leader_epoch, partition.partition_epoch)
            require(epochs == current, "an ISR changes only as it was known (H4)", (proposal, partition))
            for member in proposal.new_isr_with_epochs:
                broker = image.brokers[member.broker_id]
                require(broker.active, "no fenced broker joins (I22)", (proposal, broker))
                stays = member.broker_id in partition.isr and member.broker_epoch == UNCHECKED_EPOCH
                known = stays or broker.epoch == member.broker_epoch
                require(known, "no earlier run joins (I22)", (proposal, broker))


def _check_election(was: PartitionImage, now: PartitionImage, unclean_allowed: bool, where: str) -> None:
    if now.leader in was.isr or now.leader in was.elr or len(was.replicas) == 1:
        return
    allowed = unclean_allowed or (is_abandoned(was) and now.leader in was.last_known_elr)
    require(allowed, "nobody outside ISR and ELR leads unless that is allowed (I19)", where)
    marked = now.leader_recovery_state == LeaderRecoveryState.RECOVERING
    require(marked, "an unclean election shows (H9)", where)
