"""Carries out what the core decides: the quorum as a broker or a simulation uses it. Callbacks over ports, one thread, no locks.

Owns the order of things. Events wait in a queue; the effects of one are carried out before the next is looked at. Two kinds hold up everything behind them
until the disk is done: the election state and a fetched snapshot. A sync of the log holds up nothing: the core waits for `Synced` where it must, and
serves others meanwhile. Syncs begin with the next turn of the loop, so that whatever is appended in one turn is made durable together.

A disk that fails ends the node (I7): `failed` is called once, and nothing is said or done any more. What is in the log it never interprets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from tidelog.errors import CorruptDataError, RequestError, TidelogError
from tidelog.ports import Clock, Offload, Peers, Rng, Scheduler, TimerHandle
from tidelog.quorum import effects, events, state_file
from tidelog.quorum.core import QuorumCore
from tidelog.quorum.describe import describe
from tidelog.quorum.effects import Effect
from tidelog.quorum.events import Event
from tidelog.quorum.log import QuorumLog, open_history
from tidelog.quorum.roles import NEVER, Follower, Leader
from tidelog.quorum.values import ElectionState, QuorumSettings, SnapshotId
from tidelog.quorum.waiting import CommitWaiters
from tidelog.storage.disk import DiskError
from tidelog.storage.log import FlushTicket, Log
from tidelog.wire.messages.describe_quorum import DescribeQuorumResponse

_LOOK_AGAIN_S: Final = 0.005
_SHORTEST_WAIT_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class _BeginAt:
    """The second half of `InstallSnapshot`, on the loop: the snapshot is durable."""

    snapshot: SnapshotId


class NotLeader(TidelogError):
    """This node does not lead, or not in the epoch that the caller has in mind."""


class QuorumListener(Protocol):
    """Who acts on the metadata. Called on the loop, in the order in which things became true; may call the driver back."""

    def committed(self, high_watermark: int) -> None:
        """Everything below can be read, and stands for ever."""
        ...

    def leader_is(self, leader_id: int | None, epoch: int) -> None:
        """If it is this node, it may append from now on, as long as nobody else is named."""
        ...

    def load_snapshot(self, snapshot: SnapshotId) -> None:
        """Throw away what is known, and begin with this snapshot (`path_of`). Never said to a leader."""
        ...

    def failed(self, error: Exception) -> None:
        """The node must stop: its disk failed, or something happened that cannot."""
        ...


class Quorum:
    def __init__(
        self,
        settings: QuorumSettings,
        log: Log,
        *,
        clock: Clock,
        rng: Rng,
        scheduler: Scheduler,
        offload: Offload,
        peers: Peers,
        listener: QuorumListener,
    ) -> None:
        """CorruptDataError if log, snapshots and quorum state do not tell one story."""
        self._settings = settings
        self._clock = clock
        self._scheduler = scheduler
        self._offload = offload
        self._peers = peers
        self._listener = listener
        self._disk, self._directory = log.disk, log.directory
        self.log: QuorumLog = open_history(log, now_ms=clock.wall_ms())
        self.core = QuorumCore(settings, self.log, rng, state_file.read(self._disk, self._directory))
        self._events: deque[Event] = deque()
        self._effects: deque[Effect | _BeginAt] = deque()
        self._answers: dict[int, Callable[[Any], None]] = {}
        self._token = 0
        self._waiters = CommitWaiters()
        self._leads_epoch: int | None = None
        self._is_running = False  # a pump is at work further up the stack
        self._is_held_up = False
        self._is_over = False
        self._sync_is_due = False
        self._ticket: FlushTicket | None = None
        self._after_sync: Callable[[], None] | None = None
        self._timer: TimerHandle | None = None
        self._timer_at = NEVER
        self._stopping: Callable[[], None] | None = None
        self._at_work = 0
        self._has_failed = False
        self._when_idle: list[Callable[[], None]] = []

    # ---- for the broker

    def start(self) -> None:
        self._happened(events.Started())

    def handle(self, request: Any, answered: Callable[[Any], None]) -> None:
        """A Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch or FetchSnapshot of a peer. A fetch may wait for its answer."""
        self._token += 1
        self._answers[self._token] = answered
        self._happened(events.Received(self._token, request))

    def disconnected(self, node_id: int) -> None:
        """A hint that a node may be gone."""
        self._happened(events.Disconnected(node_id))

    def resign(self) -> None:
        """Let somebody else lead. Nothing happens unless this node does."""
        self._happened(events.Resign())

    def stop(self, done: Callable[[], None], *, within_s: float) -> None:
        """Hand leadership over, if there is any to hand over, and be silent. `done` when the others know, or when it takes too long."""
        self._stopping = done
        if self._settings.is_alone:
            self._stopped()
            return
        self._scheduler.call_later(within_s, self._stopped)
        self._happened(events.Resign())
        self._look_whether_settled()

    def close(self) -> None:
        """Be silent at once."""
        self._is_over = True
        self._events.clear()
        self._effects.clear()
        self._answers.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._waiters.gave_up()

    def when_idle(self, done: Callable[[], None]) -> None:
        """After `close`: call `done` when no thread works on its files any more, perhaps at once."""
        self._when_idle.append(done)
        self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        if self._when_idle and self._is_over and self._ticket is None and not self._at_work:
            waiting, self._when_idle = self._when_idle, []
            for done in waiting:
                done()

    def describe(self) -> DescribeQuorumResponse:
        return describe(self.core, self._clock)

    # ---- for the controller

    @property
    def leader_id(self) -> int | None:
        return self.core.node.leader_id

    @property
    def epoch(self) -> int:
        return self.core.node.epoch

    @property
    def high_watermark(self) -> int:
        return self.core.node.high_watermark

    @property
    def end_offset(self) -> int:
        """Where the next batch begins."""
        return self.log.end_offset

    @property
    def is_up_to_date(self) -> bool:
        """This node knows to be committed all that its leader did when it last answered, and it has answered in this epoch."""
        role = self.core.node.role
        if isinstance(role, Follower):
            return 0 <= role.leader_high_watermark <= self.high_watermark
        return self.leads

    @property
    def leads(self) -> bool:
        """This node may append: its epoch has begun, and it has heard of no other."""
        return isinstance(self.core.node.role, Leader) and self._leads_epoch == self.epoch

    def append(self, batches: Sequence[bytes], epoch: int) -> int:
        """Append batches that begin at `end_offset`, all or none; returns the log's end, for `when_committed`.

        NotLeader unless this node leads in `epoch`. RequestError when the disk is full.
        """
        if self._is_over or not self.leads or epoch != self.epoch:
            raise NotLeader(f"node {self._settings.node_id} does not lead in epoch {epoch}")
        try:
            end_offset = self.log.append(batches, epoch=epoch, now_ms=self._clock.wall_ms())
        except DiskError as error:
            self._fail(error)
            raise
        self._happened(events.Appended())
        return end_offset

    def when_committed(self, end_offset: int, done: Callable[[bool], None]) -> None:
        """`done(True)` when everything below is committed; `done(False)` when this node stops leading before it knows."""
        if self._is_over or not self.leads:
            done(False)
        else:
            self._waiters.wait(end_offset, done)
            self._waiters.committed(self.high_watermark)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Committed batches from the one at `offset` on. RequestError below the log's start: a snapshot has what was there."""
        return self.log.read(offset, max_bytes, end_offset=self.high_watermark)

    def path_of(self, snapshot: SnapshotId) -> str:
        return self.log.snapshots.path(snapshot)

    def snapshot_taken(self, snapshot: SnapshotId) -> None:
        """The listener has made one durable, at or below the high watermark: the log may let go of what is before."""
        try:
            self.log.snapshot_taken(snapshot, now_ms=self._clock.wall_ms())
        except DiskError as error:
            self._fail(error)

    # ---- events

    def _happened(self, event: Event) -> None:
        if not self._is_over:
            self._events.append(event)
            self._pump()

    def _pump(self) -> None:
        if self._is_running:
            return
        self._is_running = True
        try:
            while not (self._is_held_up or self._is_over):
                if self._effects:
                    self._carry_out(self._effects.popleft())
                elif self._events:
                    self._effects.extend(self.core.step(self._events.popleft(), self._clock.monotonic()))
                else:
                    break
        except (DiskError, AssertionError) as error:
            self._fail(error)
        finally:
            self._is_running = False
        self._set_timer()
        self._look_whether_settled()

    def _set_timer(self) -> None:
        # While the disk holds everything up, nothing can be done about what is due.
        deadline = NEVER if self._is_over or self._is_held_up else self.core.deadline
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline < NEVER:
            # Never so short that the clock does not move at all.
            delay = max(_SHORTEST_WAIT_S, deadline - self._clock.monotonic())
            self._timer = self._scheduler.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, NEVER
        self._happened(events.Ticked())

    def _look_whether_settled(self) -> None:
        quiet = not (self._events or self._effects or self._is_held_up)
        if self._stopping is not None and quiet and self.core.has_settled:
            self._stopped()

    def _stopped(self) -> None:
        done, self._stopping = self._stopping, None
        if done is not None:
            self.close()
            done()

    def _fail(self, error: Exception) -> None:
        """Told once; also while this is being closed, or the directory would be marked as closed in order."""
        if not self._has_failed:
            self._has_failed = True
            self.close()
            self._listener.failed(error)

    # ---- effects

    def _carry_out(self, effect: Effect | _BeginAt) -> None:
        match effect:
            case effects.Send():
                self._send(effect)
            case effects.Answer(token, response):
                answered = self._answers.pop(token, None)
                if answered is not None:
                    answered(response)
            case effects.Sync():
                self._begin_sync_soon()
            case effects.Committed(high_watermark):
                self.log.log.set_high_watermark(high_watermark)
                self._listener.committed(high_watermark)
                self._waiters.committed(high_watermark)
            case effects.LeaderIs():
                self._on_leader(effect)
            case effects.LoadSnapshot(snapshot):
                self._listener.load_snapshot(snapshot)
            case effects.PersistState(state):
                self._hold_up(partial(self._persist, state), self._persisted)
            case _:
                self._change_log(effect)

    def _change_log(self, effect: Effect | _BeginAt) -> None:
        now_ms = self._clock.wall_ms()
        match effect:
            case effects.AppendLeaderChange(epoch, voters, granting):
                try:
                    self.log.append_leader_change(
                        self._settings.node_id, voters, granting, epoch=epoch, now_ms=now_ms
                    )
                    self._events.appendleft(events.Appended())
                except RequestError:  # the disk is full: somebody else should lead
                    self._events.appendleft(events.Resign())
            case effects.AppendFetched(records):
                try:
                    self.log.append_fetched(records, epoch=self.epoch, now_ms=now_ms)
                    self._events.appendleft(events.Appended())
                except TidelogError as error:
                    self._events.appendleft(events.AppendRefused(str(error)))
            case effects.Truncate():
                if self._must_wait_for_files(effect):
                    return
                self.log.truncate_to(effect.offset)
                self._events.appendleft(events.Truncated())
            case effects.WriteSnapshot(snapshot, position, data):
                self.log.snapshots.write_part(snapshot, position, data)
                self._events.appendleft(events.SnapshotWritten())
            case effects.InstallSnapshot(snapshot):
                install = partial(self.log.snapshots.install, snapshot)
                self._hold_up(install, partial(self._installed, snapshot))
            case _BeginAt(snapshot):
                if self._must_wait_for_files(effect):
                    return
                self.log.begin_at(snapshot, now_ms=now_ms)
                self._events.appendleft(events.SnapshotInstalled(snapshot))

    def _send(self, effect: effects.Send) -> None:
        def answered(response: Any | None) -> None:
            self._happened(events.Answered(effect.request_id, response))

        self._peers.ask(effect.to, effect.request, answered, timeout_s=self._settings.request_timeout_s)

    def _on_leader(self, effect: effects.LeaderIs) -> None:
        self._leads_epoch = effect.epoch if effect.leader_id == self._settings.node_id else None
        if self._leads_epoch is None:
            self._waiters.gave_up()
        self._listener.leader_is(effect.leader_id, effect.epoch)

    # ---- the disk

    def _hold_up(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self._is_held_up = True

        self._at_work += 1

        def finished(result: Exception | None) -> None:
            self._at_work -= 1
            self._look_whether_idle()
            if not self._is_over:
                self._is_held_up = False
                done(result)
                self._go_on()

        self._offload.run(work, finished)

    def _go_on(self) -> None:
        self._pump()
        self._begin_sync()

    def _persist(self, state: ElectionState) -> None:
        """In a thread. A file is no safer than the directory that it is in, and that of a new log is not durable yet."""
        state_file.write(self._disk, self._directory, state, self._settings.voters)
        names = self.log.log.unsynced
        if names.names_uncertain:
            names.make_names_durable(self._disk, self._directory)

    def _persisted(self, result: Exception | None) -> None:
        if result is not None:
            self._fail(result)

    def _installed(self, snapshot: SnapshotId, result: Exception | None) -> None:
        if isinstance(result, CorruptDataError):
            self._events.appendleft(events.SnapshotRefused(str(result)))
            return
        if result is not None:
            self._fail(result)
        else:
            self._effects.appendleft(_BeginAt(snapshot))

    def _begin_sync_soon(self) -> None:
        if not self._sync_is_due:
            self._sync_is_due = True
            self._scheduler.call_soon(self._begin_sync)

    def _begin_sync(self) -> None:
        if self._is_over or self._is_held_up or self._ticket is not None or not self._sync_is_due:
            return
        self._sync_is_due = False
        ticket = self.log.begin_flush()
        if ticket is None:
            self._happened(events.Synced())
            return
        self._ticket = ticket
        self._offload.run(ticket.run, partial(self._synced, ticket))

    def _synced(self, ticket: FlushTicket, result: Exception | None) -> None:
        self._ticket = None
        if result is not None:
            self.log.log.abandon_flush()
            self._fail(result)
        else:
            self.log.log.finish_flush(ticket)
        self._look_whether_idle()
        if self._is_over:
            return
        after, self._after_sync = self._after_sync, None
        if after is not None:
            after()
        self._happened(events.Synced())
        self._begin_sync()

    def _must_wait_for_files(self, effect: Effect | _BeginAt) -> bool:
        """The log is not cut while a thread syncs its files or lets go of some."""
        if self._ticket is None and self.log.log.release is None:
            return False
        self._is_held_up = True
        self._effects.appendleft(effect)
        if self._ticket is not None:
            self._after_sync = self._no_more_held_up
        else:
            self._scheduler.call_later(_LOOK_AGAIN_S, self._look_again)
        return True

    def _no_more_held_up(self) -> None:
        self._is_held_up = False

    def _look_again(self) -> None:
        if not self._is_over:
            self._is_held_up = False
            self._go_on()
