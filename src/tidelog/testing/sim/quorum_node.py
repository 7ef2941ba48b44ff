"""A process of the simulated quorum: the real driver over the real log on a simulated disk, and a state machine that listens to it.

Owns what a broker would own around the driver: the log directory with its checkpoints, snapshots of what was applied, and the end of the process. Its state is the digest of
everything committed, so that two nodes agree exactly if their digests do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tidelog.errors import CorruptDataError
from tidelog.quorum.driver import NotLeader, Quorum
from tidelog.quorum.effects import Effect
from tidelog.quorum.events import Event
from tidelog.quorum.snapshot_store import check_whole
from tidelog.quorum.values import QuorumSettings, SnapshotId
from tidelog.records.batch import iter_headers
from tidelog.records.builder import BatchBuilder
from tidelog.records.control import ControlType, control_key
from tidelog.records.record import iter_records
from tidelog.storage.disk import DiskError, read_file, write_file_atomically
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_manager import LogManager
from tidelog.storage.manager_checkpoint import Checkpoint
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.quorum_ledger import EMPTY_DIGEST, Violation, next_digest
from tidelog.testing.sim.quorum_loop import ProcessLoop, SimThreads
from tidelog.wire.codec import encode
from tidelog.wire.messages.snapshot_footer_record import SnapshotFooterRecord
from tidelog.wire.messages.snapshot_header_record import SnapshotHeaderRecord

if TYPE_CHECKING:
    from tidelog.testing.sim.quorum_world import QuorumWorld

LOG_DIR: Final = "/data"
SMALL: Final = LogConfig(
    segment_bytes=1500, index_interval_bytes=300, file_delete_delay_ms=1000, delete_policy=False
)


class SimNode:
    """One life of a process. The next one gets the disk that this one's end has left."""

    def __init__(self, world: QuorumWorld, settings: QuorumSettings, disk: SimDisk, life: int) -> None:
        self.world = world
        self.id = settings.node_id
        self.life = life
        self.disk = disk
        self.settings = settings
        self.rng = Random(f"{world.seed}/{self.id}/{life}")
        self.loop = ProcessLoop(
            world.heap, rate=world.rates[self.id], wall_skew_ms=self.rng.randrange(-5000, 5000)
        )
        self.threads = SimThreads(world.heap, self.loop, self.rng, slow=world.options.slow_disk)
        disk.clock = self.loop
        self.applied_offset = 0
        self.applied_epoch = 0
        self.digest = EMPTY_DIGEST
        self.last_snapshot = 0
        self.is_writing_snapshot = False
        self.failure: Exception | None = None
        self._manager = LogManager(disk, self.loop, self.rng, [LOG_DIR], node_id=self.id, cluster_id="world")
        self._manager.open_directories()
        try:
            self.quorum = Quorum(
                settings,
                self._manager.open_metadata_log(SMALL),
                clock=self.loop,
                rng=self.rng,
                scheduler=self.loop,
                offload=self.threads,
                peers=self,
                listener=self,
            )
        except CorruptDataError as error:
            raise Violation(f"I15: node {self.id} cannot start after a crash: {error}") from error
        self._step = self.quorum.core.step
        self.quorum.core.step = self._observed_step  # type: ignore[method-assign]
        latest = self.quorum.log.latest_snapshot
        if latest is not None:
            self.load_snapshot(latest)

    def start(self) -> None:
        if self.world.options.checkpoint_s > 0:
            self.loop.call_later(self.rng.uniform(0, self.world.options.checkpoint_s), self._checkpoint)
        self.quorum.start()

    def _observed_step(self, event: Event, now: float) -> list[Effect]:
        effects = self._step(event, now)
        self.world.stepped(self, event, effects)
        return effects

    # ---- Peers, and what the network knows

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        self.world.net.ask(self, node_id, request, answered, timeout_s=timeout_s)

    def handle(self, request: Any, answered: Callable[[Any], None]) -> None:
        self.quorum.handle(request, answered)

    # ---- QuorumListener

    def committed(self, high_watermark: int) -> None:
        while self.applied_offset < high_watermark:
            records = self.quorum.read(self.applied_offset, 1 << 20)
            self.world.ledger.note(self.id, self.quorum.epoch, records)
            for position, header in iter_headers(records):
                if header.base_offset != self.applied_offset:
                    raise Violation(
                        f"I12: node {self.id} reads offset {header.base_offset} after {self.applied_offset}"
                    )
                self.digest = next_digest(self.digest, records[position : position + header.size])
                self.applied_offset = header.next_offset
                self.applied_epoch = header.partition_leader_epoch
        self.world.committed(self, high_watermark)
        self._consider_snapshot()

    def leader_is(self, leader_id: int | None, epoch: int) -> None:
        self.world.told_leader(self, leader_id, epoch)

    def load_snapshot(self, snapshot: SnapshotId) -> None:
        data = read_file(self.disk, self.quorum.path_of(snapshot))
        digest = snapshot_digest(data)
        self.world.loaded_snapshot(self, snapshot, digest)
        self.applied_offset, self.applied_epoch = snapshot
        self.digest = digest
        self.last_snapshot = snapshot.end_offset

    def failed(self, error: Exception) -> None:
        self.failure = error
        self.world.node_failed(self, error)

    # ---- what a broker does beside it

    def append(self, value: bytes, *, batches: int = 1) -> None:
        """As a controller would. The world hears what came of it."""
        quorum = self.quorum
        if not quorum.leads:
            return
        encoded, offset = [], quorum.end_offset
        for number in range(batches):
            builder = BatchBuilder(base_offset=offset, partition_leader_epoch=quorum.epoch)
            builder.append(self.loop.wall_ms(), None, value + b"/%d" % number)
            encoded.append(builder.build())
            offset += 1
        try:
            end_offset = quorum.append(encoded, quorum.epoch)
        except (NotLeader, DiskError):  # the node has been told of the latter
            return
        quorum.when_committed(end_offset, partial(self.world.client_told, self, end_offset, value))

    def _consider_snapshot(self) -> None:
        due = self.applied_offset - self.last_snapshot >= self.world.options.snapshot_every
        if not due or self.is_writing_snapshot:
            return
        self.is_writing_snapshot = True
        snapshot = SnapshotId(self.applied_offset, self.applied_epoch)
        content = encode_snapshot(self.digest, snapshot.epoch, self.loop.wall_ms())
        path = self.quorum.path_of(snapshot)
        write = partial(write_file_atomically, self.disk, path, content)
        self.threads.run(write, partial(self._snapshot_written, snapshot))

    def _snapshot_written(self, snapshot: SnapshotId, result: Exception | None) -> None:
        self.is_writing_snapshot = False
        if result is not None:
            self.failed(result)
            return
        self.last_snapshot = max(self.last_snapshot, snapshot.end_offset)
        self.quorum.snapshot_taken(snapshot)

    def _checkpoint(self) -> None:
        checkpoint = self._manager.checkpoint()
        self.threads.run(checkpoint.run, lambda _: self._finish(checkpoint))

    def _finish(self, checkpoint: Checkpoint) -> None:
        self._run_jobs(checkpoint.finishing(self.loop.wall_ms()), checkpoint)

    def _run_jobs(self, jobs: Iterator[Callable[[], None] | None], checkpoint: Checkpoint) -> None:
        for job in jobs:
            if job is not None:
                self.threads.run(job, lambda _: self._run_jobs(jobs, checkpoint))
                return
        for error in checkpoint.failed.values():
            self.failed(error)
            return
        self.loop.call_later(self.world.options.checkpoint_s, self._checkpoint)

    def die(self) -> None:
        self.loop.is_alive = False
        self.quorum.close()
        self._manager.release_locks()


def encode_snapshot(digest: bytes, epoch: int, now_ms: int) -> bytes:
    """In pieces that do not fit into one fetch: the digest, among other things."""
    header = _control(ControlType.SNAPSHOT_HEADER, encode(SnapshotHeaderRecord(), 0), 0, epoch, now_ms)
    builder = BatchBuilder(base_offset=1, partition_leader_epoch=epoch)
    for number in range(8):
        builder.append(now_ms, None, digest + bytes([number]) * 24)
    footer = _control(ControlType.SNAPSHOT_FOOTER, encode(SnapshotFooterRecord(), 0), 9, epoch, now_ms)
    return header + builder.build() + footer


def _control(kind: ControlType, value: bytes, offset: int, epoch: int, now_ms: int) -> bytes:
    builder = BatchBuilder(base_offset=offset, is_control=True, partition_leader_epoch=epoch)
    builder.append(now_ms, control_key(kind), value)
    return builder.build()


def snapshot_digest(data: bytes) -> bytes:
    try:
        check_whole(data, "snapshot")
        for position, header in iter_headers(data):
            if not header.is_control:
                value = next(iter(iter_records(data, position, header))).value
                return bytes(value or b"")[:16]
    except CorruptDataError as error:
        raise Violation(f"I15: a snapshot that is believed to be durable is not sound: {error}") from error
    raise Violation("I15: a snapshot without content")
