"""Jobs by the name that a specification calls them: ours, or a module of the user's own that has the same parts (`jobs/__init__.py` says which)."""

from __future__ import annotations

import difflib
import importlib
import sys
from types import ModuleType
from typing import Final

from tidelog.errors import TidelogError
from tidelog.pipeline.jobs import JOBS, job

_EXTRA_MODULES: Final = (
    "deltalake",
    "fastavro",
    "matplotlib",
    "pandas",
    "psycopg",
    "py4j",
    "pyarrow",
    "pyiceberg",
    "pyspark",
)


class JobError(TidelogError):
    """There is no such job, or it cannot be loaded."""


def job_module(name: str) -> ModuleType:
    if name not in JOBS and "." not in name:
        close = difflib.get_close_matches(name, JOBS, 1)
        advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(JOBS)}"
        raise JobError(
            f"there is no job {name!r}: {advice} A job of your own is named by its module, with a dot in it"
        )
    try:
        found = job(name) if name in JOBS else importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in _EXTRA_MODULES:
            raise JobError(f"job {name} needs {missing}: pip install 'tidelog[pipeline]'") from None
        if error.name == f"tidelog.pipeline.jobs.{name}":
            raise JobError(f"job {name} is not in this version yet") from None
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise JobError(
                f"there is no module {name!r} on Python's path ({', '.join(filter(None, sys.path)) or 'empty'})"
            ) from None
        raise
    missing_parts = [part for part in ("Options",) if not hasattr(found, part)]
    if not hasattr(found, "start") and not hasattr(found, "run"):
        missing_parts.append("start or run")
    if missing_parts:
        raise JobError(f"module {name} is no job: it has no {' and no '.join(missing_parts)}")
    return found
