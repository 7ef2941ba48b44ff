"""The broker ends, in order or by kill -9, in the middle of rebalances and of commits: groups go on, and no commit is lost.

`TIDELOG_CRASH_SEED` sets the instants, `TIDELOG_CRASH_CYCLES` the number of restarts of each test.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from tests.groups.conftest import committed_offsets
from tests.groups.crew import CONFLUENT_CONSUMER, CONFLUENT_COOPERATIVE, CONFLUENT_RANGE, Crew, Kind, Member
from tests.groups.producing import Steady
from tests.groups.wire import Wire
from tools.peers.process import Peer

CYCLES = int(os.environ.get("TIDELOG_CRASH_CYCLES", "3"))
PARTITIONS = 6
GROUPS = 20

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(CYCLES * 90 + 120)]
MakeCrew = Callable[[str, int], Crew]
MakeProducer = Callable[[Crew], Steady]


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("TIDELOG_CRASH_SEED", random.randrange(1 << 32)))
    print(f"TIDELOG_CRASH_SEED={seed}")
    return random.Random(seed)


def end(broker: Peer, how: str) -> None:
    if how == "kill":
        broker.kill()
    else:
        broker.terminate()


def start(crew: Crew, kind: Kind) -> Member:
    """With a session that outlasts a restart of the broker, so that nobody is given up for it."""
    return crew.start(kind, session_timeout_ms=45_000, commit_seconds=0.05)


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("kind", [CONFLUENT_RANGE, CONFLUENT_COOPERATIVE, CONFLUENT_CONSUMER], ids=str)
def test_a_restart_in_the_middle_of_a_rebalance(
    kind: Kind,
    how: str,
    own_broker: Peer,
    make_crew: MakeCrew,
    make_producer: MakeProducer,
    chance: random.Random,
    report: Callable[[str], None],
) -> None:
    crew = make_crew(own_broker.bootstrap, PARTITIONS)
    producer = make_producer(crew)
    producer.start()
    members = [start(crew, kind) for _ in range(2)]
    crew.wait_until_settled(*members)

    for cycle in range(CYCLES):
        if cycle % 2:
            leaver = members.pop(0)
            leaver.stop()
        else:
            members.append(start(crew, kind))
            crew.wait(lambda: bool(members[-1].events()), "the new member begins", among=members)
        time.sleep(chance.uniform(0.0, 1.5))
        end(own_broker, how)
        acknowledged = crew.story().committed()
        own_broker.start()
        check_nothing_lost(crew, acknowledged)
        crew.wait_until_settled(*members)

    producer.stop()
    crew.wait_until_delivered(producer.values, *members)
    story = crew.story()
    report(
        f"{len(producer.values)} records, {story.repeated()} delivered again, {len(story.lost())} ownerships lost"
    )
    assert story.faults() == []
    assert producer.values <= story.delivered()


def check_nothing_lost(crew: Crew, acknowledged: dict[int, int]) -> None:
    stored = committed_offsets(crew)
    lost = {
        partition: (offset, stored.get(partition))
        for partition, offset in acknowledged.items()
        if stored.get(partition, -1) < offset
    }
    assert not lost, f"acknowledged commits are gone (partition: acknowledged, found): {lost}"


class Committer:
    """Commits rising positions for many groups without members, on one connection, until that breaks."""

    def __init__(self, bootstrap: str, topic: str, groups: list[str], first: int) -> None:
        self.acknowledged: dict[str, int] = {}
        self.attempted: dict[str, int] = {}
        self._wire = Wire(bootstrap)
        self._topic = topic
        self._groups = groups
        self._first = first
        self._thread = threading.Thread(target=self._run, name="committer")

    def start(self) -> None:
        for group in self._groups:
            self._wire.wait_for_coordinator(group)
        self._thread.start()

    def _run(self) -> None:
        position = self._first
        while True:
            position += 1
            for group in self._groups:
                self.attempted[group] = position
                try:
                    if self._wire.commit(group, self._topic, position) != "NONE":
                        return  # a broker that is about to end may refuse; what follows is for the next one
                except OSError:
                    return
                self.acknowledged[group] = position

    def join(self) -> None:
        """Wait for the end that the broker's end is, which must come soon."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "the broker is gone and the connection is still open"
        self._wire.close()


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_a_restart_in_the_middle_of_commits(
    how: str,
    own_broker: Peer,
    make_crew: MakeCrew,
    chance: random.Random,
    report: Callable[[str], None],
) -> None:
    crew = make_crew(own_broker.bootstrap, 1)
    groups = [f"{crew.group}-{number}" for number in range(GROUPS)]
    before: dict[str, int] = {}
    commits = 0
    for _ in range(CYCLES + 1):
        committer = Committer(crew.bootstrap, crew.topic, groups, first=max(before.values(), default=0))
        committer.start()
        time.sleep(chance.uniform(0.3, 1.5))
        end(own_broker, how)
        committer.join()
        own_broker.start()
        commits += len(groups) * (max(committer.attempted.values()) - max(before.values(), default=0))
        before = check_each_group(crew, groups, before | committer.acknowledged, committer.attempted)
    report(f"{commits} commits for {GROUPS} groups, {CYCLES + 1} restarts")


def check_each_group(
    crew: Crew, groups: list[str], acknowledged: dict[str, int], attempted: dict[str, int]
) -> dict[str, int]:
    """The last acknowledged commit is there, or the one that was under way; nothing else has committed since."""
    found = {}
    with Wire(crew.bootstrap) as wire:
        for group in groups:
            wire.wait_for_coordinator(group)
            found[group] = wire.committed(group, crew.topic)
    wrong = {
        group: (acknowledged.get(group, -1), offset, attempted.get(group))
        for group, offset in found.items()
        if offset not in (acknowledged.get(group, -1), attempted.get(group))
    }
    assert not wrong, f"group: (acknowledged, found, attempted): {wrong}"
    return {group: offset for group, offset in found.items() if offset >= 0}
