"""Heartbeats, step by step: from fenced to active to stopped. The answers are those of Kafka 4.3.1's controller."""

from __future__ import annotations

import pytest

from tests.controller.world import World, topic
from tidelog.controller.heartbeats import ShutdownProgress
from tidelog.controller.image import LeaderRecoveryState
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest

Said = tuple[bool, bool, bool]
"""Is caught up, is fenced, should shut down."""


def beat(
    world: World,
    broker: int,
    *,
    offset: int = 10**6,
    fence: bool = False,
    stop: bool = False,
    progress: ShutdownProgress | None = None,
) -> Said:
    request = BrokerHeartbeatRequest(broker, world.image.brokers[broker].epoch, offset, fence, stop)
    response = world.do(world.controller.broker_heartbeat(request, progress or ShutdownProgress()))
    assert response.error_code == E.NONE
    broker_image = world.image.brokers[broker]
    assert response.is_fenced == broker_image.fenced
    return response.is_caught_up, response.is_fenced, response.should_shut_down


@pytest.fixture
def world() -> World:
    world = World()
    for broker in (1, 2, 3):
        world.add_broker(broker, unfence=False)
        assert beat(world, broker) == (True, False, False)
    world.create(
        topic("t", -1, -1, assignments={0: [1, 2, 3], 1: [2, 3, 1]}, configs={"min.insync.replicas": "2"})
    )
    return world


def test_a_broker_is_fenced_until_it_has_seen_its_own_registration() -> None:
    world = World()
    epoch = world.add_broker(1, unfence=False)
    assert beat(world, 1, offset=epoch - 1) == (False, True, False)
    assert beat(world, 1, offset=epoch, fence=True) == (True, True, False)
    assert beat(world, 1, offset=epoch) == (True, False, False)
    before = world.image
    assert beat(world, 1, offset=epoch) == (True, False, False)
    assert world.image is before


def test_a_fenced_broker_may_stop_at_once() -> None:
    world = World()
    world.add_broker(1, unfence=False)
    before = world.image
    assert beat(world, 1, stop=True) == (True, True, True)
    assert world.image is before


def test_a_broker_is_fenced_when_it_wants_to_be(world: World) -> None:
    assert beat(world, 1, fence=True) == (True, True, False)
    assert world.image.topics_by_name["t"].partitions[0].leader == 2


def test_a_broker_that_leads_nothing_may_stop_at_once(world: World) -> None:
    assert beat(world, 3, stop=True) == (True, True, True)
    assert all(3 not in partition.isr for _, _, partition in world.image.partitions())


def test_who_wants_to_be_fenced_and_to_stop_does_not_wait_for_the_others(world: World) -> None:
    assert beat(world, 1, fence=True, stop=True) == (True, True, True)


def test_a_leader_stops_in_steps(world: World) -> None:
    """Its leaderships go first; it goes when every active broker knows of it."""
    assert beat(world, 1, stop=True) == (True, False, False)
    broker = world.image.brokers[1]
    assert (broker.fenced, broker.in_controlled_shutdown) == (False, True)
    partition = world.image.topics_by_name["t"].partitions[0]
    assert (partition.leader, partition.isr) == (2, (2, 3))
    begun = world.image.offset
    assert beat(world, 1, stop=True, progress=ShutdownProgress(None, 5)) == (True, False, False)
    assert beat(world, 1, stop=True, progress=ShutdownProgress(begun, begun - 1)) == (True, False, False)
    assert beat(world, 1, stop=True, progress=ShutdownProgress(begun, begun)) == (True, True, True)
    assert world.image.brokers[1].fenced


def test_the_last_broker_need_not_wait_for_anybody(world: World) -> None:
    for broker in (2, 3):
        beat(world, broker, fence=True)
    assert beat(world, 1, stop=True) == (True, False, False)
    partition = world.image.topics_by_name["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.elr) == (-1, (), (1, 3))
    assert beat(world, 1, stop=True, progress=ShutdownProgress(world.image.offset, None)) == (
        True,
        True,
        True,
    )


def test_what_a_clean_stop_leaves_is_led_again_by_whoever_returns(world: World) -> None:
    for broker in (3, 2, 1):
        beat(world, broker, stop=True)
        beat(world, broker, stop=True, progress=ShutdownProgress(0, None))
    assert {partition.leader for _, _, partition in world.image.partitions()} == {-1}
    world.add_broker(1, incarnation=8, previous_epoch=world.image.brokers[1].epoch)
    for _, _, partition in world.image.partitions():
        assert (partition.leader, partition.isr) == (1, (1,))
        assert partition.leader_recovery_state == LeaderRecoveryState.RECOVERED


def test_an_unknown_broker_and_an_earlier_run_must_register(world: World) -> None:
    for broker, epoch in ((9, 5), (1, world.image.brokers[1].epoch - 1)):
        with pytest.raises(RequestError) as caught:
            world.controller.broker_heartbeat(BrokerHeartbeatRequest(broker, epoch))
        assert caught.value.code == E.STALE_BROKER_EPOCH
