"""A job for tests of what follows a failure: fails as often as it is told, then works; or goes on until it is stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.pipeline.context import JobContext
from tidelog.pipeline.options import Options as BaseOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BaseOptions):
    failures: int = 0
    message: str = "not yet"
    endless: bool = False


def run(context: JobContext, options: Options) -> Mapping[str, Any]:
    tries = os.path.join(context.state, "tries")
    with open(tries, "a") as file:
        file.write("x")
    if os.path.getsize(tries) <= options.failures:
        raise RuntimeError(options.message)
    while options.endless:
        time.sleep(0.01)
        context.spark.range(1).count()  # what can be interrupted
    return {"tries": os.path.getsize(tries)}
