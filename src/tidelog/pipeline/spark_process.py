"""Spark as a part of the runner's process: started with its words in files, out of reach of signals that are meant for us, and known to be gone when it is."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.errors import TidelogError
from tidelog.pipeline.failures import reason
from tidelog.pipeline.values import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STDERR: Final = "spark-stderr.log"
SETTINGS: Final = {
    "spark.scheduler.mode": "FAIR",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.streaming.stopTimeout": "30s",
}
_JAVA_DIES: Final = re.compile(
    r"OutOfMemoryError|insufficient memory|fatal error has been detected|Exception in thread"
)
# Spark's own words go to a file that does not grow without end; a person gets ours.
_LOG_SETTINGS: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""


class SparkStartError(TidelogError):
    """Spark did not come up."""


def start_session(pipeline: Pipeline) -> SparkSession:
    from tidelog.spark.session import spark_session

    settings: dict[str, Any] = {**SETTINGS, **_python_path(), **pipeline.spark}
    directory = Path(pipeline.state).absolute()
    log_settings = directory / "log4j2.properties"
    log_settings.write_text(_LOG_SETTINGS.format(path=directory / "spark.log"))
    given = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = (
        f"{given} -Dlog4j2.configurationFile={log_settings.as_uri()}".strip()
    )
    # Python's half of Spark prints every refused query as a line of JSON, too.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL + 1)
    stderr_path = directory / STDERR
    with open(stderr_path, "wb") as stderr:
        try:
            session = spark_session(
                pipeline.name, master=pipeline.master, settings=settings, stderr=stderr.fileno()
            )
        except Exception as error:
            if isinstance(error, (TidelogError, OSError)):
                raise
            raise SparkStartError(f"Spark did not start: {reason(error)}{_tail(stderr_path)}") from None
    return session


def _python_path() -> dict[str, str]:
    """Executors find modules where we do, as far as their machines have the same directories."""
    path = os.environ.get("PYTHONPATH", "")
    return {"spark.executorEnv.PYTHONPATH": path} if path else {}


def java_is_gone(session: SparkSession) -> bool:
    process = getattr(session.sparkContext._gateway, "proc", None)  # none: whoever started us started Java
    return process is not None and process.poll() is not None


def deafen_to_sigterm(session: SparkSession) -> None:
    """A service manager tells every process of a service to stop. Java would go at once, under running batches; so it listens to us alone, and goes when we do."""
    jvm: Any = session.sparkContext._jvm
    jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal("TERM"), jvm.sun.misc.SignalHandler.SIG_IGN)


def quieten(session: SparkSession) -> None:
    """PySpark and py4j print tracebacks, one for each connection, when Java goes. That is told once, by us."""

    def handle_error(request: object, client_address: object) -> None:
        logging.getLogger(__name__).debug("a connection from Java has ended", exc_info=True)

    server: Any = session.sparkContext._accumulatorServer
    server.handle_error = handle_error
    logging.getLogger().addFilter(is_not_of_py4j)


def is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Of records to the root logger, to which py4j writes without a name of its own."""
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def last_words(path: Path) -> list[str]:
    """What Java said when it died, if it did: workers complain there, too."""
    lines = path.read_text(errors="replace").splitlines()
    return [line for line in lines if _JAVA_DIES.search(line)][-3:]


def _tail(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("\tat ", "WARNING: Using incubator"))][-5:]
    return "".join(f"\n{line}" for line in said)
