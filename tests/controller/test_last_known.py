"""Nobody in sync is left: the longest log among those who were last in sync leads, and that is told (D10)."""

from __future__ import annotations

from tests.controller.test_brokers import first, three_brokers
from tests.controller.world import World
from tidelog.controller.image import LeaderRecoveryState
from tidelog.controller.last_known import LastKnownLogs, Survivor
from tidelog.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    LeaderlessPartition,
    LeaderlessTopic,
)
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest

WAIT_S = 5


def after_a_power_cut(*back: int) -> World:
    """Everybody stopped at once and lost what was not on disk; those in `back` are there again."""
    world = three_brokers()
    for broker in (1, 2, 3):
        world.do(world.controller.fence_broker(broker))
    for broker in (1, 2, 3):
        world.add_broker(broker, incarnation=9, unfence=broker in back)
    partition = first(world)
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (-1, (), (), (2, 3))
    return world


def report(
    world: World, broker: int, epoch: int, end: int, *, leader_epoch: int | None = None
) -> BrokerHeartbeatRequest:
    known = world.image.topics_by_name["t"]
    if leader_epoch is None:
        leader_epoch = known.partitions[0].leader_epoch
    said = LeaderlessTopic(known.topic_id, [LeaderlessPartition(0, leader_epoch, epoch, end)])
    return BrokerHeartbeatRequest(broker, world.image.brokers[broker].epoch, leaderless_log_ends=[said])


def chosen(logs: LastKnownLogs, world: World, now: float) -> list[int]:
    return [survivor.broker_id for survivor in logs.survivors(world.image, now)]


def test_when_all_have_told_the_later_epoch_and_then_the_longer_log_leads() -> None:
    for ends, winner in (
        ({2: (4, 100), 3: (5, 7)}, 3),
        ({2: (4, 100), 3: (4, 99)}, 2),
        ({2: (4, 100), 3: (4, 100)}, 2),  # the preferred one
    ):
        world = after_a_power_cut(1, 2, 3)
        logs = LastKnownLogs(WAIT_S)
        logs.report(world.image, report(world, 2, *ends[2]), 10)
        assert chosen(logs, world, 10) == []
        logs.report(
            world.image, report(world, 1, 9, 1000), 10
        )  # was never counted: nothing that it has matters
        assert chosen(logs, world, 10) == []
        logs.report(world.image, report(world, 3, *ends[3]), 11)
        survivors = logs.survivors(world.image, 11)
        assert survivors == [Survivor(world.image.topics_by_name["t"].topic_id, 0, winner)]
        world.do(world.controller.elect_survivors(survivors))
        partition = first(world)
        assert (partition.leader, partition.isr, partition.elr) == (winner, (winner,), ())
        assert partition.last_known_elr == ()
        assert partition.leader_recovery_state == LeaderRecoveryState.RECOVERING
        assert chosen(logs, world, 12) == []
        assert logs.next_deadline(12) is None


def test_those_who_do_not_come_back_are_waited_for_only_so_long() -> None:
    world = after_a_power_cut(3)
    logs = LastKnownLogs(WAIT_S)
    logs.report(world.image, report(world, 3, 4, 10), 10)
    assert logs.next_deadline(10) == 10 + WAIT_S
    assert chosen(logs, world, 14.9) == []
    assert chosen(logs, world, 15) == [3]


def test_who_is_unregistered_is_not_waited_for() -> None:
    world = after_a_power_cut(3)
    logs = LastKnownLogs(WAIT_S)
    logs.report(world.image, report(world, 3, 4, 10), 10)
    world.do(world.controller.unregister_broker(UnregisterBrokerRequest(2)))
    assert chosen(logs, world, 10) == [3]


def test_what_an_earlier_run_said_of_its_log_is_void() -> None:
    world = after_a_power_cut(2, 3)
    logs = LastKnownLogs(WAIT_S)
    logs.report(world.image, report(world, 2, 4, 10), 10)
    logs.report(world.image, report(world, 3, 4, 99), 10)
    world.add_broker(3, incarnation=20)
    assert chosen(logs, world, 10) == []
    assert chosen(logs, world, 20) == [2]


def test_a_fenced_broker_does_not_lead_by_its_log() -> None:
    world = after_a_power_cut(2)
    logs = LastKnownLogs(WAIT_S)
    logs.report(world.image, report(world, 3, 4, 99), 10)
    assert chosen(logs, world, 30) == []
    assert logs.next_deadline(30) is None  # not a moment is waited for, but a broker
    logs.report(world.image, report(world, 2, 4, 10), 31)
    assert chosen(logs, world, 31) == [2]


def test_what_is_said_of_another_leader_epoch_or_of_a_partition_with_a_leader_is_void() -> None:
    world = after_a_power_cut(2, 3)
    logs = LastKnownLogs(WAIT_S)
    logs.report(world.image, report(world, 2, 4, 10, leader_epoch=first(world).leader_epoch - 1), 10)
    assert chosen(logs, world, 30) == []
    healthy = three_brokers()
    logs.report(healthy.image, report(healthy, 2, 4, 10), 10)
    assert chosen(logs, healthy, 30) == []
    assert logs.next_deadline(0) is None


def test_nobody_leads_by_its_log_while_somebody_in_sync_may_come_back() -> None:
    world = three_brokers()
    for broker in (1, 2, 3):
        world.do(world.controller.fence_broker(broker))
    world.add_broker(3, incarnation=9)  # 2 is still eligible
    assert (first(world).elr, first(world).last_known_elr) == ((2,), (2, 3))
    logs = LastKnownLogs(WAIT_S)
    logs.report(world.image, report(world, 3, 4, 10), 10)
    assert chosen(logs, world, 99) == []
