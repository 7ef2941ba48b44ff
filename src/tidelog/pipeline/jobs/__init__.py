"""The jobs, by the name that a specification calls them.

A module of a job has `Options` (a frozen dataclass on `options.Options`: what its table in the specification may say), and one of two functions: `start(context, options)`
begins a stream and returns its query; `run(context, options)` does bounded work and returns what a person wants to know of it as a mapping.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

JOBS: Final = ("ingest", "materialize", "aggregate", "audit", "replay")


def job(name: str) -> ModuleType:
    if name not in JOBS:
        raise KeyError(name)
    return importlib.import_module(f"tidelog.pipeline.jobs.{name}")
