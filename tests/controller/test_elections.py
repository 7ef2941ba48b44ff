"""Elections that nobody's coming or going causes, and what settings and disks have to do with who may lead."""

from __future__ import annotations

import pytest

from tests.controller.test_brokers import first, three_brokers
from tests.controller.world import World, registration, topic
from tidelog.controller.image import LeaderRecoveryState, PartitionImage
from tidelog.controller.metadata_records import PartitionChangeRecord
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest

PREFERRED, UNCLEAN = 0, 1


def elect(world: World, kind: int, named: dict[str, list[int]] | None) -> dict[str, dict[int, int]]:
    asked = None if named is None else [TopicPartitions(name, indexes) for name, indexes in named.items()]
    response = world.do(world.controller.elect_leaders(ElectLeadersRequest(kind, asked)))
    assert response.error_code == E.NONE
    return {
        found.topic: {result.partition_id: result.error_code for result in found.partition_result}
        for found in response.replica_election_results
    }


def back_in_sync(world: World, broker: int) -> None:
    """As an AlterPartition of each leader would make it, for every partition."""
    for known in world.image.topics_by_name.values():
        for index, partition in known.partitions.items():
            if broker in partition.replicas and broker not in partition.isr and partition.leader != -1:
                states = [BrokerState(member) for member in (*partition.isr, broker)]
                data = RequestPartitionData(
                    index, partition.leader_epoch, [], states, 0, partition.partition_epoch
                )
                leader = world.image.brokers[partition.leader]
                request = AlterPartitionRequest(
                    leader.broker_id, leader.epoch, [RequestTopicData(known.topic_id, [data])]
                )
                answer = world.do(world.controller.alter_partition(request))
                assert answer.topics[0].partitions[0].error_code == E.NONE


def configure(world: World, kind: int, name: str, key: str, value: str | None) -> list[object]:
    change = AlterableConfig(key, 0 if value is not None else 1, value)
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, [change])])
    result = world.controller.incremental_alter_configs(request)
    assert [answer.error_code for answer in result.response.responses] == [E.NONE]
    world.do(result)
    return list(result.records)


def all_fenced(world: World, *brokers: int) -> None:
    for broker in brokers:
        world.do(world.controller.fence_broker(broker))


# ---- ElectLeaders


def test_the_preferred_leader_leads_again_when_it_is_in_sync() -> None:
    world = three_brokers()
    assert elect(world, PREFERRED, {"t": [0, 1, 7], "nope": [0]}) == {
        "t": {0: E.ELECTION_NOT_NEEDED, 1: E.ELECTION_NOT_NEEDED, 7: E.UNKNOWN_TOPIC_OR_PARTITION},
        "nope": {0: E.UNKNOWN_TOPIC_OR_PARTITION},
    }
    world.do(world.controller.fence_broker(1))
    assert elect(world, PREFERRED, {"t": [0]}) == {"t": {0: E.PREFERRED_LEADER_NOT_AVAILABLE}}
    world.do(world.controller.unfence_broker(1, world.image.brokers[1].epoch))
    assert elect(world, PREFERRED, {"t": [0]}) == {"t": {0: E.PREFERRED_LEADER_NOT_AVAILABLE}}
    back_in_sync(world, 1)
    epoch = first(world).leader_epoch
    assert elect(world, PREFERRED, {"t": [0, 0]}) == {
        "t": {0: E.ELECTION_NOT_NEEDED}
    }  # the second of the two
    assert (first(world).leader, first(world).leader_epoch) == (1, epoch + 1)


def test_of_all_partitions_only_those_that_need_an_election_are_told() -> None:
    world = three_brokers()
    assert elect(world, PREFERRED, None) == {"t": {}}
    world.do(world.controller.fence_broker(1))
    assert elect(world, PREFERRED, None) == {"t": {0: E.PREFERRED_LEADER_NOT_AVAILABLE}}


def test_a_person_may_elect_uncleanly_whatever_the_topic_says() -> None:
    world = three_brokers()
    assert elect(world, UNCLEAN, {"t": [0]}) == {"t": {0: E.ELECTION_NOT_NEEDED}}
    all_fenced(world, 1, 2, 3)
    assert elect(world, UNCLEAN, {"t": [0]}) == {"t": {0: E.ELIGIBLE_LEADERS_NOT_AVAILABLE}}
    world.do(world.controller.unfence_broker(1, world.image.brokers[1].epoch))
    assert first(world).leader == -1
    assert elect(world, UNCLEAN, {"t": [0]}) == {"t": {0: E.NONE}}
    assert (first(world).leader, first(world).isr, first(world).elr) == (1, (1,), ())
    assert first(world).last_known_elr == ()
    assert first(world).leader_recovery_state == LeaderRecoveryState.RECOVERING


def test_there_are_two_kinds_of_elections() -> None:
    with pytest.raises(RequestError) as caught:
        elect(three_brokers(), 5, {"t": [0]})
    assert caught.value.code == E.INVALID_REQUEST


# ---- what the controller does by itself


def test_leaderships_go_back_to_preferred_replicas_a_limited_number_at_a_time() -> None:
    world = World(elections_per_balance_max=2)
    for broker in (1, 2):
        world.add_broker(broker)
    world.create(topic("t", -1, -1, assignments={index: [1, 2] for index in range(5)}))
    assert not world.controller.balance_leaders().records
    world.do(world.controller.fence_broker(1))
    world.do(world.controller.unfence_broker(1, world.image.brokers[1].epoch))
    assert not world.controller.balance_leaders().records  # not in sync yet
    back_in_sync(world, 1)
    assert [world.do(world.controller.balance_leaders()) for _ in range(4)] == [True, True, False, False]
    assert {partition.leader for _, _, partition in world.image.partitions()} == {1}


def test_unclean_elections_that_become_allowed_are_held() -> None:
    world = three_brokers()
    all_fenced(world, 1, 2, 3)
    world.do(world.controller.unfence_broker(1, world.image.brokers[1].epoch))
    assert not world.controller.elect_leaderless().records
    configure(world, 2, "t", "unclean.leader.election.enable", "true")
    assert world.do(world.controller.elect_leaderless()) is False
    assert first(world).leader == 1
    assert first(world).leader_recovery_state == LeaderRecoveryState.RECOVERING


# ---- min.insync.replicas and the ELR


def one_left(world: World) -> PartitionImage:
    all_fenced(world, 1, 2)
    assert (first(world).isr, first(world).elr) == ((3,), (2,))
    return first(world)


def test_an_isr_that_is_large_enough_for_the_new_minimum_voids_the_elr() -> None:
    world = three_brokers()
    one_left(world)
    configure(world, 2, "t", "min.insync.replicas", "1")
    assert (first(world).isr, first(world).elr, first(world).last_known_elr) == ((3,), (), ())


def test_a_raised_minimum_leaves_the_elr_as_it_is() -> None:
    world = three_brokers()
    one_left(world)
    configure(world, 2, "t", "min.insync.replicas", "3")
    assert first(world).elr == (2,)


def test_a_lowered_minimum_does_not_cost_a_leaderless_partition_its_candidates() -> None:
    """Which is what people do when brokers are gone. Kafka clears the ELR here, and nobody may lead any more."""
    world = three_brokers()
    all_fenced(world, 1, 2, 3)
    configure(world, 2, "t", "min.insync.replicas", "1")
    assert (first(world).isr, first(world).elr) == ((), (2, 3))
    world.do(world.controller.unfence_broker(2, world.image.brokers[2].epoch))
    assert (first(world).leader, first(world).isr, first(world).elr) == (2, (2,), ())


def test_the_default_of_all_brokers_counts_only_for_topics_without_a_value_of_their_own() -> None:
    world = World()
    configure(world, 4, "", "min.insync.replicas", "2")
    for broker in (1, 2):
        world.add_broker(broker)
    world.create(topic("own", -1, -1, assignments={0: [1, 2]}, configs={"min.insync.replicas": "2"}))
    world.create(topic("inherits", -1, -1, assignments={0: [1, 2]}))
    world.do(world.controller.fence_broker(2))
    assert first(world, "own").elr == first(world, "inherits").elr == (2,)
    configure(world, 4, "", "min.insync.replicas", "1")
    assert (first(world, "own").elr, first(world, "inherits").elr) == ((2,), ())
    configure(world, 2, "own", "min.insync.replicas", None)
    assert first(world, "own").elr == ()


# ---- brokers without their data


def test_a_broker_without_a_directory_it_had_is_not_lossless_whatever_it_says() -> None:
    world = three_brokers()
    all_fenced(world, 1, 2, 3)
    assert first(world).elr == (2, 3)
    request = registration(3, incarnation=5, previous_epoch=world.image.brokers[3].epoch)
    request.log_dirs = [b"another directory"[:16]]
    world.do(world.controller.register_broker(request, next_offset=world.next_offset))
    assert first(world).elr == (2,)
    assert first(world).directory_of(3) == b"another directory"[:16]


def test_an_unregistered_broker_is_in_neither_isr_nor_elr() -> None:
    world = three_brokers()
    one_left(world)
    world.do(world.controller.unregister_broker(UnregisterBrokerRequest(2)))
    assert (first(world).isr, first(world).elr, first(world).replicas) == ((3,), (), (1, 2, 3))
    assert 2 not in world.image.brokers
    world.do(world.controller.unregister_broker(UnregisterBrokerRequest(3)))
    assert (first(world).isr, first(world).elr, first(world).leader) == ((), (), -1)
    with pytest.raises(RequestError) as caught:
        world.controller.unregister_broker(UnregisterBrokerRequest(3))
    assert caught.value.code == E.BROKER_ID_NOT_REGISTERED


def test_a_broker_that_was_unregistered_returns_as_a_stranger() -> None:
    world = three_brokers()
    all_fenced(world, 1, 2, 3)
    old = world.image.brokers[3].epoch
    world.do(world.controller.unregister_broker(UnregisterBrokerRequest(3)))
    world.add_broker(3, incarnation=1, previous_epoch=old)
    assert (first(world).leader, first(world).elr) == (-1, (2,))


def test_what_may_be_on_a_failed_disk_leaves_too() -> None:
    """A broker with several directories does not say in which of them a replica is. One that it had lost must not be elected."""
    world = World()
    request = registration(1)
    request.log_dirs = [b"a" * 16, b"b" * 16]
    epoch = world.do(world.controller.register_broker(request, next_offset=world.next_offset)).broker_epoch
    world.do(world.controller.unfence_broker(1, epoch))
    world.add_broker(2)
    world.create(
        topic("t", -1, -1, assignments={0: [1, 2]}, configs={"min.insync.replicas": "2"}),
        topic("alone", -1, -1, assignments={0: [1]}),
    )
    heartbeat = BrokerHeartbeatRequest(1, epoch, world.next_offset, offline_log_dirs=[b"a" * 16])
    world.do(world.controller.broker_heartbeat(heartbeat))
    partition = first(world)
    assert (partition.leader, partition.isr, partition.elr) == (2, (2,), ())
    alone = world.image.topics_by_name["alone"].partitions[0]
    assert (alone.leader, alone.isr) == (1, (1,)), "nobody else could lead it"
    assert not world.controller.broker_heartbeat(heartbeat).records


def test_replicas_on_a_failed_disk_leave_and_the_others_stay() -> None:
    world = World()
    request = registration(1)
    request.log_dirs = [b"a" * 16, b"b" * 16]
    epoch = world.do(world.controller.register_broker(request, next_offset=world.next_offset)).broker_epoch
    world.do(world.controller.unfence_broker(1, epoch))
    world.add_broker(2)
    world.create(topic("t", -1, -1, assignments={0: [1, 2], 1: [1, 2]}, configs={"min.insync.replicas": "2"}))
    topic_id = world.image.topics_by_name["t"].topic_id
    places = [[b"a" * 16, bytes(16)], [b"b" * 16, bytes(16)]]
    world.write([PartitionChangeRecord(index, topic_id, directories=places[index]) for index in (0, 1)])
    heartbeat = BrokerHeartbeatRequest(1, epoch, world.next_offset, offline_log_dirs=[b"a" * 16])
    world.do(world.controller.broker_heartbeat(heartbeat))
    zero, one = world.image.topics_by_name["t"].partitions.values()
    assert (zero.leader, zero.isr, zero.elr) == (2, (2,), ())
    assert (one.leader, one.isr) == (1, (1, 2))
    assert world.image.brokers[1].log_dirs == (b"b" * 16,)
    assert not world.controller.broker_heartbeat(heartbeat).records
    # It cannot lead from that disk again before it has another place.
    world.do(world.controller.fence_broker(2))
    assert world.image.topics_by_name["t"].partitions[0].leader == -1
    gone = BrokerHeartbeatRequest(1, epoch, world.next_offset, offline_log_dirs=[b"b" * 16])
    world.do(world.controller.broker_heartbeat(gone))
    assert world.image.brokers[1].fenced
