"""Any sequence of commands: what the controller holds is what its log says, at every step (I18, I36)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.controller.world import World, topic
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import EMPTY_IMAGE, ResourceType
from tidelog.controller.image_records import image_to_records
from tidelog.errors import RequestError
from tidelog.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from tidelog.wire.messages.alter_configs import AlterableConfig as Replacement
from tidelog.wire.messages.alter_configs import AlterConfigsRequest
from tidelog.wire.messages.alter_configs import AlterConfigsResource as Replaced
from tidelog.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "bad name"])
BROKERS = st.integers(0, 3)
SETTINGS = st.sampled_from(["retention.ms", "cleanup.policy", "min.insync.replicas", "nope"])
VALUES = st.none() | st.sampled_from(["1", "2", "delete,compact"])


class Commands(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Small batches, so that larger changes are transactions over several.
        self.world = World(batch_records_max=6, num_partitions=2)
        self.incarnation = 0

    @rule(broker=BROKERS, clean=st.booleans(), unfence=st.booleans(), again=st.booleans())
    def register(self, broker: int, clean: bool, unfence: bool, again: bool) -> None:
        self.incarnation += not again
        known = self.world.image.brokers.get(broker)
        self.world.add_broker(
            broker,
            rack=f"r{broker % 2}",
            incarnation=self.incarnation % 200,
            previous_epoch=known.epoch if known is not None and clean else -1,
            unfence=unfence,
        )

    @precondition(lambda self: self.world.image.brokers)
    @rule(broker=BROKERS, stale=st.booleans(), what=st.sampled_from(["fence", "unfence", "shut down", "ids"]))
    def change_broker(self, broker: int, stale: bool, what: str) -> None:
        controller = self.world.controller
        known = self.world.image.brokers.get(broker)
        epoch = (known.epoch if known is not None else 0) - stale
        try:
            if what == "fence":
                self.world.do(controller.fence_broker(broker))
            elif what == "unfence":
                self.world.do(controller.unfence_broker(broker, epoch))
            elif what == "shut down":
                self.world.do(controller.begin_controlled_shutdown(broker, epoch))
            else:
                self.world.do(controller.allocate_producer_ids(AllocateProducerIdsRequest(broker, epoch)))
        except RequestError:
            assert known is None or stale

    @rule(names=st.lists(NAMES, min_size=1, max_size=3), count=st.integers(-1, 8), factor=st.integers(-1, 3))
    def create(self, names: list[str], count: int, factor: int) -> None:
        codes = self.world.create(*(topic(name, count, factor) for name in names))
        assert len(codes) == len(set(names))

    @rule(name=NAMES, by_id=st.booleans())
    def delete(self, name: str, by_id: bool) -> None:
        known = self.world.image.topic(name)
        state = (
            DeleteTopicState(None, known.topic_id) if by_id and known is not None else DeleteTopicState(name)
        )
        response = self.world.do(self.world.controller.delete_topics(DeleteTopicsRequest([], [state])))
        assert (response.responses[0].error_code == 0) == (known is not None)
        assert name not in self.world.image.topics_by_name

    @rule(name=NAMES, count=st.integers(0, 12))
    def grow(self, name: str, count: int) -> None:
        request = CreatePartitionsRequest([CreatePartitionsTopic(name, count, None)])
        self.world.do(self.world.controller.create_partitions(request))

    @rule(
        name=NAMES, key=SETTINGS, operation=st.integers(0, 3), value=VALUES, kind=st.sampled_from([2, 4, 32])
    )
    def configure(self, name: str, key: str, operation: int, value: str | None, kind: int) -> None:
        resource = "" if kind == ResourceType.BROKER else name
        request = IncrementalAlterConfigsRequest(
            [AlterConfigsResource(kind, resource, [AlterableConfig(key, operation, value)])]
        )
        # The tiny validator lets any text through here; elections read min.insync.replicas as a number.
        if key != "min.insync.replicas" or (value in ("1", "2") and operation < 2):
            self.world.do(self.world.controller.incremental_alter_configs(request))

    @rule(
        name=NAMES, values=st.dictionaries(st.sampled_from(["retention.ms", "cleanup.policy"]), st.just("1"))
    )
    def replace_configs(self, name: str, values: dict[str, str]) -> None:
        configs = [Replacement(key, value) for key, value in values.items()]
        request = AlterConfigsRequest([Replaced(ResourceType.TOPIC, name, configs)])
        self.world.do(self.world.controller.alter_configs(request))

    @invariant()
    def the_log_says_the_same(self) -> None:
        assert self.world.reread() == self.world.image

    @invariant()
    def a_snapshot_says_the_same(self) -> None:
        image = self.world.image
        delta = MetadataDelta(EMPTY_IMAGE).replay_all(image_to_records(image))
        assert delta.apply(offset=image.offset, epoch=image.epoch) == image

    @invariant()
    def the_image_holds_together(self) -> None:
        image = self.world.image
        assert image.partition_count == sum(1 for _ in image.partitions())
        assert {known.topic_id: known for known in image.topics_by_name.values()} == image.topics_by_id
        for _, _, partition in image.partitions():
            assert set(partition.isr) <= set(partition.replicas)
            assert not set(partition.isr) & set(partition.elr)
            assert partition.leader == -1 or partition.leader in partition.isr
            # KIP-841: whoever is fenced or shutting down is in no ISR, and so leads nothing.
            assert all(image.brokers[broker].active for broker in partition.isr)


Commands.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestCommands = Commands.TestCase
