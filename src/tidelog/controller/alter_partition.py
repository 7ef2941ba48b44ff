"""AlterPartition: the leader of a partition proposes who is in sync (KIP-497).

Owns the comparison of epochs that makes it safe: the proposal must come from the current run of the broker that leads, speak of the
partition as it is now (leader epoch, partition epoch), and name brokers that may be in an ISR: registered, neither fenced nor shutting
down (KIP-841), in the run whose fetches the leader has seen (KIP-903). Keeps I22 on the controller's side; that a replica has caught up
is for the leader to know. The order of the checks is Kafka's, because the first that fails decides the answer.
"""

from __future__ import annotations

from tidelog.controller.broker_states import current_broker
from tidelog.controller.elections import ElectionRules, partition_change, rules_for
from tidelog.controller.image import (
    BrokerImage,
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidelog.controller.metadata_records import PartitionChangeRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.partition_image import merged
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)

UNCHECKED_EPOCH = -1
"""Stands for a broker epoch that the leader does not know: it is not compared."""


def alter_partition(
    image: MetadataImage, request: AlterPartitionRequest, settings: ControllerSettings
) -> ControllerResult[AlterPartitionResponse]:
    """RequestError when the sender is not the current run of its broker; else an answer for each partition."""
    current_broker(image, request.broker_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    response = AlterPartitionResponse()
    seen: set[tuple[bytes, int]] = set()
    for asked in request.topics:
        answer = ResponseTopicData(asked.topic_id)
        response.topics.append(answer)
        topic = image.topic_by_id(asked.topic_id)
        rules = None if topic is None else rules_for(image, topic.name, settings)
        for proposal in asked.partitions:
            index = proposal.partition_index
            if topic is None or rules is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            elif (asked.topic_id, index) in seen:
                code = ErrorCode.INVALID_REQUEST  # the first has changed what this one speaks of
            else:
                code = _problem(image, request.broker_id, topic.partitions.get(index), proposal)
            seen.add((asked.topic_id, index))
            if code != ErrorCode.NONE or topic is None or rules is None:
                answer.partitions.append(ResponsePartitionData(index, code))
            else:
                answer.partitions.append(_accept(topic, rules, proposal, records))
    return ControllerResult(response, records)


def _members(proposal: RequestPartitionData) -> list[BrokerState]:
    """Version 2 names brokers without their epochs."""
    return proposal.new_isr_with_epochs or [
        BrokerState(broker, UNCHECKED_EPOCH) for broker in proposal.new_isr
    ]


def _problem(
    image: MetadataImage, sender: int, partition: PartitionImage | None, proposal: RequestPartitionData
) -> ErrorCode:
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        # The leader knows more than this node, which is then hardly the active controller any more.
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if proposal.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = _members(proposal)
    if not _well_formed(partition, [member.broker_id for member in members], proposal.leader_recovery_state):
        return ErrorCode.INVALID_REQUEST
    for member in members:
        broker = image.brokers.get(member.broker_id)
        if is_out_of_service(broker) or is_another_run(broker, member.broker_epoch):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _well_formed(partition: PartitionImage, isr: list[int], recovery_state: int) -> bool:
    """A set of replicas with the leader in it; the leader alone as long as it recovers (KIP-704), which it begins only by an election."""
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas) or partition.leader not in isr:
        return False
    if recovery_state == LeaderRecoveryState.RECOVERING:
        return len(isr) == 1 and partition.leader_recovery_state == LeaderRecoveryState.RECOVERING
    return recovery_state == LeaderRecoveryState.RECOVERED


def is_out_of_service(broker: BrokerImage | None) -> bool:
    return broker is None or not broker.active


def is_another_run(broker: BrokerImage | None, epoch: int) -> bool:
    """The leader has seen fetches of another run of the broker, which may have had another disk (KIP-903)."""
    return broker is None or epoch not in (UNCHECKED_EPOCH, broker.epoch)


def _accept(
    topic: TopicImage, rules: ElectionRules, proposal: RequestPartitionData, records: list[MetadataRecord]
) -> ResponsePartitionData:
    index = proposal.partition_index
    partition = topic.partitions[index]
    isr = [member.broker_id for member in _members(proposal)]
    record = partition_change(topic, index, rules, isr=isr, recovery_state=proposal.leader_recovery_state)
    if record is None:
        # The ISR as it is: the leader takes back what it has proposed and may have sent more than once. The partition epoch rises, and what is still under way comes too late.
        record = PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id)
    records.append(record)
    partition = merged(partition, record)
    return ResponsePartitionData(
        index,
        ErrorCode.NONE,
        partition.leader,
        partition.leader_epoch,
        list(partition.isr),
        partition.leader_recovery_state,
        partition.partition_epoch,
    )
