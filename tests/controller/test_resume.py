"""The only broker of a cluster restarts: its leaderships go on, and the metadata log hardly grows."""

from __future__ import annotations

import pytest

from tests.controller.world import World, registration, topic
from tidelog.controller.metadata_records import PartitionChangeRecord
from tidelog.controller.registration_records import RegisterBrokerRecord
from tidelog.controller.result import ControllerResult
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

PARTITIONS = 40


@pytest.fixture
def world() -> World:
    world = World()
    world.add_broker(1)
    world.create(topic("orders", PARTITIONS))
    return world


def resumed(
    world: World, *, cleanly: bool, request: BrokerRegistrationRequest | None = None
) -> ControllerResult[BrokerRegistrationResponse] | None:
    return world.controller.resume_broker(
        request or registration(1, incarnation=7), next_offset=world.next_offset, stopped_cleanly=cleanly
    )


def test_after_a_clean_stop_nothing_but_the_registration_is_written(world: World) -> None:
    before = world.controller.image
    result = resumed(world, cleanly=True)
    assert result is not None
    assert [type(record) for record in result.records] == [RegisterBrokerRecord]
    epoch = world.do(result).broker_epoch
    image = world.controller.image
    broker = image.brokers[1]
    assert (broker.epoch, broker.fenced, broker.active) == (epoch, False, True)
    assert epoch > before.brokers[1].epoch
    assert image.topics_by_name == before.topics_by_name
    assert not world.controller.unfence_broker(1, epoch).records


def test_after_a_crash_every_leadership_is_a_new_one(world: World) -> None:
    """A reader that has seen what the crash took finds out by the epoch (KIP-320)."""
    result = resumed(world, cleanly=False)
    assert result is not None
    assert len(result.records) == 1 + PARTITIONS
    assert all(isinstance(record, PartitionChangeRecord) for record in result.records[1:])
    world.do(result)
    for _, _, partition in world.controller.image.partitions():
        assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 1, (1,))


@pytest.mark.parametrize("cleanly", [True, False])
def test_partitions_without_a_leader_get_one(world: World, cleanly: bool) -> None:
    """As a broker of an earlier release leaves them that was killed between its registration and its unfencing."""
    world.do(world.controller.fence_broker(1))
    assert {part.leader for _, _, part in world.controller.image.partitions()} == {-1}
    result = resumed(world, cleanly=cleanly)
    assert result is not None
    assert len(result.records) == 1 + PARTITIONS
    world.do(result)
    assert {part.leader for _, _, part in world.controller.image.partitions()} == {1}


def test_replaying_the_log_gives_the_same_image(world: World) -> None:
    for cleanly in (True, False, True):
        result = resumed(world, cleanly=cleanly)
        assert result is not None
        world.do(result)
    assert world.reread() == world.controller.image


def test_with_other_brokers_around_it_registers_like_any_other(world: World) -> None:
    world.add_broker(2)
    assert resumed(world, cleanly=True) is None


def test_a_new_broker_registers_like_any_other() -> None:
    world = World()
    assert resumed(world, cleanly=True) is None


def test_another_clusters_broker_is_refused(world: World) -> None:
    request = registration(1, incarnation=7)
    request.cluster_id = "elsewhere"
    with pytest.raises(RequestError) as refused:
        resumed(world, cleanly=True, request=request)
    assert refused.value.code == ErrorCode.INCONSISTENT_CLUSTER_ID
