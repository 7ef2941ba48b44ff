"""A Spark of its own in a child process, asked for one measurement after the other. Knows nothing of what is measured."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tools.peers.spark_jvm import connector_jars, environment, spark_python

STOP_SECONDS_MAX: Final = 60.0


class MeasurementFailedError(Exception):
    """The child could not do what it was asked for, or has ended; carries what it said."""


class SparkChild:
    def __init__(self) -> None:
        self._said = tempfile.NamedTemporaryFile(prefix="tidelog-bench-spark-", suffix=".log")  # noqa: SIM115 (closed in `__exit__`)
        self._process = subprocess.Popen(
            [str(spark_python()), "-m", "bench.spark_load", ",".join(map(str, connector_jars()))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment(),
            text=True,
            start_new_session=True,
        )

    def ask(self, work: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps({"work": work, **arguments}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise MeasurementFailedError(f"Spark ended while it was asked for {work}:\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise MeasurementFailedError(f"{work} {arguments}: {answer['error']}\n{self._tail()}")
        return answer

    def _tail(self) -> str:
        return "\n".join(Path(self._said.name).read_text(errors="replace").splitlines()[-30:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            if error is None:
                self.ask("stop")
            self._process.stdin.close()
            self._process.wait(STOP_SECONDS_MAX if error is None else 5.0)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            os.killpg(self._process.pid, 9)
            self._process.wait()
        finally:
            self._process.stdout.close()
            self._said.close()
