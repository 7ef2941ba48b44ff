"""A job for tests of specifications and of the runner: copies the values of topics, one line each, to a file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tidelog.pipeline.context import FromTopics, JobContext
from tidelog.pipeline.options import PathText, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(FromTopics):
    file: PathText
    """Lines are appended to it: `batch value`."""
    to_topic: str | None = None
    poison: str | None = None
    """A value that this job cannot take."""
    where: Literal["driver", "task"] = "driver"
    """It is met in."""
    pause_ms: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> Iterator[Problem]:
        yield from FromTopics.check(self)
        if self.file.endswith("/"):
            yield Problem("file", "is a directory")

    def topics_written(self) -> Iterable[str]:
        return (self.to_topic,) if self.to_topic else ()

    def places_written(self) -> Iterable[str]:
        return (self.file,)


def start(context: JobContext, options: Options) -> Any:
    from pyspark.sql.functions import col, udf

    def refused(value: str) -> str:
        if value == options.poison:
            raise ValueError(f"{value!r} is no order")
        return value

    def write(frame: Any, batch: int) -> None:
        chosen = col("value").cast("string")
        values = frame.select(
            udf(lambda value: refused(value), "string")(chosen) if options.where == "task" else chosen
        )
        time.sleep(options.pause_ms / 1000)
        with open(options.file, "a") as file:
            for (value,) in values.collect():
                file.write(f"{batch} {refused(value)}\n")
                context.counters.add("lines")
            file.flush()
            os.fsync(file.fileno())

    stream = options.stream(context)
    return (
        stream.writeStream.queryName(context.name)
        .foreachBatch(write)
        .option("checkpointLocation", context.checkpoint)
        .trigger(**context.trigger)
        .start()
    )
