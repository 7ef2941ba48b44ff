"""The broker that the groups are tested on, in a process of its own, and the members, in processes of their own.

`TIDELOG_TEST_BROKER=kafka` puts Apache Kafka in its place, which is how the tests themselves are tested; with
`TIDELOG_TEST_BOOTSTRAP=host:port` those that need no restart use a broker that is already there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.groups.crew import Crew
from tests.groups.producing import Steady
from tests.groups.wire import Wire
from tools.peers.kafka import KafkaPeer
from tools.peers.process import Peer
from tools.peers.tidelog import TidelogPeer

LINE = "group line"
SETTINGS = {
    # Half a second is enough for members that start together; the default of three only makes the tests longer.
    "group.initial.rebalance.delay.ms": "500",
    # In the consumer protocol the broker decides how soon a silent member is given up: as soon as in the classic one.
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them take long but those of the journal's own arithmetic."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name != "test_journal.py":
            item.add_marker(pytest.mark.long)


def new_broker(data_dir: Path | None = None, **settings: str) -> Peer:
    """Settings with `_` for `.` in their names."""
    chosen = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
    if os.environ.get("TIDELOG_TEST_BROKER") == "kafka":
        return KafkaPeer(overrides=chosen, data_dir=data_dir)
    durability = os.environ.get("TIDELOG_TEST_DURABILITY", "fsync")
    return TidelogPeer(durability=durability, settings=chosen, data_dir=data_dir)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    given = os.environ.get("TIDELOG_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with new_broker() as peer:
        yield peer.bootstrap


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Peer]:
    """A running broker that a test may kill. Port and data stay the same over its restarts."""
    if os.environ.get("TIDELOG_TEST_BOOTSTRAP"):
        pytest.skip("needs a broker that can be killed; TIDELOG_TEST_BOOTSTRAP names one that cannot")
    peer = new_broker(tmp_path / "broker")
    peer.start()
    yield peer
    peer.kill()


@pytest.fixture
def make_crew(tmp_path: Path) -> Iterator[Callable[[str, int], Crew]]:
    """A new topic and a new group on it, without members yet. Whoever is alive at the end is killed."""
    crews: list[Crew] = []

    def make(bootstrap: str, partitions: int) -> Crew:
        name = uuid.uuid4().hex[:12]
        topic, group = f"topic-{name}", f"group-{name}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
        crews.append(Crew(tmp_path, bootstrap, group, topic, partitions))
        return crews[-1]

    yield make
    for crew in crews:
        crew.end()


@pytest.fixture
def make_producer() -> Iterator[Callable[..., Steady]]:
    """A steady producer to the topic of a crew; not started."""
    producers: list[Steady] = []

    def make(crew: Crew, per_second: int = 240) -> Steady:
        producers.append(Steady(crew.bootstrap, crew.topic, crew.partitions, per_second=per_second))
        return producers[-1]

    yield make
    for producer in producers:
        producer.abandon()


def committed_offsets(crew: Crew) -> dict[int, int]:
    """What OffsetFetch answers for every partition of the crew's topic; one without a commit is not in it."""
    with Wire(crew.bootstrap) as wire:
        wire.wait_for_coordinator(crew.group)
        found = wire.all_committed(crew.group, crew.topic, crew.partitions)
    return {partition: offset for partition, offset in found.items() if offset >= 0}


# ---- what was measured, at the end of the run


@pytest.fixture
def report(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[str], None]:
    """A line about what a test measured: in its output, and in a section at the end of the run."""

    def say(line: str) -> None:
        print(line)
        record_property(LINE, f"{request.node.name}: {line}")

    return say


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = [
        value
        for outcome in ("passed", "failed")
        for result in terminalreporter.stats.get(outcome, ())
        if result.when == "call"
        for name, value in result.user_properties
        if name == LINE
    ]
    if lines:
        terminalreporter.section("groups")
        for line in lines:
            terminalreporter.write_line(line)
