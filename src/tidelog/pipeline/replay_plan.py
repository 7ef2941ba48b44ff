"""What a replay copies, in which steps, and which of them are done: a plan that is settled once and kept, so that a replay which is interrupted goes on instead of beginning anew. Pure, but for the file.

Times are made into offsets when the plan is made: records that arrive later change nothing. A step is a part of every partition's range, so that partitions move together; it is done
when it is noted here, and what of an unfinished one was written already is for its target to know.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from tidelog.client.metadata import TopicPartition
from tidelog.errors import TidelogError
from tidelog.pipeline.decoding import write_atomically
from tidelog.spark.offsets import OffsetsError, parse_document, parse_offsets
from tidelog.spark.ranges import OffsetRange

FILE: Final = "replay.json"


class ReplayError(TidelogError):
    """What was asked for cannot be replayed."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    id: str
    """Of this replay, for tables that know what they hold."""
    asked: Mapping[str, Any]
    """The options that decide what is copied and where to. Other ones are another replay."""
    topic_ids: Mapping[str, str]
    ranges: tuple[OffsetRange, ...]
    offsets_per_step: int
    done: int = 0
    records: int = 0
    file_bytes: int = 0
    """How much of a target file counts; more is from a step that was not finished."""

    @property
    def offsets(self) -> int:
        return sum(each.size for each in self.ranges)

    @property
    def steps(self) -> int:
        return -(-self.offsets // self.offsets_per_step)

    @property
    def is_done(self) -> bool:
        return self.done >= self.steps

    def step(self, number: int) -> tuple[OffsetRange, ...]:
        parts = (
            OffsetRange(
                each.tp,
                each.start + each.size * number // self.steps,
                each.start + each.size * (number + 1) // self.steps,
            )
            for each in self.ranges
        )
        return tuple(part for part in parts if part.size)

    def left(self) -> tuple[OffsetRange, ...]:
        """What no finished step has copied."""
        if self.is_done:
            return ()
        parts = (
            OffsetRange(each.tp, each.start + each.size * self.done // self.steps, each.end)
            for each in self.ranges
        )
        return tuple(part for part in parts if part.size)

    def after_step(self, *, records: int, file_bytes: int = 0) -> ReplayPlan:
        return replace(self, done=self.done + 1, records=self.records + records, file_bytes=file_bytes)


def new_plan(
    asked: Mapping[str, Any],
    ranges: tuple[OffsetRange, ...],
    topic_ids: Mapping[str, str],
    offsets_per_step: int,
) -> ReplayPlan:
    topics = {each.tp.topic for each in ranges}
    ids = {topic: number for topic, number in topic_ids.items() if topic in topics}
    return ReplayPlan(uuid.uuid4().hex, dict(asked), ids, ranges, offsets_per_step)


def load_plan(state: str, asked: Mapping[str, Any]) -> ReplayPlan | None:
    path = os.path.join(state, FILE)
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
    except FileNotFoundError:
        return None
    if kept["asked"] != json.loads(json.dumps(asked)):
        changed = sorted(
            name for name in {*asked, *kept["asked"]} if asked.get(name) != kept["asked"].get(name)
        )
        raise ReplayError(
            f"{path} is of a replay with other options ({', '.join(changed)}): give this one another name, or remove the file to begin anew"
        )
    ranges = tuple(
        OffsetRange(TopicPartition(topic, part), start, end) for topic, part, start, end in kept["ranges"]
    )
    names = ("id", "topic_ids", "offsets_per_step", "done", "records", "file_bytes")
    return ReplayPlan(asked=kept["asked"], ranges=ranges, **{name: kept[name] for name in names})


def save_plan(state: str, plan: ReplayPlan) -> None:
    document = {
        "id": plan.id,
        "asked": plan.asked,
        "topic_ids": plan.topic_ids,
        "ranges": [[each.tp.topic, each.tp.partition, each.start, each.end] for each in plan.ranges],
        "offsets_per_step": plan.offsets_per_step,
        "done": plan.done,
        "records": plan.records,
        "file_bytes": plan.file_bytes,
    }
    write_atomically(os.path.join(state, FILE), json.dumps(document))


def time_ms(text: str) -> int:
    """Milliseconds, or a time as in ISO 8601; UTC if it has no zone. ValueError: neither."""
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"must be a time such as 2026-03-01T12:00:00Z, or milliseconds, not {text!r}"
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def offsets_of(text: str) -> dict[TopicPartition, int]:
    """ValueError: it is no `{"orders": {"0": 23}}`."""
    try:
        found = parse_offsets(parse_document(text))
    except OffsetsError as error:
        raise ValueError(str(error)) from None
    if negative := [str(tp) for tp, offset in found.items() if offset < 0]:
        raise ValueError(f"{', '.join(negative)}: an offset is a number from 0 on")
    return found
