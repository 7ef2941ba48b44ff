"""One Spark session that is told what to measure: a line of JSON in, a line of JSON out. Run by `bench.spark` in the environment of `tools.peers.spark_jvm`.

Spark's own start, the first query of each kind and the compilation of its code are no part of a measurement: whoever asks repeats what it asks for, and leaves out the first time.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from bench.cpu_tree import cpu_seconds, cpu_seconds_by_program

SPARK_SETTINGS: Final = {
    "spark.driver.memory": "4g",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
TRICKLE_PER_SECOND: Final = 100


class Load:
    def __init__(self, jars: str) -> None:
        from bench.spark_ready import ReadyMade
        from tidelog.spark.session import spark_session

        self.spark = spark_session(
            "bench", master="local[2]", settings={**SPARK_SETTINGS, "spark.jars": jars}
        )
        self.spark.dataSource.register(ReadyMade)

    # -- batches ----------------------------------------------------------------------------------------------------

    def read(
        self, format: str, options: dict[str, str], action: str, path: str | None = None
    ) -> dict[str, Any]:
        """All of it, to nowhere (`noop`) or summed up (`sum`); `unused` throws the rows away by what one column says."""
        frame = self.spark.read.format(format).options(**options).load(path)
        began, before = time.perf_counter(), cpu_seconds_by_program(os.getpid())
        checked = None
        if action == "sum":
            (found,) = frame.selectExpr("sum(length(value))").collect()
            checked = found[0]
        else:
            kept = frame.filter("partition < 0") if action == "unused" else frame
            kept.write.format("noop").mode("overwrite").save()
        seconds, after = time.perf_counter() - began, cpu_seconds_by_program(os.getpid())
        spent = {name: total - before.get(name, 0.0) for name, total in after.items()}
        return {"seconds": seconds, "cpu": sum(spent.values()), "programs": spent, "sum": checked}

    def write(self, format: str, options: dict[str, str], path: str) -> dict[str, Any]:
        """The rows of a Parquet table into a topic."""
        frame = self.spark.read.parquet(path).select("value")
        began, cpu = time.perf_counter(), cpu_seconds(os.getpid())
        frame.write.format(format).options(**options).mode("append").save()
        return {"seconds": time.perf_counter() - began, "cpu": cpu_seconds(os.getpid()) - cpu}

    # -- streams ----------------------------------------------------------------------------------------------------

    def stream(self, format: str, options: dict[str, str], skipped: int) -> dict[str, Any]:
        """Micro-batches until all is read. The first ones are left out, and so is the last, which may be smaller."""
        cpu = cpu_seconds(os.getpid())
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as checkpoint:
            query = self._query(format, options, checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            batches = [each for each in query.recentProgress if each["numInputRows"]]
        rows = sum(each["numInputRows"] for each in batches)
        steady = batches[skipped:-1] or batches
        count = sum(each["numInputRows"] for each in steady)
        seconds = sum(each["durationMs"]["triggerExecution"] for each in steady) / 1000
        return {
            "rate": count / seconds,
            "rows": rows,
            "batches": len(batches),
            "cpu": cpu_seconds(os.getpid()) - cpu,
        }

    def trickle(
        self, format: str, options: dict[str, str], servers: str, topic: str, seconds: float
    ) -> dict[str, Any]:
        """Milliseconds of a micro-batch, while a hundred records a second come in."""
        done = threading.Event()
        writer = threading.Thread(target=_trickle, args=(servers, topic, done))
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as checkpoint:
            query = self._query(format, options, checkpoint).trigger(processingTime="0 seconds").start()
            writer.start()
            try:
                time.sleep(seconds)
            finally:
                done.set()
                writer.join()
                query.stop()
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            batches = [each for each in query.recentProgress if each["numInputRows"]]
        taken = sorted(each["durationMs"]["triggerExecution"] for each in batches[len(batches) // 3 :])
        return {"p50": statistics.median(taken), "p90": taken[int(len(taken) * 0.9)], "batches": len(batches)}

    def _query(self, format: str, options: dict[str, str], checkpoint: str) -> Any:
        frame = self.spark.readStream.format(format).options(**options).load()
        return frame.writeStream.format("noop").option("checkpointLocation", checkpoint)

    def stop(self) -> dict[str, Any]:
        self.spark.stop()
        return {}


def _trickle(servers: str, topic: str, done: threading.Event) -> None:
    from tidelog.client.blocking import Producer

    with Producer(servers) as producer:
        while not done.wait(1 / TRICKLE_PER_SECOND):
            producer.send(topic, b"x" * 100)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints is no answer
    load = Load(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        work: Callable[..., dict[str, Any]] = getattr(load, asked.pop("work"))
        try:
            answer = work(**asked)
        except Exception as error:  # noqa: BLE001 (told to whoever asked, whatever it is)
            answer = {"error": f"{type(error).__name__}: {str(error)[:4000]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
