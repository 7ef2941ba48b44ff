"""The controller at work: requests in, records to the quorum, answers when they are committed.

Pipelined: a change is decided against an image that contains everything decided before, is appended, and is true for the next one at once,
while the answer waits until the quorum has committed it and all before it. An answer without records, a refusal too, waits for
what it was decided on: nobody hears of a state that could still be taken back. When leadership is lost all that was not committed is forgotten
and everybody who waits gets NOT_CONTROLLER, whether or not the next controller finds the records in its log.

Callback style on ports, without asyncio: production and simulation run this file. Whoever owns it calls `tick` when `next_tick` says, and looks
at `next_tick` again after every call. Soft state (sessions, log ends) begins anew with each leadership.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tidelog.controller.controller import Controller
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.elections import UNCLEAN_LEADER_ELECTION
from tidelog.controller.heartbeats import ShutdownProgress
from tidelog.controller.image import EMPTY_IMAGE, LeaderRecoveryState, MetadataImage, ResourceType
from tidelog.controller.last_known import LastKnownLogs
from tidelog.controller.metadata_log import bootstrap_records, encode_batches
from tidelog.controller.metadata_records import AbortTransactionRecord, PartitionChangeRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ControllerResult, refuse_each
from tidelog.controller.service_ports import ControllerTimings, MetadataQuorum, NotLeaderError
from tidelog.controller.sessions import SessionTable
from tidelog.errors import RequestError
from tidelog.storage.disk import DiskError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

logger = logging.getLogger("tidelog.controller")

R = TypeVar("R")
Answered = Callable[[R | RequestError], None]

_TICKS_PER_SESSION = 8
_LATE_S = 0.2
"""So much later than it wanted a tick may come before the controller concludes that it was stopped."""


class _Uncommitted(NamedTuple):
    end_offset: int
    delta: MetadataDelta
    image: MetadataImage


class _Waiter(NamedTuple):
    end_offset: int
    tell: Callable[[RequestError | None], None]
    """With None: the answer. With an error: that, instead."""


class ControllerService:
    def __init__(
        self,
        quorum: MetadataQuorum,
        make_controller: Callable[[MetadataImage], Controller],
        *,
        timings: ControllerTimings,
        wall_ms: Callable[[], int],
        min_insync_replicas: int = 1,
        on_committed: Callable[[MetadataDelta, MetadataImage], None] = lambda delta, image: None,
    ) -> None:
        self._quorum = quorum
        self._make_controller = make_controller
        self._timings = timings
        self._wall_ms = wall_ms
        self._min_insync_replicas = min_insync_replicas
        self._on_committed = on_committed
        self._controller: Controller | None = None
        self._refusal = _not_controller()
        self._epoch = -1
        self._end = 0  # behind what this controller has appended
        self._committed_end = 0
        self._committed_image = EMPTY_IMAGE
        self._uncommitted: deque[_Uncommitted] = deque()
        self._waiters: deque[_Waiter] = deque()
        self.sessions = SessionTable(timeout_s=timings.session_timeout_s)
        self._last_known = LastKnownLogs(timings.last_known_wait_s)
        self._last_ran = 0.0
        self._balance_at = self._leaderless_at = 0.0
        self.unclean_elections = 0
        """By this node (Kafka's UncleanLeaderElectionsPerSec counts the same)."""

    # ---- leadership

    @property
    def is_active(self) -> bool:
        return self._controller is not None

    @property
    def active(self) -> Controller | None:
        """Who decides, while this node is the active controller. To look at, or to try a decision: `submit` is the way to make one."""
        return self._controller

    @property
    def epoch(self) -> int:
        """Of the leadership that goes on, or went on last."""
        return self._epoch

    @property
    def image(self) -> MetadataImage:
        """The newest, with what is not committed yet: for the controller's own eyes. All that others are told comes from `committed_image`."""
        return self._controller.image if self._controller is not None else self._committed_image

    @property
    def committed_image(self) -> MetadataImage:
        return self._committed_image

    def lead(
        self,
        epoch: int,
        image: MetadataImage,
        now: float,
        *,
        torn_transaction: bool = False,
        predecessor: int | None = None,
    ) -> None:
        """This node leads. `image` holds all that is in the log, which is committed; its last change may lack its end."""
        if epoch <= self._epoch:
            raise ValueError(f"epoch {epoch} of the quorum begins after epoch {self._epoch}")
        self.lost()
        self._epoch = epoch
        self._controller = self._make_controller(image)
        self._committed_image = image
        self._end = self._committed_end = image.offset + 1
        self._last_ran = now
        self._balance_at = now + (self._timings.balance_interval_s or 0.0)
        self._leaderless_at = now
        self.sessions.adopt(image, now, predecessor=predecessor)
        logger.info("this node is the active controller, in epoch %d", epoch)
        if torn_transaction:
            self._append([AbortTransactionRecord(reason="the controller stopped within it")], ())
        if self._controller is not None and not image.features:
            self._write(bootstrap_records(min_insync_replicas=self._min_insync_replicas))

    def failed(self, error: Exception) -> None:
        """The metadata log cannot be written any more: this node is no controller as long as it lives."""
        self._refusal = RequestError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log cannot be written: {error}"
        )
        self.lost()

    def lost(self) -> None:
        """This node leads no more. What was not committed never happened, as far as this controller goes."""
        self._controller = None
        self._uncommitted.clear()
        self._last_known.clear()
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.tell(self._refusal)

    def committed(self, end_offset: int) -> None:
        """Everything before `end_offset` is committed."""
        if end_offset <= self._committed_end:
            return
        self._committed_end = end_offset
        while self._uncommitted and self._uncommitted[0].end_offset <= end_offset:
            change = self._uncommitted.popleft()
            self._committed_image = change.image
            self._on_committed(change.delta, change.image)
        while self._waiters and self._waiters[0].end_offset <= end_offset:
            self._waiters.popleft().tell(None)

    # ---- requests

    def submit(self, decide: Callable[[Controller], ControllerResult[R]], answered: Answered[R]) -> None:
        """Decide now, answer once: with the response, or with the error that the peer is to be told."""
        self._submit(decide, answered, lambda response: None)

    def register_broker(
        self, request: BrokerRegistrationRequest, now: float, answered: Answered[BrokerRegistrationResponse]
    ) -> None:
        self._saw(now)
        broker = self.image.brokers.get(request.broker_id)
        live = broker is not None and self.sessions.is_live(broker.broker_id, broker.epoch, now)

        def registered(response: BrokerRegistrationResponse) -> None:
            if broker is None or broker.epoch != response.broker_epoch:
                self.sessions.end(request.broker_id)  # that of the run before

        self._submit(
            lambda controller: controller.register_broker(
                request, next_offset=self._quorum.end_offset, session_active=live
            ),
            answered,
            registered,
        )

    def unregister_broker(
        self, request: UnregisterBrokerRequest, now: float, answered: Answered[UnregisterBrokerResponse]
    ) -> None:
        """Only of one that is gone: a live one would register again at once, without its place among those in sync."""
        self._saw(now)
        broker = self.image.brokers.get(request.broker_id)

        def decide(controller: Controller) -> ControllerResult[UnregisterBrokerResponse]:
            if broker is not None and self.sessions.is_live(broker.broker_id, broker.epoch, now):
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    f"broker {broker.broker_id} is running: stop it before it is unregistered",
                )
            return controller.unregister_broker(request)

        self._submit(decide, answered, lambda response: self.sessions.end(request.broker_id))

    def heartbeat(
        self, request: BrokerHeartbeatRequest, now: float, answered: Answered[BrokerHeartbeatResponse]
    ) -> None:
        """Counts as a sign of life when it arrives, however long the answer takes, or if there is no room for one."""
        self._saw(now)
        image = self.image
        broker = image.brokers.get(request.broker_id)
        if self._controller is None or broker is None or broker.epoch != request.broker_epoch:
            self._submit(
                lambda controller: controller.broker_heartbeat(request, ShutdownProgress()),
                answered,
                lambda response: None,
            )
            return
        session = self.sessions.touch(broker.broker_id, broker.epoch, now)
        session.metadata_offset = request.current_metadata_offset
        if broker.in_controlled_shutdown and session.shutdown_offset is None:
            session.shutdown_offset = image.offset  # begun under another controller
        self._last_known.report(image, request, now)
        active = [other.broker_id for other in image.brokers.values() if other.active]
        progress = ShutdownProgress(session.shutdown_offset, self.sessions.lowest_offset(active))

        def decided(response: BrokerHeartbeatResponse) -> None:
            if response.should_shut_down:
                # It is free to go, and to come back: its next run need not wait for this session's end.
                self.sessions.end(request.broker_id)
            elif (
                session.shutdown_offset is None
                and self.image.brokers[request.broker_id].in_controlled_shutdown
            ):
                session.shutdown_offset = self.image.offset

        self._submit(lambda controller: controller.broker_heartbeat(request, progress), answered, decided)
        if request.leaderless_log_ends:
            self._elect_survivors(now)

    def broker_gone(self, broker_id: int, now: float) -> None:
        """Nobody listens at the broker's address any more: there is nothing to wait for."""
        self._saw(now)
        self.sessions.gone(broker_id, now)

    def _submit(
        self,
        decide: Callable[[Controller], ControllerResult[R]],
        answered: Answered[R],
        decided: Callable[[R], None],
    ) -> None:
        """`decided` is told the response when its records are appended, long before anybody else is."""
        controller = self._controller
        if controller is None:
            answered(self._refusal)
            return
        if self._is_full:
            answered(
                RequestError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{len(self._waiters)} requests wait for the controllers' quorum already: try again",
                )
            )
            return
        outcome: R | RequestError
        try:
            result = decide(controller)
        except RequestError as error:
            outcome = error
        else:
            outcome = result.response
            try:
                if result.records and not self._write(result.records):
                    answered(self._refusal)
                    return
                decided(result.response)
            except RequestError as error:  # the disk is full, and nothing has changed
                outcome = result.response if refuse_each(result.response, error) else error
        if self._end <= self._committed_end:
            answered(outcome)
        else:
            self._waiters.append(_Waiter(self._end, partial(_tell, answered, outcome)))

    @property
    def _is_full(self) -> bool:
        return max(len(self._waiters), len(self._uncommitted)) >= self._timings.waiting_max

    # ---- time

    def next_tick(self) -> float | None:
        """When `tick` has something to do. It may be called at any time."""
        if self._controller is None:
            return None
        wanted = [self._last_ran + self._tick_every, self._leaderless_at]
        if self._timings.balance_interval_s is not None:
            wanted.append(self._balance_at)
        deadlines = (self.sessions.next_deadline(), self._last_known.next_deadline(self._last_ran))
        return min(wanted + [deadline for deadline in deadlines if deadline is not None])

    def tick(self, now: float) -> float | None:
        """Fences the silent, elects where waiting is over, gives leaderships back. Returns `next_tick`."""
        self._saw(now)
        if self._controller is not None and not self._is_full:
            self._fence_silent(now)
            self._elect(now)
        return self.next_tick()

    @property
    def _tick_every(self) -> float:
        return self._timings.session_timeout_s / _TICKS_PER_SESSION

    def _saw(self, now: float) -> None:
        """Time in which this node did not run is nobody's silence: what brokers sent meanwhile is still to be read."""
        gap = now - self._last_ran
        if gap > self._tick_every + _LATE_S:
            self.sessions.overslept(gap)
        self._last_ran = max(now, self._last_ran)

    def _fence_silent(self, now: float) -> None:
        for broker_id in self.sessions.expired(now):
            session = self.sessions.get(broker_id)
            broker = self.image.brokers.get(broker_id)
            if broker is not None and session is not None and broker.epoch == session.epoch:
                logger.warning("broker %d is fenced: it has not been heard of for too long", broker_id)
                self._run(partial(Controller.fence_broker, broker_id=broker_id))
            self.sessions.end(broker_id)

    def _elect(self, now: float) -> None:
        self._elect_survivors(now)
        if now >= self._leaderless_at:
            self._leaderless_at = now + self._timings.leaderless_interval_s
            if self._run(Controller.elect_leaderless):
                self._leaderless_at = now
        interval = self._timings.balance_interval_s
        if interval is not None and now >= self._balance_at:
            self._balance_at = now + interval
            if self._run(Controller.balance_leaders):
                self._balance_at = now

    def _elect_survivors(self, now: float) -> None:
        survivors = self._last_known.survivors(self.image, now)
        if survivors:
            self._run(partial(Controller.elect_survivors, survivors=survivors))

    def _run(self, decide: Callable[[Controller], ControllerResult[R]]) -> R | None:
        """The controller's own doing: nobody waits for it."""
        if self._controller is None:
            return None
        result = decide(self._controller)
        if result.records:
            try:
                self._write(result.records)
            except RequestError as error:
                logger.warning("the metadata log takes nothing at the moment: %s", error)
                return None
        return result.response

    # ---- the log

    def _write(self, records: Sequence[MetadataRecord]) -> bool:
        return self._append(records, records)

    def _append(self, records: Sequence[MetadataRecord], replayed: Sequence[MetadataRecord]) -> bool:
        """Replays before it appends: what cannot be replayed must never get into a log. False: leadership is lost.

        RequestError: the log has not taken it (its disk is full), and nothing has changed.
        """
        controller = self._controller
        assert controller is not None
        batches = encode_batches(
            records,
            base_offset=self._quorum.end_offset,
            leader_epoch=self._epoch,
            timestamp_ms=self._wall_ms(),
        )
        end_offset = batches[-1].next_offset
        before = controller.image, self._end
        delta = controller.replay(replayed, offset=end_offset - 1, epoch=self._epoch)
        self._report_unclean(replayed, before[0])
        self._end = end_offset
        self._uncommitted.append(_Uncommitted(end_offset, delta, controller.image))
        if _changes_unclean_election(delta, controller.image):
            self._leaderless_at = self._last_ran  # leaders may be found where there were none
        try:
            appended = self._quorum.append(batches, epoch=self._epoch)
        except NotLeaderError:
            self.lost()
            return False
        except DiskError as error:
            self.failed(error)
            return False
        except RequestError:
            self._uncommitted.pop()
            self._controller, self._end = self._make_controller(before[0]), before[1]
            raise
        assert appended == end_offset, f"{appended} is the end of the log, not {end_offset}"
        return True

    def _report_unclean(self, records: Sequence[MetadataRecord], before: MetadataImage) -> None:
        """Whatever the reason for it was, a leader that was not in sync is news for people: records may be lost."""
        for record in records:
            if (
                isinstance(record, PartitionChangeRecord)
                and record.leader_recovery_state == LeaderRecoveryState.RECOVERING
            ):
                self.unclean_elections += 1
                topic = before.topics_by_id[record.topic_id]
                logger.warning(
                    "unclean election: broker %d leads %s-%d and was not in sync; records that only other replicas had are lost",
                    record.leader, topic.name, record.partition_id,
                )  # fmt: skip


def _tell(answered: Answered[R], outcome: R | RequestError, instead: RequestError | None) -> None:
    """A disk that failed is told where the answer has places for errors, if it has them; another controller is nobody's error but the request's."""
    is_final = instead is not None and instead.code == ErrorCode.KAFKA_STORAGE_ERROR
    if instead is None or (
        is_final and not isinstance(outcome, RequestError) and refuse_each(outcome, instead)
    ):
        answered(outcome)
    else:
        answered(instead)


def _changes_unclean_election(delta: MetadataDelta, after: MetadataImage) -> bool:
    return any(
        key.type in (ResourceType.TOPIC, ResourceType.BROKER)
        and delta.image.config(*key).get(UNCLEAN_LEADER_ELECTION)
        != after.config(*key).get(UNCLEAN_LEADER_ELECTION)
        for key in delta.changed_configs
    )


def _not_controller() -> RequestError:
    return RequestError(ErrorCode.NOT_CONTROLLER, "another node is the active controller by now")
