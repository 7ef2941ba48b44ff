"""A member that joins and is killed every two seconds: with incremental rebalances the others read on all the while."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from tests.groups.crew import CONFLUENT_CONSUMER, CONFLUENT_COOPERATIVE, Crew, Kind, Member
from tests.groups.producing import Steady

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(240)]

PARTITIONS = 12
FLAPPING_SECONDS = 20.0
LIFE_SECONDS = 2.0
WINDOW_SECONDS = 5.0
"""In every stretch of this length each of the others receives something. A session lasts six: they wait for no dead member."""


@pytest.mark.parametrize("kind", [CONFLUENT_COOPERATIVE, CONFLUENT_CONSUMER], ids=str)
def test_a_flapping_member_does_not_stop_the_others(
    kind: Kind,
    bootstrap: str,
    make_crew: Callable[[str, int], Crew],
    make_producer: Callable[[Crew], Steady],
    report: Callable[[str], None],
) -> None:
    crew = make_crew(bootstrap, PARTITIONS)
    producer = make_producer(crew)
    producer.start()
    others = [crew.start(kind, f"steady-{number}") for number in range(3)]
    crew.wait_until_settled(*others)

    began = time.monotonic()
    lives = 0
    while time.monotonic() - began < FLAPPING_SECONDS:
        member = crew.start(kind, f"flapping-{lives}")
        lives += 1
        time.sleep(LIFE_SECONDS)
        member.kill()
    ended = time.monotonic()
    crew.wait_until_settled(*others)
    producer.stop()
    crew.wait_until_delivered(producer.values, *others)

    story = crew.story()
    pauses = {member.name: longest_pause(member, began, ended) for member in others}
    stall = story.longest_stall(producer.acknowledged)
    took_part = sum(1 for member in crew.members[3:] if member.events("assigned"))
    report(
        f"{lives} short lives, {took_part} of them with partitions; the longest pauses of the others: "
        f"{', '.join(f'{seconds:.2f} s' for seconds in pauses.values())}; "
        f"the longest that an owner waited for a record: {stall.seconds:.2f} s; {story.repeated()} delivered again"
    )
    assert story.faults() == []
    assert producer.values <= story.delivered()
    assert max(pauses.values()) < WINDOW_SECONDS, pauses


def longest_pause(member: Member, began: float, ended: float) -> float:
    """Between two records of a member, of whatever partition; the producer sends to all of them all the time."""
    times = [began, *(event.at for event in member.events("record") if began < event.at < ended), ended]
    return max(after - before for before, after in itertools.pairwise(times))
