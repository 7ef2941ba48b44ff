"""A broker in its cluster: it registers, says that it lives, is let in, and asks to be let go.

    waiting ── start() ─>
    registering ── answered: epoch ──> fenced ── caught up ──> active ── stop() ──> shutting down ── may stop ──> stopped
         ^            │                   ^                     │
         └── stale ───┘                   └──── fenced ─────────┘ (heartbeats came too late: the next one lets it in again)

Owns the broker epoch: the offset of the registration, which whatever this broker says carries (KIP-903). Heartbeats go to whoever is the active controller; one that
is not answered is sent again after a short pause. Time and the way to the controller are ports.
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


class LifecycleTimings(NamedTuple):
    heartbeat_interval_s: float = 0.2
    request_timeout_s: float = 1.0
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
        self._in_flight = False
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
        if self._in_flight:
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
        if self._in_flight or self.phase is Phase.STOPPED:
            return
        controller_id = self._controller_id()
        if controller_id is None:
            self._after(self._timings.retry_s)
            return
        request: Any
        if self.phase is Phase.REGISTERING:
            request = self._broker.registration()
            answered: Callable[[Any | None], None] = self._registered
        else:
            request = self._heartbeat()
            answered = self._answered
        self._in_flight = True
        self._peers.ask(controller_id, request, answered, timeout_s=self._timings.request_timeout_s)

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        heartbeat = BrokerHeartbeatRequest(
            broker_id=self._broker_id,
            broker_epoch=self.epoch,
            want_shut_down=self.phase is Phase.SHUTTING_DOWN,
        )
        self._broker.describe(heartbeat)
        return heartbeat

    def _registered(self, response: BrokerRegistrationResponse | None) -> None:
        self._in_flight = False
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
        self._in_flight = False
        if self.phase is Phase.STOPPED:
            return
        code = _code(response)
        if code is ErrorCode.STALE_BROKER_EPOCH and self.phase is not Phase.SHUTTING_DOWN:
            # Unregistered, or another process of this id was faster. The registration tells which.
            self.phase = Phase.REGISTERING
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
        self._after(self._timings.retry_s if hurry else self._timings.heartbeat_interval_s)

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
