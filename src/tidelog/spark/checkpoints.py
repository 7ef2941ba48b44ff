"""A checkpoint of Spark's own Kafka source, carried over: the same query goes on with `format("tidelog")` where it stopped.

Offsets of both look the same, and state and commits are Spark's, so a checkpoint is copied as it is, with one exception. Spark's own source keeps where a query began in a file
beside (`sources/0/0`), which counts until the first batch is done; Spark asks a Python source anew in that case. So that moment is written into the first batch's offsets
(`begins`, see `offsets`). Sources are known by their place in a query; those of other kinds are left alone. The old checkpoint is only read.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.errors import TidelogError
from tidelog.spark.offsets import MARKS, Offsets, OffsetsError

VERSION: Final = "v1"


class CheckpointError(TidelogError):
    """A checkpoint that is none, or of a kind that cannot be carried over."""


@dataclass(frozen=True, slots=True)
class ImportedCheckpoint:
    directory: str
    batch: int | None
    """The last one that was planned; None: there was none yet."""
    is_done: bool
    """Whether that one is done; if not, it is run again first."""
    positions: Mapping[int, Offsets]
    """Up to where that batch reads, of each source that is Kafka's, by its place in the query."""

    def __str__(self) -> str:
        partitions = sum(len(offsets.next) for offsets in self.positions.values())
        where = f"{partitions} partitions of {len(self.positions)} source{'s' * (len(self.positions) != 1)}"
        if self.batch is None:
            return f"no batch was planned yet; it begins where the old query began, in {where}"
        return (
            f"batch {self.batch} {'is done' if self.is_done else 'is run again'}, then it goes on in {where}"
        )


def import_jvm_checkpoint(source: str, target: str) -> ImportedCheckpoint:
    """Copy the checkpoint of a query that has stopped. `target` must not exist; or it is `source` itself, which is then changed in place."""
    old, new = _directory(source), _directory(target)
    if not (old / "offsets").is_dir() and not (old / "sources").is_dir():
        raise CheckpointError(f"{source} is no checkpoint of a query: it has neither offsets nor sources")
    batch = max(_batches(old / "offsets"), default=None)
    beginnings = _beginnings(old)
    lines = _read_lines(old / "offsets" / str(batch)) if batch is not None else _first_lines(beginnings)
    positions = {number: found for number, line in enumerate(lines[2:]) if (found := _kafka_offsets(line))}
    if not positions:
        raise CheckpointError(
            f'{source} holds no offsets of Kafka\'s topics: its query read something else, or format("tidelog") already'
        )
    is_done = batch is not None and batch in _batches(old / "commits")
    in_place = new.exists() and old.samefile(new)
    if not in_place:
        _copy(old, new)
    if batch in (None, 0) and not is_done:
        _write(new / "offsets" / "0", _with_beginnings(lines, beginnings))
    return ImportedCheckpoint(str(new), batch, is_done, positions)


def _directory(text: str) -> Path:
    path = text.removeprefix("file://") if text.startswith("file://") else text.removeprefix("file:")
    if "://" in path:
        raise CheckpointError(
            f"{text}: checkpoints are carried over in local directories; copy this one here first, and back"
        )
    return Path(path)


def _batches(directory: Path) -> set[int]:
    if not directory.is_dir():
        return set()
    return {int(each.name) for each in directory.iterdir() if each.name.isdecimal()}


def _read_lines(path: Path) -> list[str]:
    """Version, metadata, and a line for each source."""
    lines = path.read_text().split("\n")
    if lines[0] != VERSION:
        raise CheckpointError(
            f"{path} has version {lines[0][:20]!r}, and {VERSION} is the one that is known here: was it written by a newer Spark?"
        )
    if len(lines) < 3:
        raise CheckpointError(f"{path} ends before the offsets of any source: it is damaged")
    return lines


def _beginnings(old: Path) -> dict[int, Offsets]:
    """Where each source began: `sources/0/0` is a zero byte, `v1`, and offsets."""
    found: dict[int, Offsets] = {}
    directory = old / "sources"
    for number in sorted(_batches(directory)):
        path = directory / str(number) / "0"
        if not path.is_file():
            continue
        text = path.read_bytes().removeprefix(b"\0").decode()
        version, _, document = text.partition("\n")
        if version == VERSION and (offsets := _kafka_offsets(document)):
            found[number] = offsets
    return found


def _kafka_offsets(line: str) -> Offsets | None:
    """None for whatever another kind of source writes, and for offsets that have marks: those are ours."""
    try:
        document = json.loads(line)
        if not isinstance(document, dict) or not document or MARKS in document:
            return None
        return Offsets.from_json(document)
    except (json.JSONDecodeError, OffsetsError):
        return None


def _first_lines(beginnings: Mapping[int, Offsets]) -> list[str]:
    """A first batch that reads nothing, for a query that had none."""
    if set(beginnings) != set(range(len(beginnings))):
        raise CheckpointError(
            "the query had no batch yet, and not all of its sources are Kafka's: start it anew instead, nothing was read"
        )
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
    offsets = [json.dumps(beginnings[number].to_json()) for number in sorted(beginnings)]
    return [VERSION, json.dumps(metadata), *offsets]


def _with_beginnings(lines: list[str], beginnings: Mapping[int, Offsets]) -> str:
    changed = list(lines)
    for number, line in enumerate(lines[2:]):
        end, begin = _kafka_offsets(line), beginnings.get(number)
        if end is not None and begin is not None:
            begins = {tp: offset for tp, offset in begin.next.items() if tp in end.next}
            changed[2 + number] = json.dumps(Offsets(end.next, begins=begins).to_json())
    return "\n".join(changed)


def _copy(old: Path, new: Path) -> None:
    """Whole or not at all. Checksums of Hadoop's go along: they are of the same bytes."""
    if new.exists():
        raise CheckpointError(f"{new} exists already: name a directory that does not")
    new.parent.mkdir(parents=True, exist_ok=True)
    unfinished = new.with_name(f".{new.name}.{uuid.uuid4().hex[:8]}")
    try:
        shutil.copytree(old, unfinished)
        os.rename(unfinished, new)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    checksum = path.with_name(f".{path.name}.crc")
    checksum.unlink(missing_ok=True)  # of other bytes; Hadoop does without
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    unfinished.write_text(text)
    os.replace(unfinished, path)
