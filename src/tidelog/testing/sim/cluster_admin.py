"""The administrator of a simulated cluster: makes topics, again and again until they are there; moves leaders; lets a topic come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.testing.sim.cluster_clients import SimClient
from tidelog.testing.sim.cluster_messages import Admin
from tidelog.testing.sim.cluster_shape import TopicShape
from tidelog.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_world import ClusterWorld

CHURN = "churn"


class SimAdmin(SimClient):
    def __init__(self, world: ClusterWorld, own_id: int) -> None:
        super().__init__(world, own_id)
        self._churn_until = world.shape.seconds
        self.process.call_later(0.5, self._look)
        if world.shape.churn:
            self.process.call_later(3.0 + self.rng.random() * 3, self._churn)

    def ask_anybody(self, request: Any) -> None:
        self.ask(self.anybody(), Admin(request), lambda answer: None)

    def _look(self) -> None:
        """What is missing is asked for."""
        image = self.world.truth.image
        shape = self.world.shape
        wanted = [topic for topic in (*shape.topics, shape.offsets) if image.topic(topic.name) is None]
        alive = sum(not broker.fenced for broker in image.brokers.values())
        ready = [topic for topic in wanted if alive >= topic.replication]
        if ready:
            self._create(ready)
        if wanted:
            self.process.call_later(0.3, self._look)

    def _create(self, topics: list[TopicShape]) -> None:
        segment_bytes = str(self.world.shape.segment_bytes)
        configs = [
            CreatableTopicConfig("internal.segment.bytes", segment_bytes),
            CreatableTopicConfig("index.interval.bytes", "200"),
            CreatableTopicConfig("retention.ms", "-1"),
            CreatableTopicConfig("message.timestamp.after.max.ms", str(1 << 50)),
        ]
        self.ask_anybody(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(each.name, each.partitions, each.replication, configs=list(configs))
                    for each in topics
                ]
            )
        )

    def _churn(self) -> None:
        """A topic that is made, deleted and made again, while some of its brokers are away."""
        if self.now > self._churn_until - 5:
            return
        brokers = len(self.world.shape.brokers)
        if self.world.truth.image.topic(CHURN) is None:
            self._create([TopicShape(CHURN, 1 + self.rng.randrange(2), min(3, brokers))])
        else:
            self.world.sometimes("topic deletion asked for")
            self.ask_anybody(DeleteTopicsRequest(topics=[DeleteTopicState(name=CHURN)]))
        self.process.call_later(1.0 + self.rng.random() * 5, self._churn)
