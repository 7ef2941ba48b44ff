"""The world as the core sees it: time, chance, waiting, the machine, other nodes.

Everything that decides in Tidelog takes a `Clock` and an `Rng` as arguments, so that the same code runs in production,
inside a user's pytest and in the deterministic simulation. The disk has its own port in `tidelog.storage.disk`.
Core packages never import `time`, `random`, `socket` or `asyncio`; this file holds the only production adapters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Two clocks, because they answer two questions: what time is it, and how long did it take."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump, also backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds since some point in the past. Never goes backwards."""
        ...


class Rng(Protocol):
    """The draws the core makes. `random.Random(seed)` satisfies it in simulation."""

    def random(self) -> float: ...

    def randbytes(self, n: int, /) -> bytes: ...

    def randrange(self, stop: int, /) -> int: ...


class SystemClock:
    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class SystemRng:
    """The operating system's randomness: ids that two nodes draw never collide."""

    __slots__ = ()

    def random(self) -> float:
        return int.from_bytes(os.urandom(7), "big") / (1 << 56)

    def randbytes(self, n: int, /) -> bytes:
        return os.urandom(n)

    def randrange(self, stop: int, /) -> int:
        if stop <= 0:
            raise ValueError(f"randrange needs a positive bound, not {stop}")
        return int.from_bytes(os.urandom(8), "big") % stop


class Machine(Protocol):
    """The computer that a node runs on."""

    def boot_id(self) -> str | None:
        """A name for the machine's present life, from one boot to the next; None where there is none to be had."""
        ...


class SystemMachine:
    """Linux. In a container it is the host's, and so is the page cache that it stands for. Elsewhere nothing is claimed: every start may be the machine's first."""

    __slots__ = ()

    def boot_id(self) -> str | None:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                return file.read().strip() or None
        except OSError:
            return None


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """The event loop, as far as waiting needs it. asyncio's loop satisfies it; so does the simulation's."""

    def call_soon(self, callback: Callable[[], object], /) -> object: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> TimerHandle: ...


class Offload(Protocol):
    """Work that waits for the disk leaves the loop: `done` is called on it, with the result or with what was raised."""

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None], /) -> None: ...


class Peers(Protocol):
    """Requests to other nodes of the cluster: `answered` gets the response, or None when there will be none."""

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None: ...
