"""AlterPartition: who may say that who is in sync. The answers are those that Kafka 4.3.1's controller gave to the same requests."""

from __future__ import annotations

import pytest

from tests.controller.world import World, topic
from tidelog.controller.image import LeaderRecoveryState, PartitionImage
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)


@pytest.fixture
def world() -> World:
    world = World()
    for broker in (1, 2, 3, 4):
        world.add_broker(broker)
    world.create(
        topic("t", -1, -1, assignments={0: [1, 2, 3], 1: [2, 3, 1]}, configs={"min.insync.replicas": "2"})
    )
    return world


def first(world: World) -> PartitionImage:
    return world.image.topics_by_name["t"].partitions[0]


def proposal(
    world: World,
    isr: list[int] | list[tuple[int, int]],
    *,
    index: int = 0,
    leader_epoch: int = 0,
    partition_epoch: int | None = None,
    recovery_state: int = 0,
) -> RequestPartitionData:
    """Brokers with their current epochs, or with the given ones; as the partition is now, unless told otherwise."""
    states = [
        BrokerState(*member)
        if isinstance(member, tuple)
        else BrokerState(member, world.image.brokers[member].epoch)
        for member in isr
    ]
    if partition_epoch is None:
        partition_epoch = world.image.topics_by_name["t"].partitions[0].partition_epoch
    return RequestPartitionData(index, leader_epoch, [], states, recovery_state, partition_epoch)


def ask(
    world: World, *proposals: RequestPartitionData, sender: int = 1, topic_id: bytes = b""
) -> list[ResponsePartitionData]:
    topic_id = topic_id or world.image.topics_by_name["t"].topic_id
    request = AlterPartitionRequest(
        sender, world.image.brokers[sender].epoch, [RequestTopicData(topic_id, list(proposals))]
    )
    response = world.do(world.controller.alter_partition(request))
    assert (response.error_code, len(response.topics), response.topics[0].topic_id) == (0, 1, topic_id)
    return response.topics[0].partitions


def test_an_accepted_proposal_is_answered_with_the_partition_as_it_is_then(world: World) -> None:
    answer = ask(world, proposal(world, [1, 2]))
    assert answer == [ResponsePartitionData(0, E.NONE, 1, 0, [1, 2], 0, 1)]
    assert (first(world).isr, first(world).partition_epoch, first(world).leader_epoch) == ((1, 2), 1, 0)


def test_the_isr_keeps_the_order_in_which_it_was_proposed(world: World) -> None:
    assert ask(world, proposal(world, [3, 2, 1]))[0].isr == [3, 2, 1]
    assert first(world).isr == (3, 2, 1)


def test_a_proposal_of_what_is_already_so_is_fine_and_makes_earlier_ones_too_late(world: World) -> None:
    """So a leader takes back what it has proposed more than once: a copy that is still under way is not accepted any more."""
    earlier = proposal(world, [1, 2])
    assert ask(world, proposal(world, [1, 2, 3])) == [ResponsePartitionData(0, E.NONE, 1, 0, [1, 2, 3], 0, 1)]
    assert ask(world, earlier) == [ResponsePartitionData(0, E.INVALID_UPDATE_VERSION)]
    assert (first(world).isr, first(world).leader_epoch) == ((1, 2, 3), 0)


def test_a_follower_comes_back_and_the_elr_is_empty_again(world: World) -> None:
    ask(world, proposal(world, [1]))
    assert (first(world).isr, first(world).elr) == ((1,), (2, 3))
    ask(world, proposal(world, [1, 3]))
    assert (first(world).isr, first(world).elr) == ((1, 3), ())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"leader_epoch": 1}, E.NOT_CONTROLLER),
        ({"partition_epoch": 9}, E.NOT_CONTROLLER),
        ({"partition_epoch": 0}, E.INVALID_UPDATE_VERSION),
        ({"index": 7}, E.UNKNOWN_TOPIC_OR_PARTITION),
        ({"index": 1, "partition_epoch": 0}, E.INVALID_REQUEST),  # led by another broker
        ({"isr": [1, 1]}, E.INVALID_REQUEST),
        ({"isr": []}, E.INVALID_REQUEST),
        ({"isr": [1, 4]}, E.INVALID_REQUEST),  # no replica
        ({"isr": [2, 3]}, E.INVALID_REQUEST),  # the leader itself is missing
        ({"isr": [1], "recovery_state": 1}, E.INVALID_REQUEST),  # from RECOVERED to RECOVERING
        ({"isr": [1], "recovery_state": 9}, E.INVALID_REQUEST),
        ({"isr": [(1, -1), (2, -1), (3, -1)]}, E.NONE),  # epochs that the leader does not know
    ],
)
def test_the_first_thing_that_is_wrong_decides_the_answer(
    world: World, changes: dict[str, object], code: E
) -> None:
    ask(world, proposal(world, [1, 2]))  # partition epoch 1
    before = world.image
    options: dict[str, object] = {"isr": [1, 2, 3], **changes}
    isr = options.pop("isr")
    answer = ask(world, proposal(world, isr, **options))[0]  # type: ignore[arg-type]
    assert answer.error_code == code
    if code != E.NONE:
        assert answer == ResponsePartitionData(answer.partition_index, code)
        assert world.image is before


def test_an_earlier_leaders_proposal_is_fenced(world: World) -> None:
    world.do(world.controller.fence_broker(1))
    world.do(world.controller.unfence_broker(1, world.image.brokers[1].epoch))
    assert first(world).leader == 2
    assert ask(world, proposal(world, [1, 2, 3]))[0].error_code == E.FENCED_LEADER_EPOCH


def test_nobody_joins_who_is_fenced_or_shutting_down_or_gone(world: World) -> None:
    ask(world, proposal(world, [1, 2]))
    epoch = world.image.brokers[3].epoch
    world.do(world.controller.fence_broker(3))
    assert ask(world, proposal(world, [1, 2, 3]))[0].error_code == E.INELIGIBLE_REPLICA
    world.do(world.controller.unfence_broker(3, epoch))
    world.do(world.controller.begin_controlled_shutdown(3, epoch))
    assert ask(world, proposal(world, [1, 2, 3]))[0].error_code == E.INELIGIBLE_REPLICA
    assert first(world).isr == (1, 2)


def test_nobody_joins_for_fetches_that_an_earlier_run_of_it_made(world: World) -> None:
    ask(world, proposal(world, [1, 2]))
    seen = world.image.brokers[3].epoch
    world.add_broker(3, incarnation=5)
    assert ask(world, proposal(world, [(1, -1), (2, -1), (3, seen)]))[0].error_code == E.INELIGIBLE_REPLICA
    assert ask(world, proposal(world, [1, 2, 3]))[0].error_code == E.NONE


def test_an_earlier_run_of_the_leader_is_not_listened_to(world: World) -> None:
    request = AlterPartitionRequest(1, world.image.brokers[1].epoch - 1)
    for broker, epoch in ((1, request.broker_epoch), (99, 0)):
        with pytest.raises(RequestError) as caught:
            world.controller.alter_partition(AlterPartitionRequest(broker, epoch))
        assert caught.value.code == E.STALE_BROKER_EPOCH


def test_a_topic_that_was_deleted_is_unknown_by_its_id(world: World) -> None:
    assert ask(world, proposal(world, [1, 2]), topic_id=b"x" * 16)[0].error_code == E.UNKNOWN_TOPIC_ID


def test_a_partition_is_altered_once_in_a_request(world: World) -> None:
    codes = [answer.error_code for answer in ask(world, proposal(world, [1, 2]), proposal(world, [1]))]
    assert codes == [E.NONE, E.INVALID_REQUEST]
    assert first(world).isr == (1, 2)


def test_version_2_names_brokers_without_their_epochs(world: World) -> None:
    assert ask(world, RequestPartitionData(0, 0, [1, 3], [], 0, 0))[0].error_code == E.NONE
    assert first(world).isr == (1, 3)


def test_a_leader_that_recovers_is_alone_until_it_says_that_it_is_done() -> None:
    world = World(unclean_leader_election_enable=True)
    for broker in (1, 2, 3):
        world.add_broker(broker)
    world.create(topic("t", -1, -1, assignments={0: [1, 2, 3]}, configs={"min.insync.replicas": "3"}))
    ask(world, proposal(world, [1]))
    for broker in (2, 3, 1):
        world.do(world.controller.fence_broker(broker))
    world.add_broker(3, incarnation=9)
    world.add_broker(2, incarnation=9)
    assert first(world).leader == 3
    assert (first(world).leader, first(world).isr) == (3, (3,))
    assert first(world).leader_recovery_state == LeaderRecoveryState.RECOVERING
    epoch = first(world).leader_epoch
    both = proposal(world, [3, 2], leader_epoch=epoch, recovery_state=LeaderRecoveryState.RECOVERING)
    assert ask(world, both, sender=3)[0].error_code == E.INVALID_REQUEST
    alone = proposal(world, [3], leader_epoch=epoch, recovery_state=LeaderRecoveryState.RECOVERING)
    assert ask(world, alone, sender=3)[0].error_code == E.NONE
    done = proposal(world, [3, 2], leader_epoch=epoch)
    answer = ask(world, done, sender=3)[0]
    assert (answer.error_code, answer.isr, answer.leader_recovery_state) == (E.NONE, [3, 2], 0)
    assert first(world).leader_recovery_state == LeaderRecoveryState.RECOVERED
