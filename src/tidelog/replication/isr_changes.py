"""Carries proposals for the ISR to the controller (AlterPartition) and its answers back: one request at a time, for all partitions.

A proposal whose fate is not known is asked again: the partition epoch makes that harmless, since one that was applied is refused the
second time, and the metadata that it changed is on its way; and the ISR is told of it, because a refusal then settles nothing (`isr`). It decides nothing about the ISR.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.ports import Clock, Peers, Scheduler
from tidelog.replication.fetch_asking import Key
from tidelog.replication.isr import NOT_DONE, IsrAnswer, Proposal
from tidelog.replication.partition import Partition
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)

RETRY_S: Final = 0.05
TIMEOUT_S: Final = 2.0
_TRY_AGAIN: Final = frozenset(
    (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR)
)


class IsrChanges:
    """Implements `leader.Proposals`."""

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        controller_id: Callable[[], int | None],
        peers: Peers,
        scheduler: Scheduler,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._controller_id = controller_id
        self._peers = peers
        self._scheduler = scheduler
        self._clock = clock
        self._waiting: dict[Key, tuple[Partition, Proposal]] = {}
        self._in_flight: dict[Key, tuple[Partition, Proposal]] | None = None
        self._scheduled = False

    def propose(self, partition: Partition, proposal: Proposal, /) -> None:
        self._waiting[Key(proposal.topic_id, proposal.partition)] = (partition, proposal)
        self._schedule(0.0)

    def _schedule(self, delay: float) -> None:
        if not self._scheduled and self._in_flight is None:
            self._scheduled = True
            if delay:
                self._scheduler.call_later(delay, self._send)
            else:
                self._scheduler.call_soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        self._waiting = {key: wanted for key, wanted in self._waiting.items() if _is_pending(*wanted)}
        if self._in_flight is not None or not self._waiting:
            return
        controller_id = self._controller_id()
        if controller_id is None:
            self._schedule(RETRY_S)
            return
        self._in_flight, self._waiting = self._waiting, {}
        request = AlterPartitionRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        topics: dict[bytes, RequestTopicData] = {}
        for _, proposal in self._in_flight.values():
            topic = topics.setdefault(proposal.topic_id, RequestTopicData(topic_id=proposal.topic_id))
            topic.partitions.append(_wire_form(proposal))
        request.topics = list(topics.values())
        self._peers.ask(controller_id, request, self._answered, timeout_s=TIMEOUT_S)

    def _answered(self, response: AlterPartitionResponse | None) -> None:
        asked, self._in_flight = self._in_flight, None
        assert asked is not None
        answers = {} if response is None else _answers(response)
        now = self._clock.monotonic()
        for key, (partition, proposal) in asked.items():
            answer = answers.get(key)
            if answer is None or answer.error in _TRY_AGAIN:
                partition.isr_unanswered(proposal)
                self._waiting.setdefault(key, (partition, proposal))
            else:
                partition.isr_answered(proposal, answer, now=now)
                if answer.error in NOT_DONE and _is_pending(partition, proposal):
                    self._waiting.setdefault(key, (partition, proposal))
        if self._waiting:
            self._schedule(RETRY_S)


def _is_pending(partition: Partition, proposal: Proposal) -> bool:
    return partition.leader is not None and partition.leader.isr.pending is proposal


def _wire_form(proposal: Proposal) -> RequestPartitionData:
    return RequestPartitionData(
        partition_index=proposal.partition,
        leader_epoch=proposal.leader_epoch,
        new_isr=list(proposal.broker_ids),
        new_isr_with_epochs=[BrokerState(member.broker_id, member.broker_epoch) for member in proposal.isr],
        partition_epoch=proposal.partition_epoch,
    )


def _answers(response: AlterPartitionResponse) -> dict[Key, IsrAnswer]:
    """Nothing, if the request as a whole was refused: it is asked again, of whoever is the controller then."""
    if response.error_code != ErrorCode.NONE:
        return {}
    return {
        Key(topic.topic_id, partition.partition_index): _answer(partition)
        for topic in response.topics
        for partition in topic.partitions
    }


def _answer(partition: ResponsePartitionData) -> IsrAnswer:
    return IsrAnswer(
        ErrorCode(partition.error_code),
        partition.leader_epoch,
        partition.partition_epoch,
        tuple(partition.isr),
    )
