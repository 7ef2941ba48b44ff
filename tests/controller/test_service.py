"""The controller's runtime: pipelined, answered when committed, reverted when leadership is lost, driven by a clock that is given."""

from __future__ import annotations

import pytest

from tests.controller.service_world import Answers, ServiceWorld
from tests.controller.world import registration, topic
from tidelog.controller.controller import Controller
from tidelog.controller.image import LeaderRecoveryState, MetadataImage, PartitionImage
from tidelog.controller.metadata_records import PartitionChangeRecord
from tidelog.controller.result import ControllerResult
from tidelog.controller.service_ports import ControllerTimings
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    LeaderlessPartition,
    LeaderlessTopic,
)
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)


def create(*topics: CreatableTopic):  # type: ignore[no-untyped-def]
    return lambda controller: controller.create_topics(CreateTopicsRequest(list(topics)))


def codes(answers: Answers) -> list[int]:
    return [answer if isinstance(answer, int) else answer.topics[0].error_code for answer in answers]


@pytest.fixture
def world() -> ServiceWorld:
    world = ServiceWorld()
    world.add_brokers(1, 2, 3)
    created = world.do(
        create(
            topic("t", -1, -1, assignments={0: [1, 2, 3], 1: [2, 3, 1]}, configs={"min.insync.replicas": "2"})
        )
    )
    assert created.topics[0].error_code == E.NONE
    return world


def first(image: MetadataImage) -> PartitionImage:
    return image.topics_by_name["t"].partitions[0]


# ---- the pipeline


def test_a_new_cluster_begins_with_its_features() -> None:
    world = ServiceWorld(min_insync_replicas=2)
    assert world.service.committed_image.broker_defaults == {"min.insync.replicas": "2"}
    assert world.quorum.replayed() == world.image


def test_an_answer_waits_for_its_records_and_all_before_it(world: ServiceWorld) -> None:
    before = world.service.committed_image
    one = world.ask(create(topic("one")))
    middle = world.quorum.end_offset
    two = world.ask(create(topic("two")))
    assert (one, two) == ([], [])
    assert {"one", "two"} <= set(world.image.topics_by_name)
    assert world.service.committed_image is before
    world.commit(middle)
    assert (codes(one), two) == ([E.NONE], [])
    assert "one" in world.service.committed_image.topics_by_name
    assert "two" not in world.service.committed_image.topics_by_name
    world.commit()
    assert codes(two) == [E.NONE]
    assert world.service.committed_image == world.image == world.quorum.replayed()


def test_a_refusal_waits_for_what_it_was_decided_on(world: ServiceWorld) -> None:
    """Or somebody would hear that a topic exists which never will."""
    world.ask(create(topic("one")))
    again = world.ask(create(topic("one")))
    stale = Answers()
    world.service.heartbeat(BrokerHeartbeatRequest(1, 0), world.now, stale)
    assert (again, stale) == ([], [])
    world.commit()
    assert codes(again) == [E.TOPIC_ALREADY_EXISTS]
    assert stale == [E.STALE_BROKER_EPOCH]
    assert codes(world.ask(create(topic("one")))) == [E.TOPIC_ALREADY_EXISTS]  # nothing to wait for


def test_what_was_not_committed_is_forgotten_when_leadership_is_lost(world: ServiceWorld) -> None:
    committed = world.service.committed_image
    answers = [world.ask(create(topic(name))) for name in ("one", "two")]
    world.service.lost()
    assert answers == [[E.NOT_CONTROLLER], [E.NOT_CONTROLLER]]
    assert not world.service.is_active
    assert world.image is world.service.committed_image is committed
    assert world.ask(create(topic("three"))) == [E.NOT_CONTROLLER]
    assert world.service.tick(world.now + 100) is None
    # The next leadership begins with what the log holds then.
    world.quorum.cut(world.quorum.committed)
    world.lead()
    assert "one" not in world.image.topics_by_name
    assert codes(world.ask(create(topic("one")))) == []


def test_a_new_controller_goes_on_from_whatever_of_the_tail_was_committed(world: ServiceWorld) -> None:
    world.ask(create(topic("one")))
    kept = world.quorum.end_offset
    world.ask(create(topic("two")))
    world.service.lost()
    world.quorum.cut(kept)
    world.service = world.new_service()
    world.lead()
    assert "one" in world.image.topics_by_name
    assert "two" not in world.image.topics_by_name
    assert world.image == world.quorum.replayed()


def test_an_append_that_the_quorum_refuses_ends_the_leadership(world: ServiceWorld) -> None:
    waits = world.ask(create(topic("one")))
    world.quorum.epoch += 1
    assert world.ask(create(topic("two"))) == [E.NOT_CONTROLLER]
    assert waits == [E.NOT_CONTROLLER]
    assert not world.service.is_active


def test_a_quorum_of_one_may_commit_before_append_returns(world: ServiceWorld) -> None:
    append = world.quorum.append

    def at_once(batches, *, epoch):  # type: ignore[no-untyped-def]
        end = append(batches, epoch=epoch)
        world.commit()
        return end

    world.quorum.append = at_once  # type: ignore[method-assign]
    assert codes(world.ask(create(topic("one")))) == [E.NONE]


def test_only_so_many_may_wait_for_the_quorum_and_heartbeats_still_count(world: ServiceWorld) -> None:
    for number in range(50):
        world.ask(create(topic(f"x{number}")))
    assert world.ask(create(topic("y"))) == [E.REQUEST_TIMED_OUT]
    assert "y" not in world.image.topics_by_name
    for _ in range(10):
        world.now += 0.19
        world.service.tick(world.now)  # while the quorum is stuck nothing more is written
    refused = Answers()
    world.service.heartbeat(BrokerHeartbeatRequest(1, world.image.brokers[1].epoch), world.now, refused)
    assert refused == [E.REQUEST_TIMED_OUT]
    world.commit()
    world.now += 0.2
    world.service.tick(world.now)
    assert [broker.fenced for broker in world.image.brokers.values()] == [False, True, True]


def test_a_record_that_cannot_be_replayed_never_gets_into_the_log(world: ServiceWorld) -> None:
    """It would stop every node that reads it."""
    end, image = world.quorum.end_offset, world.image
    with pytest.raises(ValueError, match="does not exist"):
        world.ask(lambda controller: ControllerResult(None, [PartitionChangeRecord(0, b"?" * 16)]))
    assert (world.quorum.end_offset, world.image) == (end, image)
    assert codes(world.ask(create(topic("goes-on")))) == []


def test_whoever_acts_on_changes_is_told_of_each_when_it_is_committed(world: ServiceWorld) -> None:
    world.published.clear()
    world.ask(create(topic("one")))
    assert world.published == []
    world.commit()
    ((delta, image),) = world.published
    assert [created.name for created in delta.topics.created] == ["one"]
    assert image is world.service.committed_image


def test_a_transaction_that_a_dead_controller_left_open_is_ended(world: ServiceWorld) -> None:
    world.service.lost()
    world.quorum.epoch += 1
    end = world.quorum.end_offset
    world.service.lead(world.quorum.epoch, world.quorum.replayed(), world.now, torn_transaction=True)
    assert world.quorum.end_offset == end + 1


# ---- sessions


def test_a_silent_broker_is_fenced_and_the_others_are_not(world: ServiceWorld) -> None:
    world.run_until(world.now + 1.9, beating=[2, 3])
    assert not world.image.brokers[1].fenced
    world.run_until(world.now + 0.2, beating=[2, 3])
    assert [broker.fenced for broker in world.image.brokers.values()] == [True, False, False]
    assert (first(world.image).leader, first(world.image).isr) == (2, (2, 3))
    world.run_until(world.now + 10, beating=[2, 3])
    assert [broker.fenced for broker in world.image.brokers.values()] == [True, False, False]


def test_a_broker_that_is_gone_is_fenced_at_once_unless_a_heartbeat_comes_first(world: ServiceWorld) -> None:
    for broker in (1, 2):
        world.service.broker_gone(broker, world.now)
    tick = world.service.next_tick()
    assert tick is not None
    assert tick <= world.now
    world.beat(2)  # it is not
    world.service.tick(world.now)
    assert [broker.fenced for broker in world.image.brokers.values()] == [True, False, False]


def test_a_broker_that_is_fenced_by_mistake_comes_back_with_its_next_heartbeat(world: ServiceWorld) -> None:
    world.run_until(world.now + 2.1)
    assert all(broker.fenced for broker in world.image.brokers.values())
    assert not world.beat(1).is_fenced
    assert first(world.image).leader != -1 or first(world.image).elr


def test_a_controller_that_was_stopped_blames_nobody_for_it(world: ServiceWorld) -> None:
    world.run_until(world.now + 1, beating=[1, 2, 3])
    world.now += 30  # SIGSTOP; meanwhile heartbeats have piled up in sockets
    world.service.tick(world.now)
    assert not any(broker.fenced for broker in world.image.brokers.values())
    for broker in (1, 2):
        world.beat(broker)
    world.run_until(world.now + 2.1, beating=[1, 2])
    assert [broker.fenced for broker in world.image.brokers.values()] == [False, False, True]


def test_a_second_process_is_refused_while_the_first_is_heard_and_let_in_afterwards(
    world: ServiceWorld,
) -> None:
    assert world.register(1, incarnation=4) == E.DUPLICATE_BROKER_REGISTRATION
    world.service.broker_gone(1, world.now)
    world.run_until(world.now + 0.1, beating=[2, 3])
    old = world.image.brokers[1].epoch
    assert world.register(1, incarnation=4, previous_epoch=old) > old


def test_a_new_controller_lets_a_restarted_broker_in_at_once(world: ServiceWorld) -> None:
    """It has not heard the earlier run, and so has no reason to take it for alive."""
    world.service = world.new_service()
    world.lead()
    assert world.register(1, incarnation=4) > 0
    world.beat(2)
    assert world.register(2, incarnation=4) == E.DUPLICATE_BROKER_REGISTRATION


def test_a_new_controller_gives_everybody_time_to_find_it(world: ServiceWorld) -> None:
    world.now += 100
    world.service = world.new_service()
    world.lead()
    world.run_until(world.now + 1.9)
    assert not any(broker.fenced for broker in world.image.brokers.values())
    world.run_until(world.now + 0.2)
    assert all(broker.fenced for broker in world.image.brokers.values())


# ---- controlled shutdown


def test_a_broker_stops_when_the_others_know_who_leads_instead(world: ServiceWorld) -> None:
    before = world.image.offset
    answer = world.beat(1, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (False, False)
    assert first(world.image).leader == 2
    begun = world.image.offset
    world.beat(2, offset=begun)
    world.beat(3, offset=before)
    assert not world.beat(1, want_shut_down=True).should_shut_down
    world.beat(3, offset=begun)
    answer = world.beat(1, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)
    # Its next run is not kept waiting until a session has timed out.
    old = world.image.brokers[1].epoch
    assert world.register(1, incarnation=4, previous_epoch=old) > old


def test_a_shutdown_goes_on_under_another_controller(world: ServiceWorld) -> None:
    world.beat(1, want_shut_down=True)
    world.service = world.new_service()
    world.lead()
    assert not world.beat(
        1, want_shut_down=True
    ).should_shut_down  # it does not know yet what the others know
    for broker in (2, 3):
        world.beat(broker)
    assert world.beat(1, want_shut_down=True).should_shut_down


# ---- what it does by itself


def test_leaderships_go_back_after_a_while() -> None:
    world = ServiceWorld(
        timings=ControllerTimings(session_timeout_s=2, balance_interval_s=10), elections_per_balance_max=2
    )
    world.add_brokers(1, 2)
    world.do(create(topic("t", -1, -1, assignments={index: [1, 2] for index in range(5)})))
    world.beat(1, want_fence=True)
    world.beat(1)
    rejoin(world, 1)
    assert {partition.leader for _, _, partition in world.image.partitions()} == {2}
    world.run_until(world.now + 9, beating=[1, 2])
    assert {partition.leader for _, _, partition in world.image.partitions()} == {2}
    world.run_until(world.now + 2, beating=[1, 2])
    assert {partition.leader for _, _, partition in world.image.partitions()} == {1}


def rejoin(world: ServiceWorld, broker: int) -> None:
    records = [
        PartitionChangeRecord(
            index, known.topic_id, isr=[*partition.isr, broker], eligible_leader_replicas=[]
        )
        for known, index, partition in world.image.partitions()
    ]
    world.do(lambda controller: ControllerResult(None, records))


def test_an_unclean_election_that_becomes_allowed_is_held_at_once(world: ServiceWorld) -> None:
    for broker in (1, 2, 3):
        world.beat(broker, want_fence=True)
    world.beat(1)
    assert first(world.image).leader == -1
    world.run_until(world.now + 1, beating=[1])

    def allow(controller: Controller):  # type: ignore[no-untyped-def]
        change = AlterableConfig("unclean.leader.election.enable", 0, "true")
        return controller.incremental_alter_configs(
            IncrementalAlterConfigsRequest([AlterConfigsResource(2, "t", [change])])
        )

    world.do(allow)
    tick = world.service.next_tick()
    assert tick is not None
    assert tick <= world.now
    world.service.tick(world.now)
    assert first(world.image).leader == 1
    assert first(world.image).leader_recovery_state == LeaderRecoveryState.RECOVERING


def test_after_a_power_cut_the_longest_log_leads(world: ServiceWorld) -> None:
    for broker in (1, 2, 3):
        world.beat(broker, want_fence=True, want_shut_down=True)
    for broker in (1, 2, 3):
        world.register(broker, incarnation=7)
        world.beat(broker)
    partition = first(world.image)
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (-1, (), (), (2, 3))

    def log_end(end: int) -> list[LeaderlessTopic]:
        known = world.image.topics_by_name["t"]
        return [LeaderlessTopic(known.topic_id, [LeaderlessPartition(0, partition.leader_epoch, 0, end)])]

    world.beat(2, leaderless_log_ends=log_end(10))
    assert first(world.image).leader == -1
    world.beat(3, leaderless_log_ends=log_end(11))
    assert (first(world.image).leader, first(world.image).isr) == (3, (3,))
    assert first(world.image).leader_recovery_state == LeaderRecoveryState.RECOVERING


def test_after_a_power_cut_those_who_never_return_are_not_waited_for_forever(world: ServiceWorld) -> None:
    for broker in (1, 2, 3):
        world.beat(broker, want_fence=True, want_shut_down=True)
    for broker in (2, 3):
        world.register(broker, incarnation=7)
    world.beat(2)
    partition = first(world.image)
    known = world.image.topics_by_name["t"]
    ends = [LeaderlessTopic(known.topic_id, [LeaderlessPartition(0, partition.leader_epoch, 0, 5)])]
    world.beat(2, leaderless_log_ends=ends)
    wait_s = ControllerTimings().last_known_wait_s
    world.run_until(world.now + wait_s - 0.1, beating=[2])
    assert first(world.image).leader == -1
    world.run_until(world.now + 0.2, beating=[2])
    assert first(world.image).leader == 2


def test_registration_epochs_are_offsets_of_the_log(world: ServiceWorld) -> None:
    world.ask(create(topic("one")))
    answers = Answers()
    offset = world.quorum.end_offset
    world.service.register_broker(registration(4), world.now, answers)
    world.commit()
    assert answers[0].broker_epoch == offset == world.image.brokers[4].epoch
