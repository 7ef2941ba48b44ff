"""A Spark session for the log: Java found, workers with this Python, and settings that suit small micro-batches.

Whoever has a session already needs none of this: `format("tidelog")` works in any.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tidelog.spark.java import prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    # A driver that dies while it writes its first offsets leaves a temporary file, and Spark would refuse that checkpoint for ever.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.log.structuredLogging.enabled": "false",
    # What a sink gets at a time: ten thousand rows by default, however large. Of 1 KiB that is more than the processor keeps at hand, of 1 MiB more than Java has.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),
}
LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    # The same writes and renames as Spark's first choice, which starts programs to ask for links and modes of every file: on a local disk 100 of the 150 ms of a micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
}
"""For `local[…]` and a cluster on this machine: nothing listens beyond it, a shuffle has no more parts than there are cores, and checkpoints are files here."""
_HERE: Final = ("local", "spark://127.0.0.1:", "spark://localhost:")
ADDED_PER_STREAM: Final = (
    "SPARK_LOCAL_DIRS",
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_PYTHON_RUNTIME",
)
"""What Spark puts into a source's environment whenever a stream of it begins."""


def spark_session(
    name: str = "tidelog",
    *,
    master: str = "local[*]",
    settings: Mapping[str, Any] | None = None,
    stderr: int | None = None,
) -> SparkSession:
    """The session of this process, made if there is none. `settings` win over ours; `stderr` is a file descriptor for all that Java and Python workers say.

    Java gets a process session of its own: Ctrl-C at a terminal goes to all processes in front of it, and Spark's Python workers die of it in the middle of
    their work. This process alone hears of it; Java leaves when this process does.
    """
    prepare_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    chosen = {**SETTINGS, **(LOCAL_SETTINGS if master.startswith(_HERE) else {}), **(settings or {})}
    texts = {key: str(value) for key, value in chosen.items()}
    if SparkContext._active_spark_context is None:
        conf = SparkConf().setAppName(name).setMaster(master).setAll(list(texts.items()))
        kwargs = {"start_new_session": True, "stdout": stderr, "stderr": stderr}
        gateway = SparkContext._gateway or launch_gateway(conf, kwargs)  # type: ignore[no-untyped-call]
        SparkContext(conf=conf, gateway=gateway)
    session = SparkSession.builder.config(map={**texts}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    _let_streams_begin_at_once(session)
    return session


def source_environment(session: SparkSession) -> Any:
    """Of the processes in which our source runs: one map of Java's, for all queries of all sessions, and without a lock."""
    manager = session._jsparkSession.sessionState().dataSourceManager()
    return manager.lookupDataSource("tidelog").dataSourceCls().envVars()


def _let_streams_begin_at_once(session: SparkSession) -> None:
    """Two streams that begin at the same instant both add the same names to that map, and can damage it for good: Spark sends it with every task and finds "Illegal size 5 of collection, expected 7"
    from then on. Nothing is added, only set, if the names are there before. Through Spark's private parts: where those have changed, sessions are as Spark makes them."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, AttributeError, TypeError):
        environment = source_environment(session)
        for name in ADDED_PER_STREAM:
            environment.putIfAbsent(name, "")
