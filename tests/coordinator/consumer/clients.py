"""Consumers as their libraries behave, on the other side of a network that loses and delays.

Two kinds, by what they do when they cannot know whether a heartbeat arrived. Kafka's own library says everything anew. librdkafka says only
what it has not said, and confirms an assignment only when it is told one.

Both act on what they were told before they say what they own. A consumer that did not could take a partition after it has said that it has
it not, when that was taken for a confirmation and the answer was lost: the protocol cannot tell the two apart, Kafka's no better than ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tests.coordinator.consumer.world import GROUP, World
from tidelog.coordinator.group.world import Client
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

Owned = frozenset[tuple[bytes, int]]
BEGIN_ANEW = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
}
TRY_AGAIN = {ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.NOT_COORDINATOR}


class Library(Enum):
    JAVA = "says everything anew after a failure"
    LIBRDKAFKA = "says only what is new"


class Network(Enum):
    DELIVERS = "both ways"
    LOSES_REQUEST = "the coordinator never sees it"
    LOSES_ANSWER = "the coordinator has acted, and the client does not know"
    DELAYS_ANSWER = "the answer comes later, or never"


@dataclass(eq=False)
class Consumer:
    world: World
    member_id: str
    library: Library = Library.JAVA
    instance_id: str | None = None
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    rebalance_timeout_ms: int = 20_000
    epoch: int = 0
    owned: Owned = frozenset()
    """What it reads."""
    target: Owned | None = None
    """What it was told and has not acted on yet."""
    alive: bool = True
    late: ConsumerGroupHeartbeatResponse | None = None
    _reported: Owned | None = None  # what it last said it owns; None: it must say everything
    _must_confirm: bool = False
    _in_flight: tuple[frozenset[str], str] | None = None  # the subscription that the request on its way says
    _heard: tuple[frozenset[str], str] | None = None  # the one that was answered

    def subscribe(self, topics: frozenset[str], pattern: str = "") -> None:
        self.topics, self.pattern = topics, pattern

    def act(self) -> None:
        """Give up what is not in the target, take what is."""
        if self.target is not None and self.alive:
            self.owned, self.target = self.target, None
            self._must_confirm = True

    def heartbeat(self, network: Network = Network.DELIVERS) -> None:
        """One in flight: a delayed answer that has not come yet is given up."""
        if not self.alive:
            return
        if self.late is not None:
            self.late = None
            self._on_failure()
        request = self._request()
        if network is Network.LOSES_REQUEST:
            self._on_failure()
            return
        response = self.world.send(request, Client(f"client-{self.member_id}", "10.0.0.1", 1))
        if network is Network.LOSES_ANSWER:
            self._on_failure()
        elif network is Network.DELAYS_ANSWER:
            self.late = response
        else:
            self._on_answer(response)

    def receive_late(self) -> None:
        if self.late is not None and self.alive:
            response, self.late = self.late, None
            self._on_answer(response)

    def leave(self, *, for_now: bool = False) -> None:
        """It gives everything up before it says so, and does not wait for an answer."""
        self.owned, self.alive = frozenset(), False
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=-2 if for_now else -1,
            instance_id=self.instance_id,
        )
        self.world.send(request, Client(f"client-{self.member_id}", "10.0.0.1", 1))

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance_id
        )
        is_full = self.epoch == 0 or (self.library is Library.JAVA and self._reported is None)
        if is_full:
            request.rebalance_timeout_ms = self.rebalance_timeout_ms
        self._in_flight = None
        if is_full or self._heard != (self.topics, self.pattern):
            self._in_flight = self.topics, self.pattern
            request.subscribed_topic_names = sorted(self.topics)
            request.subscribed_topic_regex = self.pattern
        says_owned = is_full or (
            self._reported != self.owned if self.library is Library.JAVA else self._must_confirm
        )
        if says_owned:
            self.act()
            request.topic_partitions = _listed(self.owned)
            self._reported = self.owned
            self._must_confirm = False
        return request

    def _on_failure(self) -> None:
        self._reported = None

    def _on_answer(self, response: ConsumerGroupHeartbeatResponse) -> None:
        if response.error_code in BEGIN_ANEW:
            self.epoch, self.owned, self.target = 0, frozenset(), None
            return
        if response.error_code in TRY_AGAIN:
            self._on_failure()
            return
        if response.error_code == ErrorCode.FENCED_INSTANCE_ID:
            self.owned, self.alive = frozenset(), False
            return
        assert response.error_code == 0, response
        assert response.member_id == self.member_id
        self.epoch = response.member_epoch
        self._heard = self._in_flight or self._heard
        if response.assignment is not None:
            self.target = frozenset(
                (topic.topic_id, partition)
                for topic in response.assignment.topic_partitions
                for partition in topic.partitions
            )


def _listed(owned: Owned) -> list[TopicPartitions]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(owned):
        by_topic.setdefault(topic_id, []).append(partition)
    return [
        TopicPartitions(topic_id=topic_id, partitions=partitions) for topic_id, partitions in by_topic.items()
    ]
