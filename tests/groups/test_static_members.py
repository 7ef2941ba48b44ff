"""Members with a group.instance.id: a quick bounce moves nothing, and of two with the same id one is turned away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.groups.crew import CONFLUENT_CONSUMER, CONFLUENT_RANGE, KAFKA_PYTHON_RANGE, Crew, Kind, Member
from tests.groups.producing import Steady
from tests.groups.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(180)]

PARTITIONS = 6
SESSION_MS = 40_000
"""Far more than a bounce takes, on a busy machine too."""
FENCED_EXIT = 3
MakeCrew = Callable[[str, int], Crew]
MakeProducer = Callable[[Crew], Steady]


@pytest.fixture
def crew(bootstrap: str, make_crew: MakeCrew) -> Crew:
    crew = make_crew(bootstrap, PARTITIONS)
    with Wire(bootstrap) as wire:
        wire.set_group_config(crew.group, "consumer.session.timeout.ms", str(SESSION_MS))
    return crew


@pytest.fixture
def producer(crew: Crew, make_producer: MakeProducer) -> Steady:
    producer = make_producer(crew)
    producer.start()
    return producer


def start(crew: Crew, kind: Kind, name: str, instance_id: str) -> Member:
    return crew.start(kind, name, instance_id=instance_id, session_timeout_ms=SESSION_MS)


def changes(members: list[Member]) -> int:
    return sum(len(member.events("assigned", "revoked", "lost")) for member in members)


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (CONFLUENT_RANGE, "stopped"),
        (CONFLUENT_RANGE, "killed"),
        (KAFKA_PYTHON_RANGE, "stopped"),
        (KAFKA_PYTHON_RANGE, "killed"),
        # In the consumer protocol a static member says that it will be back; one that could not is waited for.
        (CONFLUENT_CONSUMER, "stopped"),
    ],
    ids=str,
)
def test_a_bounce_within_the_session_timeout_moves_nothing(
    kind: Kind, how: str, role: str, crew: Crew, producer: Steady
) -> None:
    first = start(crew, kind, "first", "instance-0")
    crew.wait_until_settled(first)  # so it leads the group, and stays its leader
    members = [first, *(start(crew, kind, f"later-{number}", f"instance-{number}") for number in (1, 2))]
    crew.wait_until_settled(*members)
    bounced = members.pop(0 if role == "leader" else 2)
    instance = "instance-0" if role == "leader" else "instance-2"
    share = crew.story().shares()[bounced.name]
    before = changes(members)

    if how == "killed":
        bounced.kill()
    else:
        bounced.stop()
    back = start(crew, kind, "back", instance)
    crew.wait_until_settled(*members, back)
    producer.stop()
    crew.wait_until_delivered(producer.values, *members, back)

    story = crew.story()
    assert story.shares()["back"] == share
    assert changes(members) == before, "the others were rebalanced"
    assert story.faults() == []


@pytest.mark.parametrize("kind", [CONFLUENT_RANGE, KAFKA_PYTHON_RANGE], ids=str)
def test_of_two_with_the_same_id_the_older_is_fenced(kind: Kind, crew: Crew, producer: Steady) -> None:
    older = start(crew, kind, "older", "the-same")
    crew.wait_until_settled(older)
    newer = start(crew, kind, "newer", "the-same")

    if kind is CONFLUENT_RANGE:  # kafka-python goes on without a word, beside Kafka's own broker too
        assert older.ended_with(60) == FENCED_EXIT, older.complain("was not fenced")
        (last,) = older.events("complaint")[-1:]
        assert "fenced" in f"{last.fields}".lower()
    crew.wait(
        lambda: crew.story().shares().get("newer") == set(range(PARTITIONS)),
        "the newer one owns all partitions",
        among=[newer],
    )
    producer.stop()
    crew.wait_until_delivered(producer.values, newer)
    # The older one reads on until it is told, which nobody can prevent. What it then does is not committed any more.
    assert late_commits(older, newer) == []
    if kind is CONFLUENT_RANGE:
        assert crew.story().wrong_starts() == []


def late_commits(older: Member, newer: Member) -> list[object]:
    """Commits that the older one began after the newer one was given the partitions, and that were taken all the same."""
    assigned = newer.events("assigned")[0].at
    begun = {event.fields["commit"]: event.at for event in older.events("committing")}
    return [event for event in older.events("committed") if begun[event.fields["commit"]] > assigned]


def test_in_the_consumer_protocol_the_newer_is_turned_away(crew: Crew, producer: Steady) -> None:
    """The id is in use until its member has said that it leaves (UNRELEASED_INSTANCE_ID)."""
    older = start(crew, CONFLUENT_CONSUMER, "older", "the-same")
    crew.wait_until_settled(older)
    newer = start(crew, CONFLUENT_CONSUMER, "newer", "the-same")
    assert newer.ended_with(60) == FENCED_EXIT, newer.complain("was not turned away")
    (last,) = newer.events("complaint")[-1:]
    assert "instance" in f"{last.fields}".lower()
    producer.stop()
    crew.wait_until_delivered(producer.values, older)
    assert newer.events("assigned") == []
    assert crew.story().faults() == []
