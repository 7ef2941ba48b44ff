"""Groups whose coordinators are killed, stopped and paused: leadership of a partition of `__consumer_offsets` takes its groups along.

Members are processes of two client libraries that commit all the time (`tests/groups`, whose journal judges who owned what, where reading began and what was skipped). Beside them somebody asks for the
committed offsets again and again: what was told once never goes back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from tests.cluster.processes import Processes, wait_until
from tests.cluster.questions import committed_offsets
from tests.groups.conftest import SETTINGS
from tests.groups.crew import AIOKAFKA_RANGE, CONFLUENT_CONSUMER, CONFLUENT_RANGE, Crew, Kind, Member
from tests.groups.producing import Steady
from tidelog.coordinator.group.placement import partition_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

OFFSETS_TOPIC: Final = "__consumer_offsets"
TOPIC, GROUP = "orders", "kitchen"
PARTITIONS = 6
OFFSETS_PARTITIONS = 5
KINDS = [(CONFLUENT_RANGE, AIOKAFKA_RANGE), (CONFLUENT_CONSUMER, CONFLUENT_CONSUMER)]


class Watch:
    """Asks the coordinator for the committed offsets all the time, and remembers the highest that was told.

    An answer counts if its broker has led the group's partition all the while. One that was deposed and has not heard of it yet, because it was paused, may tell what
    it knew before, as with Kafka; what it is told to commit it cannot.
    """

    def __init__(self, cluster: Processes) -> None:
        self.highest: dict[int, int] = {}
        self.answers = 0
        self.failure: BaseException | None = None
        self._cluster = cluster
        self._partition = partition_of(GROUP, OFFSETS_PARTITIONS)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(0.2):
                self._look()
        except BaseException as failure:  # noqa: BLE001 - told by the test's thread
            self.failure = failure

    def _look(self) -> None:
        before = self._cluster.view(OFFSETS_TOPIC).get(self._partition)
        if before is None or before.leader is None:
            return
        port = self._cluster.nodes[before.leader].port
        found = committed_offsets(GROUP, TOPIC, PARTITIONS, port)
        after = self._cluster.view(OFFSETS_TOPIC).get(self._partition)
        if found is None or after is None or after[:2] != before[:2]:
            return
        self.answers += 1
        for index, offset in found.items():
            highest = self.highest.get(index, -1)
            assert offset >= highest, f"{TOPIC}-{index}: {highest}, then {offset}, by node {before.leader}"
            self.highest[index] = offset

    def wait_until_at(self, acknowledged: dict[int, int]) -> None:
        """What members were told to be committed is told to others, too."""
        wait_until(
            lambda: (
                self.failure
                or all(self.highest.get(index, -1) >= offset for index, offset in acknowledged.items())
            ),
            f"commits up to {acknowledged} are found, not only {self.highest}",
        )

    def check(self) -> None:
        if self.failure is not None:
            raise AssertionError("committed offsets went back") from self.failure
        assert self.answers > 10


class Scene:
    def __init__(self, cluster: Processes, crew: Crew, watch: Watch, members: Sequence[Member]) -> None:
        self.cluster = cluster
        self.crew = crew
        self.watch = watch
        self._members = members

    def coordinator(self) -> int:
        return self.cluster.leader_of(OFFSETS_TOPIC, partition_of(GROUP, OFFSETS_PARTITIONS))

    def goes_on(self) -> None:
        """Every commit that was acknowledged before this moment is found, members own everything, and all of them commit more."""
        acknowledged = self.crew.story().committed()
        self.watch.wait_until_at(acknowledged)
        if self.watch.failure is not None:
            self.watch.check()
        self.crew.wait_until_settled(*self._members)

        def more() -> bool:
            now = self.crew.story().committed()
            return all(now.get(index, 0) > acknowledged.get(index, 0) for index in range(PARTITIONS))

        self.crew.wait(more, "more is committed in every partition", among=self._members)

    def in_sync(self) -> None:
        for topic in (TOPIC, OFFSETS_TOPIC):
            self.cluster.wait_until_in_sync(topic)


@contextmanager
def reading(root: Path, kinds: Sequence[Kind]) -> Iterator[Scene]:
    settings = {**SETTINGS, "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS)}
    # A session that outlasts the move of a coordinator: nobody is given up for it.
    settings |= {"group.consumer.session.timeout.ms": "30000"}
    cluster = Processes(root, settings=settings)
    with cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        crew = Crew(root, cluster.bootstrap, GROUP, TOPIC, PARTITIONS)
        producer = Steady(cluster.bootstrap, TOPIC, PARTITIONS, per_second=120)
        producer.start()
        try:
            members = [crew.start(kind, session_timeout_ms=30_000, commit_seconds=0.05) for kind in kinds]
            crew.wait_until_settled(*members)
            with Watch(cluster) as watch:
                scene = Scene(cluster, crew, watch, members)
                scene.in_sync()
                yield scene
                producer.stop()
                crew.wait_until_delivered(producer.values, *members)
                watch.wait_until_at(crew.story().committed())
            watch.check()
        finally:
            producer.abandon()
            crew.end()
        story = crew.story()
        assert story.faults() == []
        assert producer.values <= story.delivered()
        print(
            f"{len(producer.values)} records, {story.repeated()} delivered again, {len(story.commits)} commits, asked for {watch.answers} times"
        )


def kill(scene: Scene, node_id: int) -> None:
    scene.cluster.kill(node_id)
    scene.goes_on()
    scene.cluster.start(node_id)


def stop(scene: Scene, node_id: int) -> None:
    scene.cluster.stop(node_id)
    scene.goes_on()
    scene.cluster.start(node_id)


def pause(scene: Scene, node_id: int) -> None:
    """Only until another one coordinates: libraries wait for an answer for a minute. Awake again, it has to send them there."""
    scene.cluster.pause(node_id)
    wait_until(lambda: scene.coordinator() != node_id, "another one coordinates")
    scene.cluster.resume(node_id)


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "+".join(map(str, kinds)))
@pytest.mark.parametrize("fault", [kill, stop, pause])
def test_a_group_goes_on_with_another_coordinator(
    root: Path, kinds: Sequence[Kind], fault: Callable[[Scene, int], None]
) -> None:
    with reading(root, kinds) as scene:
        for _ in range(3):
            coordinator = scene.coordinator()
            fault(scene, coordinator)
            assert scene.coordinator() != coordinator
            scene.in_sync()
            scene.goes_on()


@pytest.mark.parametrize("kinds", KINDS[:1], ids=lambda kinds: "+".join(map(str, kinds)))
def test_a_group_goes_on_after_all_brokers_were_killed(root: Path, kinds: Sequence[Kind]) -> None:
    with reading(root, kinds) as scene:
        for _ in range(2):
            scene.cluster.kill(*scene.cluster.node_ids)
            time.sleep(0.5)
            scene.cluster.start_all()
            scene.goes_on()
            scene.in_sync()
