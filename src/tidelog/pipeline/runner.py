"""Runs a pipeline: one Spark session, every flow in it, watched until the last is over or somebody says stop.

Restarts nothing unless the specification says so; a flow that fails is reported, and what happens to the others is the specification's word. Owns the
session, the signals and the exit; a flow's life is `FlowRun`'s.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.errors import TidelogError
from tidelog.pipeline.context import Counters, JobContext
from tidelog.pipeline.flow_run import FlowRun
from tidelog.pipeline.spark_process import (
    STDERR,
    deafen_to_sigterm,
    java_is_gone,
    last_words,
    quieten,
    start_session,
)
from tidelog.pipeline.spec import checked
from tidelog.pipeline.state_directory import StateDirectory
from tidelog.pipeline.status import PipelineStatus, write_status
from tidelog.pipeline.values import Pipeline
from tidelog.process_identity import this_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 10.0
"""How long a stop waits for running batches. Longer ones are interrupted and done again at the next start."""
STOP_SECONDS_MAX: Final = 30.0
INTERRUPTED: Final = 130


class SparkDiedError(TidelogError):
    """Spark was running, and is gone."""


def run(
    pipeline: Pipeline,
    *,
    on_status: Callable[[PipelineStatus], None] = lambda status: None,
    stop: threading.Event | None = None,
) -> PipelineStatus:
    """Until every flow is over, `stop` is set, or Ctrl-C or SIGTERM come (in the main thread). The last status says how each flow ended.

    `on_status` is called about twice a second, in this thread.
    """
    stop = stop or threading.Event()
    checked(pipeline)
    with StateDirectory(pipeline.state) as directory:
        directory.claim(pipeline)
        runner = _Runner(pipeline, on_status, stop)
        with _signals(stop):
            spark = runner.start_spark()
            return runner.run(spark) if spark is not None else runner.tell("stopped")


class _Runner:
    def __init__(
        self, pipeline: Pipeline, on_status: Callable[[PipelineStatus], None], stop: threading.Event
    ) -> None:
        self._pipeline = pipeline
        self._on_status = on_status
        self._stop = stop
        self._flows: list[FlowRun] = []
        self._started_at = time.time()
        self._process = this_process()
        self._write_failure: str | None = None
        self._owns_spark = True

    def start_spark(self) -> SparkSession | None:
        """In a thread, for two reasons: in the main one PySpark takes Ctrl-C over, and a cluster may be long in answering. None if nobody wants it any more."""
        from pyspark import SparkContext

        self._owns_spark = (
            SparkContext._active_spark_context is None
        )  # else it is the caller's: used, and left
        started: Future[SparkSession] = Future()

        def start() -> None:
            try:
                session = start_session(self._pipeline)
                if self._owns_spark:
                    deafen_to_sigterm(session)
                    quieten(session)
                started.set_result(session)
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                started.set_exception(error)

        threading.Thread(target=start, name="spark-start", daemon=True).start()
        while not self._stop.is_set():
            self.tell("starting")
            try:
                return started.result(POLL_SECONDS)
            except TimeoutError:
                if started.done():  # it is the failure itself
                    raise
        return None

    def run(self, spark: SparkSession) -> PipelineStatus:
        from py4j.protocol import Py4JError

        try:
            return self._run(spark)
        except (Py4JError, ConnectionError) as error:
            # Java is gone, killed or out of memory. Spark's objects in this process are of no use any more.
            why = "Spark's Java process has ended unexpectedly (the system may have killed it for want of memory: dmesg tells)"
            for flow in self._flows:
                flow.abandon(why)
            self.tell("stopped")
            tail = "".join(f"\n{line}" for line in last_words(Path(self._pipeline.state, STDERR)))
            raise SparkDiedError(
                f"{why}; start the pipeline again: every flow goes on where it was{tail}"
            ) from error

    def _run(self, spark: SparkSession) -> PipelineStatus:
        self._flows = [self._flow_run(spark, number) for number in range(len(self._pipeline.flows))]
        while not self._is_over():
            if java_is_gone(spark):
                raise ConnectionError("Java has ended")
            for flow in self._flows:
                flow.poll(time.monotonic())
            self._start_next()
            self.tell("running")
            self._stop.wait(POLL_SECONDS)
        self._stop_flows(spark)
        if self._owns_spark:
            spark.stop()
        return self.tell("stopped")

    def _start_next(self) -> None:
        """A few at a time: each start makes processes, and Spark gives them only seconds to come up."""
        is_busy = any(flow.is_slow_to_start for flow in self._flows)
        at_once = 1 if is_busy else max(1, os.cpu_count() or 1)
        room = at_once - sum(flow.is_initializing for flow in self._flows)
        for flow in [flow for flow in self._flows if flow.state == "queued"][: max(0, room)]:
            flow.start()

    def _is_over(self) -> bool:
        if self._stop.is_set():
            return True
        if any(flow.state == "failed" and self._policy(flow) == "stop" for flow in self._flows):
            return True
        return all(flow.is_over for flow in self._flows)

    def _policy(self, run: FlowRun) -> str:
        return run.flow.on_failure or self._pipeline.on_failure

    def _flow_run(self, spark: SparkSession, number: int) -> FlowRun:
        pipeline, flow = self._pipeline, self._pipeline.flows[number]
        shared = JobContext(spark=spark, name="", brokers=pipeline.brokers, state="", client=pipeline.client)
        return FlowRun(
            flow,
            replace(
                shared,
                name=flow.name,
                state=pipeline.state_of(flow.name),
                checkpoints=pipeline.checkpoints_of(flow.name),
                trigger=pipeline.trigger_of(flow),
                counters=Counters(),
            ),
            on_failure=flow.on_failure or pipeline.on_failure,
            restarts_max=pipeline.restarts_max,
            told=pipeline.told,
        )

    def _stop_flows(self, spark: SparkSession) -> None:
        """Batches that are nearly done are let be; then everything is interrupted, and nobody hears what Spark says to that."""
        for flow in self._flows:
            flow.finish_batches()
        self._wait(
            GRACE_SECONDS, lambda: all(flow.is_between_batches(time.monotonic()) for flow in self._flows)
        )
        if self._owns_spark:
            spark.sparkContext.setLogLevel("OFF")
        for flow in self._flows:
            flow.begin_stop()
        self._wait(STOP_SECONDS_MAX, lambda: not [flow for flow in self._flows if not flow.is_stopped()])
        for flow in self._flows:
            flow.abandon(
                f"was still at work {STOP_SECONDS_MAX:.0f} s after it was told to stop, and was left to it"
            )

    def _wait(self, seconds: float, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not is_done() and time.monotonic() < deadline:
            self.tell("stopping")
            time.sleep(0.1)

    def tell(self, state: str) -> PipelineStatus:
        status = PipelineStatus(
            name=self._pipeline.name,
            state=state,
            file=self._pipeline.file,
            master=self._pipeline.master,
            brokers=self._pipeline.brokers,
            started_at=self._started_at,
            written_at=time.time(),
            process=self._process,
            flows=tuple(flow.status() for flow in self._flows),
        )
        try:
            write_status(self._pipeline.state, status)
            self._write_failure = None
        except OSError as error:
            if self._write_failure != str(error):
                logging.getLogger(__name__).warning("the status cannot be written: %s", error)
            self._write_failure = str(error)
        self._on_status(status)
        return status


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM stops cleanly; the second leaves at once, and Java follows when it finds us gone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
