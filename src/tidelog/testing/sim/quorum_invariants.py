"""What must hold in a simulated quorum, one small class per promise (I10 to I16 of RELIABILITY §8). Each is asked after every step of every node.

They look from outside, at what nodes are, say and have on their disks; never at how they come to it. A breach is a `Violation` with the promise's number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Final, Protocol

from tidelog.ports import Clock
from tidelog.quorum import state_file
from tidelog.quorum.driver import Quorum
from tidelog.quorum.effects import Effect, LoadSnapshot
from tidelog.quorum.roles import Candidate, Follower, Leader
from tidelog.quorum.values import ElectionState, QuorumSettings, SnapshotId, Voters
from tidelog.records.batch import iter_headers
from tidelog.storage import files
from tidelog.storage.log_manager import LogManager
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.inodes import Directory, Inode
from tidelog.testing.sim.quorum_ledger import CommittedBatch, Ledger, Violation
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.vote import VoteRequest, VoteResponse

LOG_DIR: Final = "/data"
_METADATA_DIR: Final = f"{LOG_DIR}/__cluster_metadata-0"
_STATE_NAMES: Final = tuple(f"{_METADATA_DIR}/{files.QUORUM_STATE}".strip("/").split("/"))
_LOOK_AT_DISKS_EVERY: Final = 25


class ObservedLoop(Clock, Protocol):
    rate: float

    @property
    def is_alive(self) -> bool: ...

    @property
    def is_paused(self) -> bool: ...


class ObservedNode(Protocol):
    """One life of a voter or an observer."""

    id: int
    life: int
    disk: SimDisk
    rng: Random

    @property
    def quorum(self) -> Quorum: ...

    @property
    def loop(self) -> ObservedLoop: ...


class Time(Protocol):
    now: float


class ObservedWorld(Protocol):
    ledger: Ledger
    voters: Voters
    settings: QuorumSettings
    """Of any node."""
    resumed_at: dict[int, float]

    @property
    def heap(self) -> Time: ...

    @property
    def nodes(self) -> Mapping[int, ObservedNode]:
        """The last life of each."""
        ...

    def leaders(self) -> Sequence[ObservedNode]: ...


class Invariant:
    def __init__(self, world: ObservedWorld) -> None:
        self.world = world

    def stepped(self, node: ObservedNode, effects: list[Effect]) -> None:
        """A node has taken a step. Its effects are not carried out yet."""

    def said(self, sender: ObservedNode, to: int, message: Any) -> None:
        """A message leaves."""

    def arrived(self, receiver: ObservedNode, sender: int, message: Any) -> None:
        """A request is about to be handled."""

    def committed(self, node: ObservedNode, high_watermark: int) -> None:
        """A node says that everything below is committed."""

    def moment(self) -> None:
        """An event has passed."""

    def disk_replaced(self, node_id: int) -> None:
        """Within the fault atlas (H14): all other voters follow one leader, and have all that it has."""


class SingleLeader(Invariant):
    """I10: at most one leader per epoch."""

    def __init__(self, world: ObservedWorld) -> None:
        super().__init__(world)
        self._leaders: dict[int, int] = {}

    def stepped(self, node: ObservedNode, effects: list[Effect]) -> None:
        core = node.quorum.core.node
        if isinstance(core.role, Leader):
            leader = self._leaders.setdefault(core.state.epoch, node.id)
            if leader != node.id:
                raise Violation(f"I10: nodes {leader} and {node.id} both lead in epoch {core.epoch}")


class PersistBeforeSend(Invariant):
    """I11: epoch and vote only go forward, and are on the disk before any message that rests on them."""

    def __init__(self, world: ObservedWorld) -> None:
        super().__init__(world)
        self._epochs: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}

    def stepped(self, node: ObservedNode, effects: list[Effect]) -> None:
        epoch = node.quorum.core.node.state.epoch
        life = node.id * 1000 + node.life
        before = self._epochs.get(life, 0)
        if epoch < before:
            raise Violation(f"I11: node {node.id} went from epoch {before} to {epoch}")
        self._epochs[life] = epoch

    def said(self, sender: ObservedNode, to: int, message: Any) -> None:
        epoch, voted = _rests_on(sender, to, message)
        if epoch is None:
            return
        durable = durable_state(sender.disk)
        if durable.epoch < epoch or (
            voted is not None and durable != durable._replace(epoch=epoch, voted_id=voted)
        ):
            raise Violation(
                f"I11: node {sender.id} sends {type(message).__name__} of epoch {epoch} (vote {voted}) while its disk has {durable}"
            )
        if voted is not None:
            given = self._votes.setdefault((sender.id, epoch), voted)
            if given != voted:
                raise Violation(f"I11: node {sender.id} has voted for {given} and {voted} in epoch {epoch}")

    def disk_replaced(self, node_id: int) -> None:
        """Its votes went with its disk: asked late by a candidate of an epoch that has its leader, it may vote again. There is no second leader for that (I10)."""
        self._votes = {key: voted for key, voted in self._votes.items() if key[0] != node_id}


def _rests_on(sender: ObservedNode, to: int, message: Any) -> tuple[int | None, int | None]:
    """The epoch that a message is of, and the vote that it tells. Answers of old are not repeated, so the epoch is the sender's."""
    if isinstance(message, VoteRequest):
        part = message.topics[0].partitions[0]
        return part.replica_epoch, None if part.pre_vote else sender.id
    if isinstance(message, VoteResponse):
        if not message.topics:
            return None, None
        answer = message.topics[0].partitions[0]
        is_vote = answer.vote_granted and sender.quorum.core.node.state.voted_id == to
        return answer.leader_epoch, to if is_vote else None
    if isinstance(message, FetchRequest):
        return message.topics[0].partitions[0].current_leader_epoch, None
    return None, None


def durable_state(disk: SimDisk) -> ElectionState:
    """What a power loss at this moment would leave of the quorum state, at the least."""
    node: Inode | Directory | None = disk.machine.root
    for name in _STATE_NAMES:
        node = node.durable.get(name) if isinstance(node, Directory) else None
    if not isinstance(node, Inode) or not node.durable:
        return ElectionState(-1)
    return _decoded(bytes(node.durable))


@lru_cache(maxsize=256)
def _decoded(content: bytes) -> ElectionState:
    """A state is read with every message that rests on it, and written once."""
    return state_file.decode(content, files.QUORUM_STATE)


class LeaderCompleteness(Invariant):
    """I13: whoever leads an epoch has everything that was committed in earlier ones. (I12, that nodes agree on it, is the ledger's.)"""

    def __init__(self, world: ObservedWorld) -> None:
        super().__init__(world)
        self._seen: set[tuple[int, int]] = set()

    def stepped(self, node: ObservedNode, effects: list[Effect]) -> None:
        core = node.quorum.core.node
        if not isinstance(core.role, Leader) or (node.id, core.state.epoch) in self._seen:
            return
        self._seen.add((node.id, core.epoch))
        log, ledger = node.quorum.log, self.world.ledger
        committed = ledger.committed_before(core.epoch)
        if log.end.offset < committed:
            raise Violation(
                f"I13: node {node.id} leads epoch {core.epoch} with a log to {log.end.offset}; {committed} is committed"
            )
        offset = log.start_offset
        while offset < committed:
            records = log.read(offset, 1 << 20, end_offset=committed)
            for _, header in iter_headers(records):
                found = CommittedBatch(header.partition_leader_epoch, header.crc, header.next_offset)
                if ledger.batches.get(header.base_offset) != found:
                    raise Violation(
                        f"I13: node {node.id} leads epoch {core.epoch} with {found} at committed offset {header.base_offset}"
                    )
                offset = header.next_offset


class MajorityHasIt(Invariant):
    """I14: the high watermark never goes back, and what is below it is on a majority's disks, synced."""

    def __init__(self, world: ObservedWorld) -> None:
        super().__init__(world)
        self._high_watermarks: dict[tuple[int, int], int] = {}
        self._advances = 0

    def committed(self, node: ObservedNode, high_watermark: int) -> None:
        before = self._high_watermarks.get((node.id, node.life), 0)
        if high_watermark < before:
            raise Violation(f"I14: node {node.id}'s high watermark went from {before} to {high_watermark}")
        self._high_watermarks[node.id, node.life] = high_watermark
        if not isinstance(node.quorum.core.node.role, Leader):
            return
        self._advances += 1
        voters = self.world.voters
        # What nodes believe is a quick look; those that were started a moment ago do not know what is durable already.
        there = [voter for voter in voters.ids if voter in self.world.nodes]
        believed = [self.world.nodes[voter].quorum.log.synced_offset for voter in there]
        looks_right = sum(end >= high_watermark for end in believed) >= voters.majority
        if looks_right and self._advances % _LOOK_AT_DISKS_EVERY:
            return
        durable = [self._durable(voter) for voter in there]
        if sum(end >= high_watermark for end in durable) < voters.majority:
            raise Violation(f"I14: {high_watermark} is committed, and durable up to {durable}")

    def _durable(self, voter: int) -> int:
        """Where the log ends that a power loss at this moment would leave."""
        node = self.world.nodes[voter]
        manager = LogManager(
            node.disk.crash("lose_unsynced"),
            node.loop,
            node.rng,
            [LOG_DIR],
            node_id=voter,
            cluster_id=self.world.settings.cluster_id,
        )
        manager.open_directories()
        log = manager.open_metadata_log()
        snapshots = [files.parse_metadata_snapshot(name) for name in log.disk.list_dir(log.directory)]
        return max([log.log_end_offset, *(found[0] for found in snapshots if found is not None)])


class SnapshotAtLogStart(Invariant):
    """I15: where a log begins, a snapshot reaches; it says what the log said. A leader never loads one."""

    def stepped(self, node: ObservedNode, effects: list[Effect]) -> None:
        log = node.quorum.log
        latest = log.latest_snapshot
        reach = 0 if latest is None else latest.end_offset
        start, end = log.log.log_start_offset, log.log.log_end_offset
        if not start <= reach <= end and (start or reach):
            raise Violation(f"I15: node {node.id}'s log is {start} to {end}, its snapshot {latest}")
        for effect in effects:
            if isinstance(effect, LoadSnapshot) and isinstance(node.quorum.core.node.role, Leader):
                raise Violation(f"I15: node {node.id} leads, and loads a snapshot")

    def loaded(self, node: ObservedNode, snapshot: SnapshotId, digest: bytes) -> None:
        ledger = self.world.ledger
        if ledger.digests.get(snapshot.end_offset) != digest:
            raise Violation(
                f"I15: node {node.id} has {snapshot}, which is not what was committed up to there"
            )
        if ledger.epochs.get(snapshot.end_offset) != snapshot.epoch:
            raise Violation(f"I15: {snapshot} has not the epoch of the last record that it stands for")


class NoNeedlessElection(Invariant):
    """I16, pre-vote: nobody begins an epoch while a majority keeps hearing from a leader."""

    def __init__(self, world: ObservedWorld) -> None:
        super().__init__(world)
        self._epochs: dict[int, int] = {}  # of candidates, by node
        self._served: dict[int, tuple[int, int, float, float]] = {}  # epoch, leader, since, last

    def stepped(self, node: ObservedNode, effects: list[Effect]) -> None:
        core, now = node.quorum.core.node, self.world.heap.now
        self._note_contact(node)
        if not isinstance(core.role, Candidate) or self._epochs.get(node.id) == core.epoch:
            return
        self._epochs[node.id] = core.epoch
        for leader in self.world.leaders():
            served = [voter for voter in self.world.voters.ids if self._is_served(voter, leader, now)]
            if len(served) + 1 >= self.world.voters.majority:
                raise Violation(
                    f"I16: node {node.id} begins epoch {core.epoch} while {served} hear from {leader.id}, leader of {leader.quorum.epoch}"
                )

    def _note_contact(self, node: ObservedNode) -> None:
        core = node.quorum.core.node
        role = core.role
        if not isinstance(role, Follower) or core.suspects_leader or core.heard_at is None:
            self._served.pop(node.id, None)
            return
        now, timeout_s = self.world.heap.now, self.world.settings.fetch_timeout_s * 0.9
        heard = core.heard_at / node.loop.rate
        epoch, leader, since, last = self._served.get(node.id, (-1, -1, heard, heard))
        if (
            (epoch, leader) != (core.epoch, role.leader_id)
            or heard - last > timeout_s
            or now - heard > timeout_s
        ):
            since = heard
        self._served[node.id] = (core.epoch, role.leader_id, since, heard)

    def _is_served(self, voter: int, leader: ObservedNode, now: float) -> bool:
        epoch, leader_id, since, last = self._served.get(voter, (-1, -1, now, now))
        node, settings = self.world.nodes[voter], self.world.settings
        long_enough_s = 1.1 * (2 * settings.election_timeout_s + settings.fetch_timeout_s)
        is_follower = node.loop.is_alive and not node.loop.is_paused
        return (
            is_follower
            and (epoch, leader_id) == (leader.quorum.epoch, leader.id)
            and now - since > long_enough_s
            and now - last < settings.fetch_timeout_s * 0.9
        )


class NoLonelyLeader(Invariant):
    """I16, check-quorum: a leader that a majority has not fetched from within the fetch timeout leads no more."""

    slack_s = 0.05

    def __init__(self, world: ObservedWorld) -> None:
        super().__init__(world)
        self._fetched: dict[tuple[int, int], dict[int, float]] = {}  # by leader and epoch

    def arrived(self, receiver: ObservedNode, sender: int, message: Any) -> None:
        quorum = receiver.quorum
        if sender in self.world.voters and hasattr(message, "max_bytes") and quorum.leader_id == receiver.id:
            self._contacts(receiver)[sender] = self.world.heap.now

    def moment(self) -> None:
        world = self.world
        for leader in world.leaders():
            others = self._contacts(leader)
            contact = world.voters.reached([world.heap.now, *others.values()])
            quiet_s = world.heap.now - max(contact, world.resumed_at.get(leader.id, 0.0))
            if quiet_s > world.settings.fetch_timeout_s * 1.05 + self.slack_s:
                raise Violation(
                    f"I16: node {leader.id} still leads epoch {leader.quorum.epoch} {quiet_s:.3f} s after a majority was heard of"
                )

    def _contacts(self, leader: ObservedNode) -> dict[int, float]:
        known = self._fetched.get((leader.id, leader.quorum.epoch))
        if known is None:
            known = dict.fromkeys(self.world.voters.others(leader.id), self.world.heap.now)
            self._fetched[leader.id, leader.quorum.epoch] = known
        return known


ALL: Final[tuple[type[Invariant], ...]] = (
    SingleLeader,
    PersistBeforeSend,
    LeaderCompleteness,
    MajorityHasIt,
    SnapshotAtLogStart,
    NoNeedlessElection,
    NoLonelyLeader,
)
