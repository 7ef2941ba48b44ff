"""Brokers that register, come back and go: epochs, fencing, leaders, ISR and ELR."""

from __future__ import annotations

import pytest

from tests.controller.world import World, registration, topic
from tidelog.controller.image import LeaderRecoveryState, PartitionImage
from tidelog.controller.metadata_records import FeatureLevelRecord, PartitionChangeRecord
from tidelog.controller.metadata_serde import encode_record
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest


def three_brokers(**settings: object) -> World:
    world = World(**settings)
    for broker in (1, 2, 3):
        world.add_broker(broker, rack=f"r{broker}")
    world.create(
        topic("t", -1, -1, assignments={0: [1, 2, 3], 1: [2, 3, 1]}, configs={"min.insync.replicas": "2"})
    )
    return world


def first(world: World, name: str = "t") -> PartitionImage:
    return world.image.topics_by_name[name].partitions[0]


def refusal(world: World, request: BrokerRegistrationRequest, *, session_active: bool = False) -> E:
    with pytest.raises(RequestError) as caught:
        world.controller.register_broker(
            request, next_offset=world.next_offset, session_active=session_active
        )
    return E(caught.value.code)


def test_a_broker_starts_fenced_with_the_offset_of_its_registration_as_epoch() -> None:
    world = World()
    offset = world.next_offset
    epoch = world.add_broker(1, rack="r", unfence=False)
    assert epoch == offset
    broker = world.image.brokers[1]
    assert (broker.epoch, broker.fenced, broker.rack) == (offset, True, "r")
    assert broker.endpoints[0].port == 9093
    world.do(world.controller.unfence_broker(1, epoch))
    assert world.image.brokers[1].active
    assert world.controller.unfence_broker(1, epoch).records == ()


def test_the_next_run_has_a_larger_epoch_and_the_same_run_keeps_its_own() -> None:
    world = World()
    epoch = world.add_broker(1, incarnation=1)
    assert world.add_broker(1, incarnation=1, unfence=False) == epoch
    assert world.image.brokers[1].active  # the same process said it twice
    assert world.add_broker(1, incarnation=2, previous_epoch=epoch) > epoch
    with pytest.raises(RequestError) as caught:
        world.controller.unfence_broker(1, epoch)
    assert caught.value.code == E.STALE_BROKER_EPOCH
    with pytest.raises(RequestError) as caught:
        world.controller.unfence_broker(7, epoch)
    assert caught.value.code == E.STALE_BROKER_EPOCH


def test_who_claims_a_run_that_was_not_the_last_one_asks_again() -> None:
    """Its metadata are old: what it has not heard of may be a request of its own, from a run that was killed at once."""
    world = three_brokers()
    for broker in (1, 2, 3):
        world.do(world.controller.fence_broker(broker))
    before = world.image.brokers[3].epoch
    late = world.add_broker(3, incarnation=5, previous_epoch=before, unfence=False)
    world.do(world.controller.fence_broker(3))
    with pytest.raises(RequestError, match="when it has heard of it") as caught:
        world.add_broker(3, incarnation=6, previous_epoch=before)
    assert caught.value.code == E.STALE_BROKER_EPOCH
    world.add_broker(3, incarnation=6, previous_epoch=late)
    assert (first(world).leader, first(world).isr, first(world).elr) == (3, (3,), (2,))


def test_registrations_that_are_refused() -> None:
    world = World()
    world.add_broker(1)
    other = registration(2)
    other.cluster_id = "elsewhere"
    assert refusal(world, other) == E.INCONSISTENT_CLUSTER_ID
    copied = registration(2)
    copied.log_dirs = registration(1).log_dirs
    assert refusal(world, copied) == E.INVALID_REGISTRATION
    nameless = registration(2)
    nameless.log_dirs = []
    assert refusal(world, nameless) == E.INVALID_REGISTRATION
    deaf = registration(2)
    deaf.listeners = []
    assert refusal(world, deaf) == E.INVALID_REGISTRATION
    old = registration(2)
    old.features = []
    assert refusal(world, old) == E.UNSUPPORTED_VERSION
    world.write([FeatureLevelRecord("transaction.version", 2)])
    assert refusal(world, registration(2)) == E.UNSUPPORTED_VERSION


def test_a_second_process_with_the_same_id_is_refused_while_the_first_lives() -> None:
    world = World()
    world.add_broker(1, incarnation=1)
    assert (
        refusal(world, registration(1, incarnation=2), session_active=True) == E.DUPLICATE_BROKER_REGISTRATION
    )
    again = world.controller.register_broker(
        registration(1, incarnation=1), next_offset=99, session_active=True
    )
    assert again.response.broker_epoch == world.image.brokers[1].epoch


def test_a_fenced_leader_hands_over_and_leaves_the_isr() -> None:
    world = three_brokers()
    world.do(world.controller.fence_broker(1))
    partition = first(world)
    assert (partition.leader, partition.leader_epoch, partition.isr, partition.elr) == (2, 1, (2, 3), ())
    assert (
        world.image.topics_by_name["t"].partitions[1].leader_epoch == 0
    )  # a follower left: no new leader epoch
    assert world.controller.fence_broker(1).records == ()


def test_below_min_isr_those_who_leave_stay_eligible_and_the_last_one_is_remembered() -> None:
    world = three_brokers()
    for broker in (1, 2):
        world.do(world.controller.fence_broker(broker))
    assert (first(world).isr, first(world).elr, first(world).leader) == ((3,), (2,), 3)
    world.do(world.controller.fence_broker(3))
    assert (first(world).isr, first(world).elr, first(world).leader) == ((), (2, 3), -1)
    assert first(world).last_known_elr == (2, 3)
    world.do(world.controller.unfence_broker(2, world.image.brokers[2].epoch))
    assert (first(world).isr, first(world).elr, first(world).leader) == ((2,), (3,), 2)
    assert first(world).leader_recovery_state == LeaderRecoveryState.RECOVERED


def test_one_who_is_not_eligible_does_not_lead() -> None:
    world = three_brokers()
    for broker in (1, 2, 3):
        world.do(world.controller.fence_broker(broker))
    world.do(world.controller.unfence_broker(1, world.image.brokers[1].epoch))
    assert first(world).leader == -1


def test_unless_the_topic_allows_it_and_then_it_shows() -> None:
    world = three_brokers(unclean_leader_election_enable=True)
    for broker in (1, 2, 3):
        world.do(world.controller.fence_broker(broker))
    world.do(world.controller.unfence_broker(1, world.image.brokers[1].epoch))
    partition = first(world)
    assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())
    assert partition.leader_recovery_state == LeaderRecoveryState.RECOVERING


def test_a_broker_that_may_have_lost_data_leaves_isr_and_elr() -> None:
    world = three_brokers()
    for broker in (1, 2, 3):
        world.do(world.controller.fence_broker(broker))
    world.add_broker(3, incarnation=5)
    assert (first(world).elr, first(world).leader) == ((2,), -1)
    assert 3 in first(world).last_known_elr


def test_a_broker_that_kept_everything_keeps_its_place() -> None:
    world = three_brokers()
    for broker in (1, 2, 3):
        world.do(world.controller.fence_broker(broker))
    world.add_broker(3, incarnation=5, previous_epoch=world.image.brokers[3].epoch)
    assert (first(world).leader, first(world).isr, first(world).elr) == (3, (3,), (2,))


@pytest.mark.parametrize("clean", [True, False])
def test_the_only_broker_leads_again_after_any_stop(clean: bool) -> None:
    world = World()
    epoch = world.add_broker(1)
    world.create(topic("t", 2))
    world.add_broker(1, incarnation=1, previous_epoch=epoch if clean else -1)
    for partition in world.image.topics_by_name["t"].partitions.values():
        assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (1, (1,), (), ())
        assert partition.leader_epoch == 2  # it was without leader in between, as clients may have noticed
        assert partition.leader_recovery_state == LeaderRecoveryState.RECOVERED


def test_leaving_and_returning_of_a_single_replica_is_written_as_kafka_writes_it() -> None:
    world = World()
    epoch = world.add_broker(1)
    world.create(topic("t"))
    topic_id = world.image.topics_by_name["t"].topic_id
    leaving = world.controller.begin_controlled_shutdown(1, epoch).records
    assert leaving[1] == PartitionChangeRecord(
        0, topic_id, isr=[], leader=-1, eligible_leader_replicas=[1], last_known_elr=[1]
    )
    assert [encode_record(record)[2] for record in leaving] == [1, 2]
    world.write(leaving)
    assert world.controller.begin_controlled_shutdown(1, epoch).records == ()
    world.do(world.controller.fence_broker(1))
    world.add_broker(1, incarnation=3, previous_epoch=epoch, unfence=False)
    returning = world.controller.unfence_broker(1, world.image.brokers[1].epoch).records
    assert returning[1] == PartitionChangeRecord(
        0, topic_id, isr=[1], leader=1, eligible_leader_replicas=[], last_known_elr=[]
    )


def test_producer_ids_come_in_blocks_that_never_overlap() -> None:
    world = World()
    epoch = world.add_broker(1)
    blocks = [
        world.do(world.controller.allocate_producer_ids(AllocateProducerIdsRequest(1, epoch)))
        for _ in range(3)
    ]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    assert world.image.next_producer_id == 3000
    for broker, broker_epoch, code in (
        (1, epoch - 1, E.STALE_BROKER_EPOCH),
        (2, 0, E.STALE_BROKER_EPOCH),
    ):
        with pytest.raises(RequestError) as caught:
            world.controller.allocate_producer_ids(AllocateProducerIdsRequest(broker, broker_epoch))
        assert caught.value.code == code
