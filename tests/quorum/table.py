"""A quorum on the table: every message and every second moves by hand, and everything that nodes do is written down in words.

The real driver over the real log on a simulated disk; chance draws 0 for node 1, 0.2 for node 2 and so on, so that of several that wait the first one's wait is over
first. The election timeout is 500 ms, the fetch timeout 1500 ms. Fetches that bring nothing new are not written down: they come and go all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.quorum import effects
from tidelog.quorum.driver import Quorum
from tidelog.quorum.effects import Effect
from tidelog.quorum.events import Event
from tidelog.quorum.values import QuorumSettings, SnapshotId, Voters
from tidelog.records.batch import iter_headers
from tidelog.records.builder import BatchBuilder
from tidelog.storage.disk import DiskError, write_file_atomically
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_manager import LogManager
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.quorum_loop import Heap, ProcessLoop
from tidelog.testing.sim.quorum_net import VERSIONS
from tidelog.testing.sim.quorum_node import encode_snapshot
from tidelog.wire.codec import decode, encode
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from tidelog.wire.messages.end_quorum_epoch import EndQuorumEpochRequest
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse
from tidelog.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from tidelog.wire.messages.vote import VoteRequest, VoteResponse


class Always:
    """Chance that draws the same every time: a little more for each node, so that the first node's waits are the shortest."""

    def __init__(self, share: float) -> None:
        self._share = share

    def random(self) -> float:
        return self._share

    def randbytes(self, n: int, /) -> bytes:
        return bytes(n)

    def randrange(self, stop: int, /) -> int:
        return 0


class AtOnce:
    """Threads that are done before anybody looks."""

    def run(self, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        try:
            result = work()
        except (DiskError, CorruptDataError) as error:
            result = error
        done(result)


class InFlight(NamedTuple):
    sender: int
    to: int
    words: str
    is_noise: bool
    arrive: Callable[[], None]


class Player:
    """One node, and its words."""

    def __init__(self, table: Table, settings: QuorumSettings, disk: SimDisk) -> None:
        self.table = table
        self.id = settings.node_id
        self.disk = disk
        self.loop = ProcessLoop(table.heap)
        self.values: list[str] = []
        self.manager = LogManager(disk, self.loop, Random(1), ["/data"], node_id=self.id, cluster_id="table")
        self.manager.open_directories()
        config = LogConfig(segment_bytes=400, index_interval_bytes=100, delete_policy=False)
        self.quorum = Quorum(
            settings,
            self.manager.open_metadata_log(config),
            clock=self.loop,
            rng=Always((self.id - 1) / 5),
            scheduler=self.loop,
            offload=AtOnce(),
            peers=self,
            listener=self,
        )
        self._step = self.quorum.core.step
        self.quorum.core.step = self._told_step  # type: ignore[method-assign]

    def _told_step(self, event: Event, now: float) -> list[Effect]:
        before = type(self.quorum.core.node.role)
        result = self._step(event, now)
        role = type(self.quorum.core.node.role)
        if role is not before:
            self.say(f"is {role.__name__.lower()} in epoch {self.quorum.epoch}")
        for effect in result:
            words = _effect_words(effect)
            if words:
                self.say(words)
        return result

    def say(self, words: str) -> None:
        self.table.lines.append(f"{self.id} {words}")

    # ---- Peers

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        self.table.ask(self, node_id, request, answered, timeout_s)

    # ---- QuorumListener

    def committed(self, high_watermark: int) -> None:
        self.say(f"has committed up to {high_watermark}")

    def leader_is(self, leader_id: int | None, epoch: int) -> None:
        self.say(f"knows: epoch {epoch} has " + ("no leader" if leader_id is None else f"leader {leader_id}"))

    def load_snapshot(self, snapshot: SnapshotId) -> None:
        self.say(f"loads snapshot {snapshot.end_offset}-{snapshot.epoch}")

    def failed(self, error: Exception) -> None:
        raise error


class Table:
    def __init__(self, voters: list[int], observers: list[int]) -> None:
        self.heap = Heap()
        self.settings = QuorumSettings(0, Voters.of(voters), "table", fetch_snapshot_max_bytes=250)
        self.lines: list[str] = []
        self.in_flight: list[InFlight] = []
        self.cuts: set[tuple[int, int]] = set()
        self.players: dict[int, Player] = {}
        self.gone: dict[int, SimDisk] = {node_id: SimDisk(Random(1)) for node_id in (*voters, *observers)}

    # ---- messages

    def ask(
        self, sender: Player, to: int, request: Any, answered: Callable[[Any | None], None], timeout_s: float
    ) -> None:
        open_calls = [answered]

        def answer(response: Any | None) -> None:
            for call in open_calls:
                open_calls.clear()
                call(response)

        sender.loop.call_later(timeout_s, partial(answer, None))
        data = encode(request, VERSIONS[type(request)])
        arrive = partial(self._arrive, sender, to, type(request), data, answer)
        self._send(sender.id, to, _request_words(request), isinstance(request, FetchRequest), arrive)

    def _send(self, sender: int, to: int, words: str, is_noise: bool, arrive: Callable[[], None]) -> None:
        if not is_noise:
            self.lines.append(f"{sender} -> {to} {words}")
        self.in_flight.append(InFlight(sender, to, words, is_noise, arrive))

    def _arrive(
        self, sender: Player, to: int, kind: type[Any], data: bytes, answer: Callable[[Any | None], None]
    ) -> None:
        receiver = self.players.get(to)
        if receiver is None:  # nobody listens there: that is known at once
            answer(None)
            return

        def respond(response: Any) -> None:
            content = encode(response, VERSIONS[type(response)])
            arrive = partial(self._return, sender, type(response), content, answer)
            words, is_noise = _response_words(sender, response)
            self._send(to, sender.id, words, is_noise, arrive)

        receiver.quorum.handle(decode(kind, VERSIONS[kind], data), respond)

    def _return(
        self, sender: Player, kind: type[Any], data: bytes, answer: Callable[[Any | None], None]
    ) -> None:
        if sender.loop.is_alive:
            answer(decode(kind, VERSIONS[kind], data))

    def deliver(self, pairs: list[tuple[int, int]] | None = None) -> bool:
        """What is under way now arrives, in the order in which it was sent; only between these nodes, if any are named."""
        now, self.in_flight = self.in_flight, []
        for message in now:
            pair = (message.sender, message.to)
            if pairs is not None and pair not in pairs:
                self.in_flight.append(message)
            elif pair not in self.cuts:
                message.arrive()
                self.settle()
        return bool(now)

    def stabilize(self) -> None:
        for _ in range(200):
            if not self.deliver():
                return
        raise AssertionError("messages go round and round")

    def settle(self) -> None:
        """Let happen what happens at this very moment."""
        while self.heap.step(self.heap.now + 0.00001):
            pass

    def wait(self, seconds: float, *, deliver: bool = True) -> None:
        """Time passes, and messages arrive as they are sent, unless they are held."""
        end = self.heap.now + seconds
        while self.heap.now < end:
            self.heap.step(min(end, self.heap.now + 0.01))
            self.settle()
            if deliver:
                self.stabilize()

    # ---- nodes

    def start(self, node_id: int) -> None:
        disk = self.gone.pop(node_id)
        player = self.players[node_id] = Player(self, replace(self.settings, node_id=node_id), disk)
        player.quorum.start()
        self.settle()

    def crash(self, node_id: int) -> None:
        player = self.players.pop(node_id)
        player.loop.is_alive = False
        player.quorum.close()
        player.manager.release_locks()
        self.gone[node_id] = player.disk.crash("lose_unsynced")

    def append(self, node_id: int, value: str) -> None:
        quorum = self.players[node_id].quorum
        builder = BatchBuilder(base_offset=quorum.end_offset, partition_leader_epoch=quorum.epoch)
        builder.append(0, None, value.encode())
        quorum.append([builder.build()], quorum.epoch)
        self.settle()

    def snapshot(self, node_id: int) -> None:
        player = self.players[node_id]
        quorum = player.quorum
        epoch = quorum.log.epoch_at(quorum.high_watermark - 1)
        snapshot = SnapshotId(quorum.high_watermark, epoch or 0)
        content = encode_snapshot(bytes(16), snapshot.epoch, 0)
        write_file_atomically(player.disk, quorum.path_of(snapshot), content)
        quorum.snapshot_taken(snapshot)

    def status(self) -> list[str]:
        return [self._status(player) for _, player in sorted(self.players.items())]

    def _status(self, player: Player) -> str:
        core, log = player.quorum.core.node, player.quorum.log
        values = []
        offset = log.start_offset
        while offset < log.end.offset:
            for _, header in iter_headers(log.read(offset, 1 << 20, end_offset=log.end.offset)):
                values.append(f"{'L' if header.is_control else 'r'}{header.partition_leader_epoch}")
                offset = header.next_offset
        start = f"from {log.start_offset} " if log.start_offset else ""
        role = type(core.role).__name__.lower()
        return f"{player.id} {role} epoch {core.epoch} log {start}[{' '.join(values)}] committed {core.high_watermark}"


def _effect_words(effect: Effect) -> str | None:
    match effect:
        case effects.PersistState(state):
            vote = "" if state.voted_id is None else f", voted {state.voted_id}"
            leader = "" if state.leader_id is None else f", leader {state.leader_id}"
            return f"makes durable: epoch {state.epoch}{vote}{leader}"
        case effects.Truncate(offset):
            return f"cuts its log at {offset}"
        case effects.AppendLeaderChange(epoch):
            return f"appends the leader change of epoch {epoch}"
        case effects.AppendFetched(records):
            return f"appends {len(list(iter_headers(records)))} fetched"
        case effects.WriteSnapshot(snapshot, position, data):
            return f"writes bytes {position} to {position + len(data)} of snapshot {snapshot.end_offset}-{snapshot.epoch}"
        case effects.InstallSnapshot(snapshot):
            return f"begins its log at {snapshot.end_offset}"
        case effects.Sync():
            return "syncs its log"
    return None


def _request_words(request: Any) -> str:
    part = request.topics[0].partitions[0]
    match request:
        case VoteRequest():
            kind = "PreVote" if part.pre_vote else "Vote"
            return f"{kind}? epoch {part.replica_epoch}, log ends at {part.last_offset} of epoch {part.last_offset_epoch}"
        case BeginQuorumEpochRequest():
            return f"BeginQuorumEpoch {part.leader_epoch}"
        case EndQuorumEpochRequest():
            ranked = [candidate.candidate_id for candidate in part.preferred_candidates]
            return f"EndQuorumEpoch {part.leader_epoch}, successors {ranked}"
        case FetchSnapshotRequest():
            return (
                f"FetchSnapshot {part.snapshot_id.end_offset}-{part.snapshot_id.epoch} from {part.position}"
            )
    return f"Fetch from {part.fetch_offset}"


def _response_words(asker: Player, response: Any) -> tuple[str, bool]:
    topics = response.responses if isinstance(response, FetchResponse) else response.topics
    part = topics[0].partitions[0]
    if part.error_code:
        told = getattr(part, "current_leader", part)
        return f"{ErrorCode(part.error_code).name}, epoch {told.leader_epoch}, leader {told.leader_id}", False
    match response:
        case VoteResponse():
            return ("yes" if part.vote_granted else f"no, leader {part.leader_id}"), False
        case FetchSnapshotResponse():
            return f"{len(part.unaligned_records)} of {part.size} bytes", False
        case FetchResponse():
            if part.diverging_epoch.end_offset >= 0:
                return f"epoch {part.diverging_epoch.epoch} ends at {part.diverging_epoch.end_offset}", False
            if part.snapshot_id.end_offset >= 0:
                return f"take snapshot {part.snapshot_id.end_offset}-{part.snapshot_id.epoch}", False
            count = len(list(iter_headers(part.records)))
            is_news = count > 0 or part.high_watermark > asker.quorum.high_watermark
            return f"{count} records, high watermark {part.high_watermark}", not is_news
    return "ok", True
