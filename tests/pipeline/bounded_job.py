"""A job with an end, for tests: counts to a number with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.pipeline.context import JobContext
from tidelog.pipeline.options import Options as BaseOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BaseOptions):
    up_to: int


def run(context: JobContext, options: Options) -> Mapping[str, Any]:
    counted = context.spark.range(options.up_to).count()
    context.counters.add("counted", counted)
    return {"numbers": counted}
