"""One flow while it runs: started in a thread of its own, watched, started again if it may be, stopped.

Knows its job by two functions (`jobs/__init__.py`) and Spark's queries by what they tell; decides nothing about other flows.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tidelog.pipeline.context import FromTopics, JobContext
from tidelog.pipeline.failures import in_words_of_a_flow, reason
from tidelog.pipeline.progress import QueryTracker
from tidelog.pipeline.status import FlowStatus
from tidelog.pipeline.values import Flow, OnFailure

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

PAUSE_SECONDS_MIN: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0
FORGIVEN_SECONDS: Final = 3600.0
"""A flow that ran so long has earned its restarts back."""
CANCEL_EVERY_SECONDS: Final = 0.2
FULL_BYTES: Final = 16 * 1024
"""A disk with less left than a batch's own files take is full."""
SLOW_STARTS_MAX: Final = 10
_SLOW_START: Final = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to come up and no setting for that; a busy machine may need more. Nothing was read yet, so any flow may try again, whatever it is to do when it fails."""


class FlowRun:
    """`poll` once a second; `status` says the rest."""

    def __init__(
        self,
        flow: Flow,
        context: JobContext,
        *,
        on_failure: OnFailure,
        restarts_max: int,
        told: Callable[[str], str],
    ) -> None:
        self.flow = flow
        self._context = context
        self._on_failure = on_failure
        self._restarts_max = restarts_max
        self._told = told
        self._thread: threading.Thread | None = None
        self._has_an_end = False
        self._failure: BaseException | None = None
        self._queries: tuple[StreamingQuery, ...] = ()
        self._trackers: tuple[QueryTracker, ...] = ()
        self._result: Mapping[str, Any] | None = None
        self._state = "queued"
        self._error: str | None = None
        self._restarts = 0
        self._failures_in_a_row = 0
        self._running_since = 0.0
        self._start_again_at = 0.0
        self._changed_at = time.time()
        self.is_slow_to_start = False
        """Whether it failed last because the machine was too busy to begin."""
        self._stopping: threading.Thread | None = None
        self._last_batches: tuple[int, ...] = ()

    @property
    def state(self) -> str:
        return self._state

    @property
    def is_initializing(self) -> bool:
        """Whether it is at work on beginning, which takes more of a machine than most of what follows."""
        return self._state == "starting" or (
            self._state == "running"
            and any(query.status["message"].startswith("Initializing") for query in self._queries)
        )

    @property
    def is_over(self) -> bool:
        return self._state in ("finished", "failed", "stopped")

    def status(self) -> FlowStatus:
        counters = self._context.counters.now()
        late = sum(tracker.now.late_rows for tracker in self._trackers)
        if late and not any("late" in name for name in counters):
            counters["late rows"] = late
        if losses := sum(tracker.now.losses for tracker in self._trackers):
            counters["losses"] = losses
        return FlowStatus(
            name=self.flow.name,
            job=self.flow.job,
            state=self._state,
            queries=tuple(tracker.now for tracker in self._trackers),
            counters=counters,
            restarts=self._restarts,
            error=self._error,
            warning=self._told(lost) if (lost := self._lost()) else None,
            result=self._result,
            changed_at=self._changed_at,
        )

    def _lost(self) -> str | None:
        said = [tracker.now.last_loss for tracker in self._trackers if tracker.now.last_loss]
        return f"went on after a loss (fail_on_data_loss is false): {'; '.join(said)}" if said else None

    def start(self) -> None:
        self._become("starting")
        self._failure = None
        self._queries = ()
        self._thread = threading.Thread(target=self._work, name=f"flow-{self.flow.name}", daemon=True)
        self._thread.start()

    def poll(self, now: float) -> None:
        """`now` in seconds of a clock that never goes back."""
        if self._state == "waiting" and now >= self._start_again_at:
            self._restarts += 1
            self._become("queued")
        elif self._state == "running" and self._queries:
            self._watch(now)
        elif self._state in ("starting", "running") and self._thread is not None:
            if not self._thread.is_alive():
                self._started(now)
            elif self._has_an_end:
                self._become("running")

    # ---- stopping

    def finish_batches(self) -> None:
        """From now on `is_between_batches` tells when the batch that is running now is done."""
        self._last_batches = tuple(tracker.last_batch for tracker in self._trackers)

    def is_between_batches(self, now: float) -> bool:
        """Whether stopping would interrupt nothing that was begun before `finish_batches`."""
        if self._state in ("starting", "running"):
            self.poll(now)
        if self._state != "running" or not self._queries:
            return True
        return all(
            not query.isActive or not query.status["isTriggerActive"] or tracker.last_batch > last
            for query, tracker, last in zip(self._queries, self._trackers, self._last_batches, strict=False)
        )

    def begin_stop(self) -> None:
        """Returns at once; `is_stopped` tells."""
        if self.is_over or self._stopping is not None:
            return
        self._stopping = threading.Thread(target=self._stop, name=f"stop-{self.flow.name}", daemon=True)
        self._stopping.start()

    def is_stopped(self) -> bool:
        if self._stopping is not None and not self._stopping.is_alive():
            self._stopping = None
            self._become("stopped" if self._result is None else "finished")
        return self.is_over

    def abandon(self, why: str) -> None:
        """Nothing more will be heard of it."""
        if not self.is_over:
            self._error = why
            self._become("failed")

    def _stop(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        # What cannot be stopped any more has ended by itself, or with Java; nobody is to hear of it now.
        with suppress(PySparkException, Py4JError, OSError):
            while self._thread is not None and self._thread.is_alive():
                # Again and again: a job may be between two of Spark's.
                self._context.spark.sparkContext.cancelJobGroup(self._group)
                self._thread.join(CANCEL_EVERY_SECONDS)
            for query in self._queries:
                query.stop()

    # ---- running

    @property
    def _group(self) -> str:
        return f"flow {self.flow.name}"

    def _work(self) -> None:

        try:
            spark = self._context.spark.sparkContext
            # Flows share the cores: one with a long backlog must not hold up the others.
            spark.setLocalProperty("spark.scheduler.pool", self.flow.name)
            module = self.flow.module
            if hasattr(module, "start"):
                begun = module.start(self._context, self.flow.options)
                queries: Sequence[StreamingQuery] = begun if isinstance(begun, (list, tuple)) else (begun,)
                self._queries = tuple(queries)
            else:
                self._has_an_end = True
                spark.setJobGroup(self._group, self._group, interruptOnCancel=True)
                self._result = module.run(self._context, self.flow.options)
        except Exception as failure:  # noqa: BLE001 - whatever a job raises is told to the person who runs it
            self._failure = failure

    def _started(self, now: float) -> None:
        if self._failure is not None:
            self._failed(self._failure, now)
        elif self._queries:
            self._running_since = now
            self._trackers = self._new_trackers()
            self._become("running")
            self._watch(now)
        else:
            self._become("finished")

    def _new_trackers(self) -> tuple[QueryTracker, ...]:
        if len(self._queries) == 1:
            return (QueryTracker(self.flow.name, self._context.batch_rows.of),)
        return tuple(
            QueryTracker(f"{self.flow.name}: {query.name or number + 1}")
            for number, query in enumerate(self._queries)
        )

    def _watch(self, now: float) -> None:
        active = [query.isActive for query in self._queries]
        for query, tracker in zip(self._queries, self._trackers, strict=True):
            last = query.lastProgress
            missed = last is not None and last["batchId"] > tracker.last_batch + 1
            reports = query.recentProgress if missed else [last] if last is not None else []
            tracker.feed(reports, now)
        if now - self._running_since > FORGIVEN_SECONDS:
            self._failures_in_a_row = 0
        for query, is_active in zip(self._queries, active, strict=True):
            failure = None if is_active else query.exception()
            if failure is not None:
                for other in self._queries:
                    if other is not query and other.isActive:
                        other.stop()
                self._failed(failure, now)
                return
        if not any(active):
            self._become("finished")

    def _failed(self, failure: BaseException, now: float) -> None:
        self._error = self._told("; ".join([self._reason(failure), *self._full_disks()]))
        self._failures_in_a_row += 1
        allowed = self._restarts_max if self._on_failure == "restart" else 0
        self.is_slow_to_start = _SLOW_START in str(failure)
        if self.is_slow_to_start:
            allowed = max(allowed, SLOW_STARTS_MAX)
        if self._failures_in_a_row <= allowed:
            pause = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2.0 ** (self._failures_in_a_row - 1))
            self._start_again_at = time.monotonic() + pause
            self._become("waiting")
        else:
            self._become("failed")

    def _reason(self, failure: BaseException) -> str:
        said, options = reason(failure), self.flow.options
        if not isinstance(options, FromTopics):
            return said
        return in_words_of_a_flow(said, flow=self.flow.name, can_rebuild=hasattr(options, "rebuild"))

    def _full_disks(self) -> Iterator[str]:
        """Java says that a disk is full and seldom which."""
        for place in (self._context.state, *self.flow.options.places_written()):
            if os.path.isabs(place) and is_full(place):
                yield f"no room is left on the disk of {place}"

    def _become(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._changed_at = time.time()


def is_full(place: str) -> bool:
    while not os.path.exists(place):
        place = os.path.dirname(place)
    disk = os.statvfs(place)
    no_inodes = disk.f_files > 0 and disk.f_favail == 0
    return no_inodes or disk.f_bavail * disk.f_frsize < FULL_BYTES
