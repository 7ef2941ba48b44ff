"""Members that do not agree on how to rebalance: a working group or a clear error, never two owners.

Neither librdkafka nor kafka-python takes a list that mixes eager and cooperative assignors, so the rolling switch that Kafka
describes (range, then both, then cooperative-sticky) is done here request by request; with these clients themselves it is done
by stopping the old members first.

A live group also moves, member by member, between the classic and the consumer protocol (KIP-848's migration).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException

from tests.groups.crew import (
    CONFLUENT_CONSUMER,
    CONFLUENT_COOPERATIVE,
    CONFLUENT_RANGE,
    Crew,
    Kind,
    Member,
)
from tests.groups.producing import Steady
from tests.groups.wire import RawMember, Wire, gather

PARTITIONS = 6
MakeCrew = Callable[[str, int], Crew]
MakeProducer = Callable[[Crew], Steady]


@pytest.fixture
def crew(bootstrap: str, make_crew: MakeCrew) -> Crew:
    return make_crew(bootstrap, PARTITIONS)


@pytest.fixture
def producer(crew: Crew, make_producer: MakeProducer) -> Steady:
    producer = make_producer(crew)
    producer.start()
    return producer


def test_the_client_itself_refuses_to_mix() -> None:
    settings = {"group.id": "any", "partition.assignment.strategy": "cooperative-sticky,range"}
    with pytest.raises(KafkaException, match="protocol type"):
        Consumer(settings)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("inside", "outside"),
    [(CONFLUENT_RANGE, CONFLUENT_COOPERATIVE), (CONFLUENT_COOPERATIVE, CONFLUENT_RANGE)],
    ids=str,
)
def test_who_knows_no_common_assignor_is_told_and_gets_in_when_the_others_have_left(
    inside: Kind, outside: Kind, crew: Crew, producer: Steady
) -> None:
    group = [crew.start(inside, f"inside-{number}") for number in range(2)]
    crew.wait_until_settled(*group)
    before = sum(len(member.events("revoked", "lost")) for member in group)

    stranger = crew.start(outside, "stranger")
    crew.wait(
        lambda: "INCONSISTENT_GROUP_PROTOCOL" in errors(stranger), "the stranger is told", among=[stranger]
    )
    assert stranger.events("assigned") == []
    assert sum(len(member.events("revoked", "lost")) for member in group) == before, (
        "a stranger disturbed the group"
    )
    for member in group:
        member.stop()
    crew.wait_until_settled(stranger)
    producer.stop()
    crew.wait_until_delivered(producer.values, stranger)
    assert crew.story().faults() == []


def errors(member: Member) -> list[str]:
    return [event.fields["error"] for event in member.events("complaint")]


# ---- the rolling switch between assignors, by hand


@pytest.fixture
def raw_members(bootstrap: str, crew: Crew) -> Iterator[Callable[..., RawMember]]:
    with Wire(bootstrap) as wire:
        wire.wait_for_coordinator(crew.group)
    members: list[RawMember] = []

    def join(*protocols: str) -> RawMember:
        members.append(RawMember(bootstrap, crew.group, *protocols))
        return members[-1]

    yield join
    for member in members:
        member.close()


def settle(*members: RawMember) -> str | None:
    """One generation for all, an assignment for each; the assignor that the broker has chosen."""
    gather(*members)
    assert len({member.protocol for member in members}) == 1
    assert sum(member.is_leader for member in members) == 1
    ordered = sorted(members, key=lambda member: not member.is_leader)
    given = {member.member_id: member.member_id.encode() for member in members}
    for member in ordered:
        answer = member.sync(given if member.is_leader else None)
        assert answer.error_code == 0, answer
        assert answer.assignment == member.member_id.encode()
    return members[0].protocol


def test_a_rolling_switch_of_the_assignor(raw_members: Callable[..., RawMember]) -> None:
    both = ("cooperative-sticky", "range")
    first, second = raw_members("range"), raw_members("range")
    assert settle(first, second) == "range"
    first.protocols = both
    assert settle(first, second) == "range", "one of them knows no other"
    second.protocols = both
    assert settle(first, second) == "cooperative-sticky", "both would rather have this one"
    first.protocols = both[:1]
    assert settle(first, second) == "cooperative-sticky"
    second.protocols = both[:1]
    assert settle(first, second) == "cooperative-sticky"

    late = raw_members("range")
    late.send_join()
    assert late.receive_join() == "INCONSISTENT_GROUP_PROTOCOL"
    assert settle(first, second) == "cooperative-sticky"


# ---- from one protocol to the other


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(240)
@pytest.mark.parametrize("classic", [CONFLUENT_RANGE, CONFLUENT_COOPERATIVE], ids=str)
def test_a_live_group_moves_to_the_consumer_protocol_and_back(
    classic: Kind, crew: Crew, producer: Steady, report: Callable[[str], None]
) -> None:
    members = [crew.start(classic, f"classic-{number}") for number in range(3)]
    crew.wait_until_settled(*members)
    for kind, name in ((CONFLUENT_CONSUMER, "consumer"), (classic, "again")):
        for number in range(3):
            newcomer = crew.start(kind, f"{name}-{number}")
            crew.wait_until_settled(*members, newcomer)
            members.pop(0).stop()
            members.append(newcomer)
            crew.wait_until_settled(*members)
    producer.stop()
    crew.wait_until_delivered(producer.values, *members)

    story = crew.story()
    report(
        f"{len(producer.values)} records, {story.repeated()} delivered again; complaints: {story.complaints}"
    )
    assert story.faults() == []
    assert producer.values <= story.delivered()
