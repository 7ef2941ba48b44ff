"""The two ways in which auto-commit fails, and how committing by hand does without the first.

Auto-commit commits what the program was given, on a timer, whether or not it has been processed. A program that dies between the
commit and the processing has lost records; one that dies between the processing and the commit processes them again. Both are
what the protocol promises, so both are shown here, with the same numbers for every client library.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.groups.conftest import committed_offsets
from tests.groups.crew import EVERY_LIBRARY, Crew, Kind, Member
from tests.groups.producing import Steady

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("kind", EVERY_LIBRARY, ids=str),
]
NEVER_SECONDS = 3600


@pytest.fixture
def crew(bootstrap: str, make_crew: Callable[[str, int], Crew]) -> Crew:
    return make_crew(bootstrap, 1)


@pytest.fixture
def producer(crew: Crew, make_producer: Callable[[Crew], Steady]) -> Steady:
    return make_producer(crew)


def offsets(member: Member, event: str = "record") -> list[int]:
    return [found.fields["offset"] for found in member.events(event)]


def wait_for_records(crew: Crew, member: Member, count: int) -> None:
    crew.wait(lambda: len(offsets(member)) >= count, f"{count} records have been received", among=[member])


def test_records_are_lost_when_the_commit_precedes_the_processing(
    kind: Kind, crew: Crew, producer: Steady
) -> None:
    producer.send(20)
    slow = crew.start(kind, "slow", commit="auto", auto_commit_interval_ms=200, work_seconds=1.0)
    crew.wait(lambda: committed_offsets(crew) == {0: 20}, "the timer has committed all", among=[slow])
    slow.kill()
    processed = offsets(slow, "processed")
    assert len(processed) < 20, "the worker was faster than the commit: nothing is shown"

    producer.send(5)
    heir = crew.start(kind, "heir", commit="auto", auto_commit_interval_ms=200)
    wait_for_records(crew, heir, 5)
    assert offsets(heir) == [20, 21, 22, 23, 24]
    lost = set(range(25)) - set(processed) - set(offsets(heir))
    assert lost == set(range(len(processed), 20)), "what was received and not processed is nobody's any more"


def test_records_are_processed_twice_when_the_processing_precedes_the_commit(
    kind: Kind, crew: Crew, producer: Steady
) -> None:
    never = {"commit": "auto", "auto_commit_interval_ms": NEVER_SECONDS * 1000}
    producer.send(10)
    first = crew.start(kind, "first", **never)
    wait_for_records(crew, first, 10)
    first.stop()  # an orderly end commits
    assert committed_offsets(crew) == {0: 10}

    producer.send(15)
    second = crew.start(kind, "second", **never)
    wait_for_records(crew, second, 15)
    second.kill()
    assert offsets(second) == list(range(10, 25))
    assert committed_offsets(crew) == {0: 10}

    producer.send(5)
    third = crew.start(kind, "third", **never)
    wait_for_records(crew, third, 20)
    assert offsets(third) == list(range(10, 30)), (
        "all that the dead one did is done again, nothing is left out"
    )


def test_by_hand_exactly_the_uncommitted_tail_is_repeated(kind: Kind, crew: Crew, producer: Steady) -> None:
    by_hand = {"commit": "manual", "commit_every": 10, "commit_seconds": NEVER_SECONDS}
    producer.send(25)
    first = crew.start(kind, "first", **by_hand)
    wait_for_records(crew, first, 25)
    crew.wait(lambda: len(first.events("committed")) == 2, "two commits are acknowledged", among=[first])
    first.kill()
    assert committed_offsets(crew) == {0: 20}

    producer.send(5)
    second = crew.start(kind, "second", **by_hand)
    wait_for_records(crew, second, 10)
    assert offsets(second) == list(range(20, 30))
    assert set(offsets(first)) | set(offsets(second)) == set(range(30)), "nothing is lost"
    assert crew.story().repeated() == 5


def test_by_hand_nothing_is_lost_while_a_worker_lags_behind(kind: Kind, crew: Crew, producer: Steady) -> None:
    """The same slow worker as in the first test; but what is committed is what it has done."""
    by_hand = {"commit": "manual", "commit_every": 1, "work_seconds": 0.3}
    producer.send(20)
    slow = crew.start(kind, "slow", **by_hand)
    crew.wait(lambda: len(slow.events("committed")) >= 3, "three commits are acknowledged", among=[slow])
    slow.kill()
    done = offsets(slow, "processed")
    assert len(done) < 20, "the worker was too fast: nothing is shown"

    heir = crew.start(kind, "heir", commit="manual")
    wait_for_records(crew, heir, 20 - len(done))
    crew.wait(lambda: bool(offsets(heir)) and offsets(heir)[-1] == 19, "the last record", among=[heir])
    assert set(done) | set(offsets(heir)) == set(range(20))
    assert crew.story().wrong_starts() == []
