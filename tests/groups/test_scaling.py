"""Three members, then six, then two, while a producer goes on: by kill -9, in the middle of a rebalance too.

Whatever the client and its assignor: every record is delivered at least once, reading resumes where the last commit was, and no
partition ever has two owners. With an incremental assignor or the consumer protocol a rebalance also takes nothing from a
member that it need not, and those whom it does not concern read on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.groups.crew import EVERY_KIND, Crew, Kind, Member
from tests.groups.producing import Steady

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(240)]

PARTITIONS = 12
STALL_SECONDS_MAX = 5.0
"""Generous: what is measured is a fraction of a second, but the machine may be busy with starting six interpreters."""


@pytest.mark.parametrize("kind", EVERY_KIND, ids=str)
def test_three_then_six_then_two(
    kind: Kind,
    bootstrap: str,
    make_crew: Callable[[str, int], Crew],
    make_producer: Callable[[Crew], Steady],
    report: Callable[[str], None],
) -> None:
    began = time.monotonic()
    crew = make_crew(bootstrap, PARTITIONS)
    producer = make_producer(crew)
    producer.start()

    first = [crew.start(kind) for _ in range(3)]
    crew.wait_until_settled(*first)

    more = [crew.start(kind) for _ in range(4)]
    wait_for_the_first_sign(crew, more)
    first[0].kill()  # while the group takes in the others
    crew.wait_until_settled(*first[1:], *more)

    survivors = [first[2], more[3]]
    before = revocations(survivors)
    for member in (first[1], *more[:3]):
        member.kill()
    crew.wait_until_settled(*survivors)
    taken = revocations(survivors) - before

    producer.stop()
    crew.wait_until_delivered(producer.values, *survivors)
    judge(crew, kind, producer, report, began)
    if kind.incremental:
        assert taken == 0, "partitions were taken from members that could have kept them"


def wait_for_the_first_sign(crew: Crew, members: list[Member]) -> None:
    """Until one of them has begun to join, or has joined: a rebalance is under way or just over."""
    crew.wait(lambda: any(member.events() for member in members), "the new members begin", among=members)
    time.sleep(0.3)


def revocations(members: list[Member]) -> int:
    return sum(len(member.events("revoked", "lost")) for member in members)


def judge(crew: Crew, kind: Kind, producer: Steady, report: Callable[[str], None], began: float) -> None:
    story = crew.story()
    assert story.faults() == []
    assert producer.values <= story.delivered()
    assert story.lost() == [], "a member that was alive was given up"
    stall = story.longest_stall(producer.acknowledged)
    report(
        f"{len(producer.values)} records, {story.repeated()} delivered again, "
        f"{len(story.ownerships)} ownerships; the longest that an owner waited for a record: {stall.seconds:.2f} s; "
        f"{time.monotonic() - began:.0f} s"
    )
    if kind.incremental:
        assert stall.seconds < STALL_SECONDS_MAX, stall
