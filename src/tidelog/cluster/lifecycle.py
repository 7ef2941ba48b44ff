"""A broker in its cluster: it registers, says that it lives, is let in, and asks to be let go.

    waiting ── start() ─>
    registering ── answered: epoch ──> fenced ── caught up ──> active ── stop() ──> shutting down ── may stop ──> stopped
         ^            │                   ^                     │
         └── stale ───┘                   └──── fenced ─────────┘ (heartbeats came too late: the next one lets it in again)

Owns the broker epoch: the offset of the registration, which whatever this broker says carries (KIP-903). Heartbeats go to whoever is the active controller. They count when they arrive, so
the next one does not wait for the answer to the last, which may take as long as the metadata log's disk; one that got none is sent again after a short pause. When another
controller leads, what the one before was asked does not matter any more. Time and the way to the controller are ports.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple, Protocol

from tidelog.ports import Peers, Scheduler, TimerHandle
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

UNKNOWN_EPOCH: Final = -1
_FATAL: Final = frozenset(
    (
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.UNSUPPORTED_VERSION,
    )
)
"""Nothing that time would mend."""


class Phase(Enum):
    WAITING = auto()
    """Nothing is said yet: the broker has not opened its logs."""
    REGISTERING = auto()
    FENCED = auto()
    ACTIVE = auto()
    SHUTTING_DOWN = auto()
    STOPPED = auto()


UNANSWERED_MAX: Final = 4
"""Heartbeats on their way. A controller that answers none of so many has no use for more of them."""


class LifecycleTimings(NamedTuple):
    heartbeat_interval_s: float = 0.25
    request_timeout_s: float = 1.0
    """Then the connection is given up for another one: half of a session, so that one broken path does not cost all of it."""
    retry_s: float = 0.05
    shutdown_timeout_s: float = 30.0
    unanswered_s: float = 3.0
    """When no controller answers a broker that stops for this long, the others have probably stopped before it."""


class BrokerSelf(Protocol):
    """What the lifecycle asks of its broker, and tells it."""

    def registration(self) -> BrokerRegistrationRequest: ...

    def describe(self, heartbeat: BrokerHeartbeatRequest) -> None:
        """Fill in what only the broker knows: how far its metadata goes, which disks have failed, where leaderless logs end."""
        ...

    def registered(self, epoch: int) -> None: ...

    def let_in(self) -> None:
        """Not fenced any more: clients are told of this broker from now on."""
        ...

    def refused(self, code: ErrorCode) -> None:
        """The cluster will never take this broker as it is."""
        ...


class BrokerLifecycle:
    def __init__(
        self,
        broker_id: int,
        broker: BrokerSelf,
        *,
        controller_id: Callable[[], int | None],
        peers: Peers,
        scheduler: Scheduler,
        timings: LifecycleTimings,
    ) -> None:
        self._broker_id = broker_id
        self._broker = broker
        self._controller_id = controller_id
        self._peers = peers
        self._scheduler = scheduler
        self._timings = timings
        self.phase = Phase.WAITING
        self.epoch = UNKNOWN_EPOCH
        self._timer: TimerHandle | None = None
        self._giving_up: TimerHandle | None = None
        self._in_flight = 0
        self._spoken_to: int | None = None
        self._conversation = 0
        """Counts controllers and phases: an answer to an earlier one is not for this one."""
        self._wanted_soon = False
        self._stopped: Callable[[], None] | None = None

    # ---- for the broker

    def start(self) -> None:
        self.phase = Phase.REGISTERING
        self._speak()

    def resume(self, epoch: int) -> None:
        """Instead of `start`: this broker was registered and let in by other means."""
        self.epoch = epoch
        self.phase = Phase.ACTIVE
        self._speak()

    @property
    def is_active(self) -> bool:
        return self.phase is Phase.ACTIVE

    def soon(self) -> None:
        """There is something to tell that should not wait for the next heartbeat: a new controller, metadata that has caught up."""
        if self._in_flight and self._controller_id() == self._spoken_to:
            self._wanted_soon = True
        elif self.phase not in (Phase.WAITING, Phase.STOPPED):
            self._after(0.0)

    def connection_lost(self) -> None:
        """Of the way to the controller, which takes that for a sign of death: it is to hear otherwise, at the pace of a retry."""
        if not self._in_flight and self.phase not in (Phase.WAITING, Phase.STOPPED):
            self._after(self._timings.retry_s)

    def stop(self, done: Callable[[], None]) -> None:
        """Controlled shutdown: `done` when this broker leads nothing any more and everybody knows, or when nobody can be asked for too long."""
        self._stopped = done
        if self.phase in (Phase.WAITING, Phase.REGISTERING, Phase.STOPPED):
            self._end()
            return
        self.phase = Phase.SHUTTING_DOWN
        self._scheduler.call_later(self._timings.shutdown_timeout_s, self._end)
        self._give_up_unless_answered()
        self.soon()

    def _give_up_unless_answered(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._giving_up = self._scheduler.call_later(self._timings.unanswered_s, self._end)

    def close(self) -> None:
        """Say nothing more."""
        self._stopped = None
        self._end()

    # ---- speaking

    def _speak(self) -> None:
        self._timer = None
        if self.phase is Phase.STOPPED:
            return
        controller_id = self._controller_id()
        if controller_id is None:
            self._after(self._timings.retry_s)
            return
        if controller_id != self._spoken_to:
            self._spoken_to = controller_id
            self._begin_anew()
        if self.phase is Phase.REGISTERING:
            if not self._in_flight:
                self._ask(self._broker.registration(), self._registered)
        elif self._in_flight < UNANSWERED_MAX:
            self._after(self._timings.heartbeat_interval_s)
            self._ask(self._heartbeat(), self._answered)

    def _begin_anew(self) -> None:
        """What was asked before is not waited for any more."""
        self._conversation += 1
        self._in_flight = 0
        self._wanted_soon = False

    def _ask(self, request: Any, take: Callable[[Any | None], None]) -> None:
        conversation = self._conversation

        def answered(response: Any | None) -> None:
            if conversation == self._conversation:
                self._in_flight -= 1
                take(response)

        self._in_flight += 1
        assert self._spoken_to is not None
        self._peers.ask(self._spoken_to, request, answered, timeout_s=self._timings.request_timeout_s)

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        heartbeat = BrokerHeartbeatRequest(
            broker_id=self._broker_id,
            broker_epoch=self.epoch,
            want_shut_down=self.phase is Phase.SHUTTING_DOWN,
        )
        self._broker.describe(heartbeat)
        return heartbeat

    def _registered(self, response: BrokerRegistrationResponse | None) -> None:
        if self.phase is not Phase.REGISTERING:
            return
        code = _code(response)
        if code in _FATAL:
            self._end()
            self._broker.refused(code)
        elif code is not ErrorCode.NONE or response is None:
            self._after(self._timings.retry_s)
        else:
            self.epoch = response.broker_epoch
            self.phase = Phase.FENCED
            self._broker.registered(self.epoch)
            self._after(0.0)

    def _answered(self, response: BrokerHeartbeatResponse | None) -> None:
        if self.phase is Phase.STOPPED:
            return
        code = _code(response)
        if code is ErrorCode.STALE_BROKER_EPOCH and self.phase is not Phase.SHUTTING_DOWN:
            # Unregistered, or another process of this id was faster. The registration tells which.
            self.phase = Phase.REGISTERING
            self._begin_anew()
        if code is not ErrorCode.NONE or response is None:
            self._after(self._timings.retry_s)
            return
        if self.phase is Phase.SHUTTING_DOWN:
            if response.should_shut_down:
                self._end()
                return
            self._give_up_unless_answered()
        elif response.is_fenced:
            self.phase = Phase.FENCED
        elif self.phase is Phase.FENCED:
            self.phase = Phase.ACTIVE
            self._broker.let_in()
        hurry = self._wanted_soon or self.phase in (Phase.FENCED, Phase.SHUTTING_DOWN)
        self._wanted_soon = False
        if hurry:
            self._after(self._timings.retry_s)
        elif self._timer is None:
            self._after(self._timings.heartbeat_interval_s)

    def _after(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._scheduler.call_later(delay_s, self._speak)

    def _end(self) -> None:
        self.phase = Phase.STOPPED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done, self._stopped = self._stopped, None
        if done is not None:
            done()


def _code(response: BrokerRegistrationResponse | BrokerHeartbeatResponse | None) -> ErrorCode:
    return ErrorCode.NETWORK_EXCEPTION if response is None else ErrorCode(response.error_code)
