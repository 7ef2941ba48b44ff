"""The coordinator runtime: which coordinator partitions this broker leads, and the shard of each, from load to loss.

Pure: it is called, and it calls back. Owns what happens to a partition over time:

    become_leader ──> loading ──> serving ──> (resign) gone
                       ^   │         │
                       │   v         v
                       └─ pausing <──┘   the load failed, or the shard was lost

A partition that is not here is answered NOT_COORDINATOR, one that loads or pauses COORDINATOR_LOAD_IN_PROGRESS. What is promised about
records and answers is told in `runtime_hosted`. Nothing is retried without a pause between (I52): a second at first, longer each time
until a write has been committed.

Whoever owns the runtime calls `load_some` again and again while it says that there is more, and `expire` when `next_deadline_ms` has
come; the latter may change with every call and whenever `on_lost` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Generic

from tidelog.coordinator.outcome import Now, Outcome, Waiter
from tidelog.coordinator.runtime_hosted import Hosted
from tidelog.coordinator.runtime_load import CHUNK_BYTES, Load
from tidelog.coordinator.runtime_ports import Decode, Deliver, Handler, Journal, Refuse, S
from tidelog.errors import TidelogError
from tidelog.wire.error_codes import ErrorCode

PAUSE_MS: Final = 1000
PAUSE_MS_MAX: Final = 30_000


class _Led(Generic[S]):
    """One partition that this broker leads. Exactly one of `load`, `hosted` and `retry_ms` is there."""

    __slots__ = ("epoch", "failures", "hosted", "journal", "load", "retry_ms")

    def __init__(self, epoch: int, journal: Journal) -> None:
        self.epoch = epoch
        self.journal = journal
        self.load: Load[S] | None = None
        self.hosted: Hosted[S] | None = None
        self.retry_ms: int | None = None
        self.failures = 0  # since something was last committed


class Runtime(Generic[S]):
    __slots__ = (
        "_chunk_bytes", "_decode", "_deliver", "_epochs", "_led", "_loading", "_make_shard", "_now_ms", "_on_lost",
    )  # fmt: skip

    def __init__(
        self,
        make_shard: Callable[[int], S],
        decode: Decode,
        deliver: Deliver,
        *,
        on_lost: Callable[[int, str], None] = lambda partition, reason: None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._make_shard = make_shard
        self._decode = decode
        self._deliver = deliver
        self._on_lost = on_lost
        self._chunk_bytes = chunk_bytes
        self._led: dict[int, _Led[S]] = {}
        self._loading: dict[int, None] = {}  # whose turn it is comes first
        self._epochs: dict[int, int] = {}  # the latest that was heard of
        self._now_ms = 0

    # ---- leadership

    def become_leader(self, partition: int, epoch: int, journal: Journal) -> None:
        """Lead from `epoch` on. The journal of before: nobody else can have written, and the shard stays. Another one: it is loaded anew."""
        if epoch <= self._epochs.get(partition, -1):
            return
        self._epochs[partition] = epoch
        led = self._led.get(partition)
        if led is not None and led.journal is journal:
            led.epoch = epoch
            return
        self._forget(partition)
        self._led[partition] = led = _Led(epoch, journal)
        self._begin_load(partition, led)

    def resign(self, partition: int, epoch: int | None = None) -> None:
        """Lead no more, as of `epoch`. None: the partition itself is gone, and one that comes later begins to count anew."""
        if epoch is None:
            self._epochs.pop(partition, None)
        elif epoch < self._epochs.get(partition, -1):
            return
        else:
            self._epochs[partition] = epoch
        self._forget(partition)

    def _forget(self, partition: int) -> None:
        led = self._led.pop(partition, None)
        self._loading.pop(partition, None)
        if led is not None and led.hosted is not None:
            led.hosted.close()

    def shard(self, partition: int) -> S | None:
        """To look at, for those who explain and measure; None unless it serves."""
        led = self._led.get(partition)
        return None if led is None or led.hosted is None else led.hosted.shard

    # ---- work

    def submit(self, partition: int, handler: Handler[S], waiter: Waiter, refuse: Refuse, now: Now) -> None:
        """Let the partition's shard handle a request. `waiter` is answered once, perhaps before this returns; it stands for this one
        call. `refuse` makes the answer if the runtime must give one. What a handler raises by mistake comes out here as well.
        """
        self._saw(now)
        led = self._led.get(partition)
        if led is None:
            self._deliver(waiter, refuse(ErrorCode.NOT_COORDINATOR))
        elif led.hosted is None:
            self._deliver(waiter, refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        else:
            led.hosted.submit(handler, waiter, refuse, now)

    def for_each(self, work: Callable[[S, Now], Outcome], now: Now) -> None:
        """Something happened that all shards must know. Those that load now do not hear of it: what they need of the world they look up then."""
        self._saw(now)
        for hosted in [led.hosted for led in self._led.values()]:
            if hosted is not None:
                hosted.run(partial(work, hosted.shard, now), now)

    # ---- loading

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    @property
    def next_to_load(self) -> int | None:
        """The partition that `load_some` will work on; None: none loads."""
        return next(iter(self._loading), None)

    def load_some(self, now: Now) -> bool:
        """A few milliseconds of work for one of the partitions that load, in turn. True: there is more to do."""
        self._saw(now)
        partition = next(iter(self._loading), None)
        if partition is None:
            return False
        del self._loading[partition]
        led = self._led[partition]
        assert led.load is not None
        try:
            has_more = led.load.step()
        except TidelogError as error:
            self._pause(partition, led, f"{type(error).__name__}: {error}")
        except Exception as error:
            self._pause(partition, led, f"{type(error).__name__}: {error}")
            raise
        else:
            if has_more:
                self._loading[partition] = None
            else:
                self._serve(partition, led, led.load.shard, now)
        return self.is_loading

    def _begin_load(self, partition: int, led: _Led[S]) -> None:
        led.retry_ms = None
        led.load = Load(self._make_shard(partition), led.journal, self._decode, chunk_bytes=self._chunk_bytes)
        self._loading[partition] = None

    def _serve(self, partition: int, led: _Led[S], shard: S, now: Now) -> None:
        def lost(hosted: Hosted[S], reason: str) -> None:
            if led.hosted is hosted:
                self._pause(partition, led, reason)

        led.load = None
        led.hosted = Hosted(shard, led.journal, self._deliver, lost)
        led.hosted.begin(now)

    def _pause(self, partition: int, led: _Led[S], reason: str) -> None:
        if led.hosted is not None and led.hosted.has_committed:
            led.failures = 0
        led.load = led.hosted = None
        led.retry_ms = self._now_ms + min(PAUSE_MS << min(led.failures, 10), PAUSE_MS_MAX)
        led.failures += 1
        self._on_lost(partition, reason)

    # ---- time

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next; perhaps nothing is due then. None: nothing is planned."""
        deadlines = [
            led.retry_ms if led.hosted is None else led.hosted.shard.timers.next_deadline_ms()
            for led in self._led.values()
        ]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def expire(self, now: Now) -> None:
        self._saw(now)
        for partition, led in list(self._led.items()):
            if led.hosted is not None:
                led.hosted.expire(now)
            elif led.retry_ms is not None and led.retry_ms <= now.ms and self._led.get(partition) is led:
                self._begin_load(partition, led)

    def _saw(self, now: Now) -> None:
        self._now_ms = max(self._now_ms, now.ms)
