"""The options of `format("tidelog")` with a `path`. Pure.

What they share with a read from brokers (what to read, from where to where, columns, splitting) is `tidelog.spark.options`' business; here are those that only files need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tidelog.spark.options import SERVERS, OptionError, SourceOptions

OWN: Final = (
    "path",
    "paths",
    "highWatermark",
    "isolationLevel",
    "onDamage",
    "segmentColumns",
    "includeControl",
    "maxBytesPerPartition",
)
TASK_BYTES_MAX: Final = 256 << 20
TASK_BYTES_LEAST: Final = 64 << 10
_NOBODY: Final = "segments.invalid:1"
"""In the place of brokers' addresses, which are not needed."""
_WAYS: Final = ("assign", "subscribe", "subscribepattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOptions:
    paths: tuple[str, ...]
    source: SourceOptions
    high_watermark: Literal["checkpoint", "none"] = "checkpoint"
    skips_damage: bool = False
    has_segment_columns: bool = False
    includes_control: bool = False
    task_bytes_max: int = TASK_BYTES_MAX

    @property
    def reads_committed(self) -> bool:
        return self.source.reads_committed

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SegmentOptions:
        lowered = {name.lower(): value for name, value in given.items()}
        own = {name: lowered.pop(name.lower(), None) for name in OWN}
        if not any(way in lowered for way in _WAYS):
            lowered["subscribepattern"] = ".*"
        if SERVERS in lowered:
            raise OptionError(
                f"path and {SERVERS} exclude each other: records come from files or from brokers"
            )
        level = own["isolationLevel"] or lowered.get("kafka.isolation.level") or "read_uncommitted"
        lowered["kafka.isolation.level"] = _one_of(
            "isolationLevel", level, ("read_uncommitted", "read_committed")
        )
        has_segment_columns = _boolean("segmentColumns", own["segmentColumns"])
        includes_control = _boolean("includeControl", own["includeControl"])
        if includes_control and not has_segment_columns:
            raise OptionError(
                "includeControl shows markers, which only the column is_control tells from records: set segmentColumns to true as well"
            )
        water = _one_of("highWatermark", own["highWatermark"] or "checkpoint", ("checkpoint", "none"))
        return cls(
            paths=_paths(own["path"], own["paths"]),
            source=SourceOptions.parse({SERVERS: _NOBODY, **lowered}, is_stream=False),
            high_watermark="none" if water == "none" else "checkpoint",
            skips_damage=_one_of("onDamage", own["onDamage"] or "fail", ("fail", "skip")) == "skip",
            has_segment_columns=has_segment_columns,
            includes_control=includes_control,
            task_bytes_max=_bytes("maxBytesPerPartition", own["maxBytesPerPartition"]),
        )


def _paths(path: str | None, paths: str | None) -> tuple[str, ...]:
    """A directory, several with commas between, or what `load([…])` makes of a list."""
    if path is not None and paths is not None:
        raise OptionError("path and paths are both given: one of them names all directories")
    text = (path if paths is None else paths) or ""
    if text.lstrip().startswith("["):
        try:
            found = [str(each) for each in json.loads(text)]
        except json.JSONDecodeError as error:
            raise OptionError(f"paths {text!r} is no JSON list: {error}") from None
    else:
        found = [each.strip() for each in text.split(",")]
    named = tuple(each.removeprefix("file://") for each in found if each)
    if not named:
        raise OptionError("path names no directory")
    for each in named:
        if "://" in each:
            raise OptionError(f"path {each!r}: segments are read from local directories, not from a URL")
    return named


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value.lower() not in choices:
        raise OptionError(f"{name} is {' or '.join(choices)}, not {value!r}")
    return value.lower()


def _boolean(name: str, value: str | None) -> bool:
    return _one_of(name, value or "false", ("true", "false")) == "true"


def _bytes(name: str, value: str | None) -> int:
    if value is None:
        return TASK_BYTES_MAX
    if not value.strip().isdecimal() or int(value) < TASK_BYTES_LEAST:
        raise OptionError(f"{name} is a number of bytes from {TASK_BYTES_LEAST} on, not {value!r}")
    return int(value)
