"""Errors as Spark hands them on, and what is left of them for a person. The texts were taken from queries that failed."""

from __future__ import annotations

import pytest

from tidelog.client.metadata import TopicPartition
from tidelog.pipeline.failures import LENGTH_MAX, in_words_of_a_flow, plain_words, reason
from tidelog.spark.loss import Cause, DataLossError, Loss

WHERE = """
=== Streaming Query ===
Identifier: a [id = a08489b8, runId = 5aa1e3aa]
Logical Plan:
WriteToMicroBatchDataSource noop-table
"""
IN_A_TASK = (
    """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/srv/job.py", line 28, in bad
    raise ValueError("poison at %d\\nsecond line"%x) from e
ValueError: poison at 5
second line
 SQLSTATE: 38000"""
    + WHERE
)
IN_THE_DRIVER = (
    """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/lib/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/lib/pyspark/errors/exceptions/captured.py", line 262, in deco
    raise converted from None
  File "/srv/job.py", line 28, in bad
    raise ValueError(x) from e
    ^^^^^^^^^^^^^^^^^
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/srv/job.py", line 28, in bad
    raise ValueError(x) from e
tidelog.pipeline.decoding.UndecodableError: orders-0 at 7: no JSON
"""
    + WHERE
)
NOT_RESOLVED = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. Did you mean one of the following? [`value`, `timestamp`]. SQLSTATE: 42703;
'Project ['nope]
+- ~StreamingRelationV2 org.apache.spark.sql.execution.streaming.sources.RateStreamProvider@3efe77ac
"""
LOST_TASK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 3) (vm executor driver): java.io.FileNotFoundException: File file:/x/part-0 does not exist
\tat org.apache.hadoop.fs.RawLocalFileSystem.open(RawLocalFileSystem.java:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abort(DAGScheduler.scala:1)
"""
CAUSED = """org.apache.spark.SparkException: Writing job failed.
\tat org.apache.spark.a(A.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 10 more
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (IN_A_TASK, "ValueError: poison at 5\nsecond line"),
        (IN_THE_DRIVER, "orders-0 at 7: no JSON"),
        (
            NOT_RESOLVED,
            "A column with name `nope` cannot be resolved. Did you mean one of the following? [`value`, `timestamp`]",
        ),
        (LOST_TASK, "FileNotFoundException: File file:/x/part-0 does not exist"),
        (CAUSED, "No space left on device"),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'id'", "KeyError: 'id'"),
        ("Traceback (most recent call last):\n  File x\npsycopg.errors.Nope: gone", "Nope: gone"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_plain_words(text: str, words: str) -> None:
    assert plain_words(text) == words


def test_reasons_come_with_advice() -> None:
    assert reason(Exception(CAUSED)).startswith("No space left on device; make room on that disk")
    assert "spark.driver.memory" in reason(Exception("java.lang.OutOfMemoryError: Java heap space"))
    damaged = "Job aborted: Task serialization failed: java.lang.IllegalStateException: Illegal size 5 of collection, expected 7"
    assert "start again" in reason(Exception(damaged))
    assert reason(KeyError("id")) == "KeyError: 'id'"
    assert reason(ValueError()) == "ValueError"
    assert len(reason(Exception("x" * 10_000))) == LENGTH_MAX


@pytest.mark.parametrize("partitions", [2, 6, 7, 8, 50])
def test_what_to_do_is_said_however_much_was_lost(partitions: int) -> None:
    losses = [
        Loss(TopicPartition("orders", number), Cause.MADE_ANEW, 30, 0, f"orders-{number}: {'gone ' * 40}")
        for number in range(partitions)
    ]
    lines = reason(DataLossError(losses)).splitlines()
    assert lines[1].startswith("  orders-0: gone") and len("\n".join(lines)) <= LENGTH_MAX
    assert lines[-1].startswith("To go on with what is there")
    told = sum("orders-" in line for line in lines)
    assert told == partitions or lines[-2] == f"  … and {partitions - told} more"


def test_options_are_called_what_the_specification_calls_them() -> None:
    said = str(DataLossError([]))
    assert "set failOnDataLoss to false; to begin anew, use another checkpoint" in said
    own = in_words_of_a_flow(said, flow="state", can_rebuild=True)
    assert "set fail_on_data_loss to false in the flow; to begin anew, run it with --rebuild state" in own
    assert "another name and another place" in in_words_of_a_flow(said, flow="rows", can_rebuild=False)
    missing = "subscribe names orders, which does not exist"
    assert in_words_of_a_flow(missing, flow="x", can_rebuild=False).startswith("topics names orders, ")


def test_a_cause_counts_where_the_error_itself_says_nothing() -> None:
    class Wrapped(Exception):
        cause = OSError(28, "No space left on device")

        def __str__(self) -> str:
            return WHERE

    assert reason(Wrapped()).startswith("OSError: [Errno 28] No space left on device; make room")
