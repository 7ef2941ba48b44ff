"""The quorum as a broker uses it: what a start costs, what an append promises, what is left of directories from before, what a failing disk does."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.quorum.table import Always, AtOnce, Table
from tidelog.controller.metadata_log import bootstrap_records, encode_batches
from tidelog.errors import CorruptDataError
from tidelog.quorum import messages, state_file
from tidelog.quorum.driver import NotLeader, Quorum
from tidelog.quorum.values import ElectionState, LogEnd, QuorumSettings, SnapshotId, Voters
from tidelog.records.batch import iter_headers, read_header
from tidelog.storage.disk import DiskError
from tidelog.storage.log_manager import LogManager
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.quorum_loop import Heap, ProcessLoop

METADATA_DIR = "/data/__cluster_metadata-0"
NOW_MS = 1_700_000_000_000


class Alone:
    """A broker on its own: its quorum has nobody to talk to."""

    def __init__(self, disk: SimDisk, *, batches: list[bytes] | None = None) -> None:
        self.heap = Heap()
        self.loop = ProcessLoop(self.heap)
        self.disk = disk
        self.manager = LogManager(disk, self.loop, Random(1), ["/data"], node_id=1, cluster_id="alone")
        self.manager.open_directories()
        self.to_append = batches or []
        self.said: list[str] = []
        self.quorum = Quorum(
            QuorumSettings(1, Voters.of((1,))),
            self.manager.open_metadata_log(),
            clock=self.loop,
            rng=Always(0),
            scheduler=self.loop,
            offload=AtOnce(),
            peers=self,
            listener=self,
        )

    def start(self) -> None:
        self.quorum.start()
        self.run(0.001)

    def run(self, seconds: float) -> None:
        end = self.heap.now + seconds
        while self.heap.step(end):
            pass

    def ask(self, node_id: int, request: Any, answered: Any, /, *, timeout_s: float) -> None:
        raise AssertionError(f"a quorum of one asks {node_id} for {request}")

    def committed(self, high_watermark: int) -> None:
        self.said.append(f"committed {high_watermark}")

    def leader_is(self, leader_id: int | None, epoch: int) -> None:
        self.said.append(f"leader {leader_id} in {epoch}")
        if leader_id == 1 and self.to_append:
            batches, self.to_append = self.to_append, []
            self.quorum.append(batches, epoch)

    def load_snapshot(self, snapshot: SnapshotId) -> None:
        self.said.append(f"snapshot {snapshot}")

    def failed(self, error: Exception) -> None:
        self.said.append(f"failed: {error}")


def metadata_batches(base_offset: int, epoch: int) -> list[bytes]:
    encoded = encode_batches(
        bootstrap_records(), base_offset=base_offset, leader_epoch=epoch, timestamp_ms=NOW_MS
    )
    return [batch.data for batch in encoded]


def stopped_broker() -> SimDisk:
    """A data directory from before there was a quorum: records of epoch 3, and no quorum state."""
    disk = SimDisk(Random(1))
    loop = ProcessLoop(Heap())
    manager = LogManager(disk, loop, Random(1), ["/data"], node_id=1, cluster_id="alone")
    manager.open_directories()
    log = manager.open_metadata_log()
    for batch in metadata_batches(0, 3):
        log.append_as_leader(batch, read_header(batch), leader_epoch=3, now_ms=NOW_MS)
    manager.close(clean=True)
    return disk.crash("lose_unsynced")


def test_a_quorum_of_one_starts_with_one_write_of_its_state_beside_the_sync_of_its_log() -> None:
    disk = stopped_broker()
    node = Alone(disk)
    disk.start_recording()
    node.to_append = metadata_batches(node.quorum.end_offset + 1, 4)
    before = disk.syncs
    node.start()
    assert node.said == ["leader 1 in 4", f"committed {node.quorum.end_offset}"]
    synced = [attempt.path for attempt in disk.attempts if attempt.operation == "sync"]
    # The state, and one sync for the leader change and what the controller appended in the same turn.
    assert [path.rpartition("/")[2] for path in synced] == ["quorum-state.tmp", "00000000000000000000.log"]
    assert disk.syncs == before + 2


def test_a_directory_from_before_the_quorum_goes_on_with_the_next_epoch() -> None:
    node = Alone(stopped_broker())
    before = node.quorum.end_offset
    node.start()
    assert node.quorum.epoch == 4
    assert node.quorum.leads
    assert [h.partition_leader_epoch for _, h in iter_headers(node.quorum.read(0, 1 << 20))] == [3, 4]
    assert node.quorum.high_watermark == before + 1


def test_each_start_is_an_epoch_of_its_own() -> None:
    node = Alone(SimDisk(Random(1)))
    node.start()
    assert node.quorum.epoch == 1
    node.quorum.close()
    again = Alone(node.disk.crash("lose_unsynced"))
    again.start()
    assert again.quorum.epoch == 2
    assert again.quorum.high_watermark == 2


def test_a_state_that_is_older_than_the_log_is_refused() -> None:
    disk = stopped_broker()
    state_file.write(disk, METADATA_DIR, ElectionState(2), Voters.of((1,)))
    with pytest.raises(CorruptDataError, match="epoch 3"):
        Alone(disk)


def test_a_log_without_the_snapshot_that_it_begins_with_is_refused() -> None:
    node = Alone(SimDisk(Random(1)))
    node.start()
    log = node.quorum.log.log
    log.truncate_fully_and_start_at(50, now_ms=0)
    node.quorum.close()
    node.manager.release_locks()
    with pytest.raises(CorruptDataError, match="no snapshot covers"):
        Alone(node.disk)


def test_only_the_leader_appends_and_only_in_its_epoch() -> None:
    node = Alone(SimDisk(Random(1)))
    with pytest.raises(NotLeader):
        node.quorum.append(metadata_batches(0, 0), 0)
    node.start()
    with pytest.raises(NotLeader):
        node.quorum.append(metadata_batches(1, 0), 0)
    told: list[bool] = []
    end_offset = node.quorum.append(metadata_batches(1, 1), 1)
    node.quorum.when_committed(end_offset, told.append)
    assert told == []
    node.run(0.001)
    assert told == [True]


def test_batches_for_another_offset_are_refused_and_leave_nothing() -> None:
    node = Alone(SimDisk(Random(1)))
    node.start()
    first = metadata_batches(1, 1)
    with pytest.raises(ValueError, match="where the log ends"):
        node.quorum.append([*first, *first], 1)
    assert node.quorum.end_offset == 1


def test_who_waits_when_leadership_is_lost_is_told_that_nothing_is_known() -> None:
    table = Table([1, 2, 3], [])
    for node_id in (1, 2, 3):
        table.start(node_id)
    table.wait(1)
    table.cuts = {(1, 2), (2, 1), (1, 3), (3, 1)}
    told: list[bool] = []
    quorum = table.players[1].quorum
    table.append(1, "a")
    quorum.when_committed(quorum.end_offset, told.append)
    table.wait(3)
    assert told == [False]
    assert not quorum.leads
    with pytest.raises(NotLeader):
        quorum.append([], quorum.epoch)


def test_a_leader_that_stops_is_done_when_the_others_know() -> None:
    table = Table([1, 2, 3], [])
    for node_id in (1, 2, 3):
        table.start(node_id)
    table.wait(1)
    done: list[str] = []
    table.players[1].quorum.stop(lambda: done.append("stopped"), within_s=5)
    assert done == []
    table.stabilize()
    assert done == ["stopped"]
    assert any(table.players[node_id].quorum.leads for node_id in (2, 3))


@pytest.mark.parametrize("operation", ["sync", "write", "rename", "sync directory"])
def test_a_disk_that_fails_ends_the_node_and_nothing_is_said_any_more(operation: str) -> None:
    node = Alone(SimDisk(Random(1)))
    node.start()
    node.said.clear()
    node.disk.fail(operation)
    with suppress(DiskError):
        node.quorum.append(metadata_batches(1, 1), 1)
    node.run(0.01)
    node.quorum.resign()
    node.run(0.01)
    assert node.said[-1].startswith("failed: ") and operation in node.said[-1]
    assert not any(words.startswith("committed") for words in node.said[-1:])
    assert sum(words.startswith("failed") for words in node.said) == 1


class Late:
    """Threads whose work is done when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, Any]] = []

    def run(self, work: Any, done: Any, /) -> None:
        self.jobs.append((work, done))

    def finish(self) -> None:
        for work, done in self.jobs:
            try:
                work()
            except DiskError as error:
                done(error)
            else:
                done(None)
        self.jobs.clear()


def test_a_sync_that_fails_while_the_node_is_closed_is_told() -> None:
    """Who closes its directories in order would mark this one as whole."""
    node = Alone(SimDisk(Random(1)))
    node.start()
    node.quorum._offload = late = Late()
    node.quorum.append(metadata_batches(1, 1), 1)
    node.run(0.01)
    assert late.jobs, "a thread is syncing"
    node.said.clear()
    node.disk.fail("sync")
    node.quorum.close()
    idle: list[str] = []
    node.quorum.when_idle(lambda: idle.append("idle"))
    assert idle == []
    late.finish()
    assert idle == ["idle"]
    assert [words.split(":")[0] for words in node.said] == ["failed"]


def test_describe_tells_what_the_leader_knows_of_everybody() -> None:
    table = Table([1, 2, 3], [4])
    for node_id in (1, 2, 3, 4):
        table.start(node_id)
    table.wait(1)
    table.append(1, "a")
    table.wait(0.5)
    part = table.players[1].quorum.describe().topics[0].partitions[0]
    assert (part.leader_id, part.leader_epoch, part.high_watermark, part.error_code) == (1, 1, 2, 0)
    assert [(voter.replica_id, voter.log_end_offset) for voter in part.current_voters] == [
        (1, 2),
        (2, 2),
        (3, 2),
    ]
    assert [(observer.replica_id, observer.log_end_offset) for observer in part.observers] == [(4, 2)]
    now_ms = table.players[1].loop.wall_ms()
    for replica in (*part.current_voters, *part.observers):
        assert now_ms - 1000 < replica.last_fetch_timestamp <= now_ms
        assert now_ms - 1000 < replica.last_caught_up_timestamp <= now_ms
    other = table.players[2].quorum.describe().topics[0].partitions[0]
    assert (other.leader_id, other.error_code) == (1, 6)


class Stuck:
    """Threads that never come back."""

    def run(self, work: Any, done: Any, /) -> None:
        pass


def test_a_node_whose_disk_hangs_waits_in_peace() -> None:
    """It once looked at the clock every microsecond, and remembered each look."""
    table = Table([1, 2, 3], [])
    table.start(1)
    table.stabilize()
    player = table.players[1]
    player.quorum._offload = Stuck()
    candidate = QuorumSettings(2, Voters.of((1, 2, 3)), "table")
    request = messages.vote_request(candidate, 1, epoch=5, end=LogEnd(0, 0), pre_vote=False)
    answers: list[Any] = []
    player.quorum.handle(request, answers.append)
    before = table.heap.events
    end = table.heap.now + 0.8  # longer than the election timeout
    while table.heap.step(end):
        assert table.heap.events - before < 20
    assert answers == []
