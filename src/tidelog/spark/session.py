"""A Spark session for the log: Java found, workers with this Python, and settings that suit small micro-batches.

Whoever has a session already needs none of this: `format("tidelog")` works in any.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tidelog.spark.java import prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.log.structuredLogging.enabled": "false",
}
LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
"""For `local[…]`: nothing listens beyond this machine, and a shuffle has no more parts than there are cores."""


def spark_session(
    name: str = "tidelog", *, master: str = "local[*]", settings: Mapping[str, Any] | None = None
) -> SparkSession:
    """The session of this process, made if there is none. `settings` win over ours."""
    prepare_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    chosen = {**SETTINGS, **(LOCAL_SETTINGS if master.startswith("local") else {}), **(settings or {})}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, str(value))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
