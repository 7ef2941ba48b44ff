"""*replay*: a bounded range of topics, by offset or time, from brokers or straight from segment files, copied to another topic, a table or a file.

What is copied is settled once and done in steps that are noted (`replay_plan`): an interrupted replay goes on with the step that was not finished. A range that is not there, or not there any more,
is refused with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tidelog.pipeline.context import JobContext
from tidelog.pipeline.options import Options as BaseOptions
from tidelog.pipeline.options import PathText, Problem
from tidelog.pipeline.replay_plan import (
    ReplayError,
    ReplayPlan,
    load_plan,
    new_plan,
    offsets_of,
    save_plan,
    time_ms,
)
from tidelog.pipeline.replay_source import ReplaySource, check_there, check_time, clamped, settled
from tidelog.pipeline.tables.table import TableFormat

if TYPE_CHECKING:
    from tidelog.client.metadata import TopicPartition
    from tidelog.pipeline.replay_targets import Target
    from tidelog.spark.loss import LogView

OFFSETS_PER_STEP: Final = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BaseOptions):
    topics: tuple[str, ...]
    """What is copied."""
    path: PathText | None = None
    """A data directory (a stopped broker's, a backup's, a running one's sealed part) to read instead of brokers."""
    high_watermark: Literal["checkpoint", "none"] = "checkpoint"
    """Of a path: read up to the checkpointed high watermark, or to the end of the files."""
    from_offsets: str | None = None
    """`{"orders": {"0": 23}}`: only these partitions are read. Otherwise all, from their beginning."""
    to_offsets: str | None = None
    """Up to these, without them. Otherwise to the end as it is when the replay begins."""
    from_time: str | None = None
    """From the first record on that is as late: 2026-03-01T12:00:00Z, or milliseconds."""
    to_time: str | None = None
    """Up to the first record that is as late, without it."""
    to_topic: str | None = None
    """Made, with as many partitions as the source, if there is none. At least once."""
    partitions: Literal["auto", "keep", "by-key"] = "auto"
    """Records keep their partition, or their key decides; auto keeps it where the topics have the same number of partitions."""
    position_headers: bool = False
    """Records say in headers where they were: replay.topic, replay.partition, replay.offset, replay.timestamp."""
    keep_timestamps: bool = True
    """Records keep their time. Otherwise they get that of the replay."""
    table: PathText | None = None
    """A table that the records go to, as they are: key, value, and where they were."""
    table_format: TableFormat = "delta"
    """What that table is kept as."""
    file: PathText | None = None
    """A line of JSON for each record, as `tidelog consume` writes it."""
    fail_on_data_loss: bool = True
    """Otherwise what is there of the range is copied."""
    offsets_per_step: int = OFFSETS_PER_STEP
    """How much is copied between two notes of how far the replay is. A file's step is in memory."""

    def check(self) -> Iterator[Problem]:
        if not self.topics:
            yield Problem("topics", "say what to replay")
        targets = [name for name in ("to_topic", "table", "file") if getattr(self, name)]
        if len(targets) != 1:
            yield Problem(
                "",
                f"say where to by one of to_topic, table and file, not by {' and '.join(targets) or 'none'}",
            )
        for offsets, time in (("from_offsets", "from_time"), ("to_offsets", "to_time")):
            if getattr(self, offsets) is not None and getattr(self, time) is not None:
                yield Problem(time, f"there is {offsets}, too: give one of them")
            yield from self._check_value(offsets, offsets_of)
            yield from self._check_value(time, time_ms)
        if self.to_topic is not None and self.path is None and self.to_topic in self.topics:
            yield Problem("to_topic", f"{self.to_topic} is what is read: records would be there twice")
        if self.partitions == "keep" and len(self.topics) > 1:
            yield Problem("partitions", "of several topics cannot be kept in one: use by-key")
        if self.offsets_per_step < 1:
            yield Problem("offsets_per_step", f"must be at least 1, not {self.offsets_per_step}")

    def _check_value(self, name: str, parse: Any) -> Iterator[Problem]:
        if (text := getattr(self, name)) is None:
            return
        try:
            found = parse(text)
        except ValueError as error:
            yield Problem(name, str(error))
            return
        if isinstance(found, dict) and (others := sorted({tp.topic for tp in found} - set(self.topics))):
            yield Problem(name, f"names {', '.join(others)}, which is not among the topics")

    def topics_written(self) -> Iterable[str]:
        return () if self.to_topic is None else (self.to_topic,)

    def places_written(self) -> Iterable[str]:
        return tuple(each for each in (self.table, self.file) if each is not None)

    def asked(self) -> dict[str, Any]:
        """What makes it this replay and no other."""
        names = (
            "topics", "path", "from_offsets", "to_offsets", "from_time", "to_time", "to_topic", "table", "table_format", "file",
        )  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        return {**found, "topics": list(self.topics)}


def run(context: JobContext, options: Options) -> Mapping[str, Any]:
    source = _source(context, options)
    plan = load_plan(context.state, options.asked())
    if plan is None:
        plan = _settle(options, source)
        _check_new(options)
        save_plan(context.state, plan)
    elif not plan.is_done:
        plan = _still_there(plan, options, source)
    counters = context.counters
    counters.add("steps in all", plan.steps)
    counters.add("steps done", plan.done)
    counters.add("records", plan.records)
    if not plan.is_done:
        target = _target(context, options, plan)
        while not plan.is_done:
            before = plan.records
            plan = target.write(source.read(context.spark, plan.step(plan.done)), plan)
            save_plan(context.state, plan)
            counters.add("steps done")
            counters.add("records", plan.records - before)
    return {
        "records": plan.records,
        "offsets": plan.offsets,
        "partitions": len(plan.ranges),
        "to": options.to_topic or options.table or options.file,
    }


def _source(context: JobContext, options: Options) -> ReplaySource:
    if options.path is None:
        return ReplaySource(topics=options.topics, path=None, options=context.kafka_options())
    level = context.client.get("isolation.level", "read_uncommitted")
    chosen = {"path": options.path, "highWatermark": options.high_watermark, "isolationLevel": level}
    return ReplaySource(topics=options.topics, path=options.path, options=chosen)


def _settle(options: Options, source: ReplaySource) -> ReplayPlan:
    from_ms = None if options.from_time is None else time_ms(options.from_time)
    to_ms = None if options.to_time is None else time_ms(options.to_time)
    asked = [each for each in (from_ms, to_ms) if each is not None]
    view, times = source.look([*asked, 0] if from_ms is not None else asked)
    ranges = settled(
        view,
        times,
        from_offsets=None if options.from_offsets is None else offsets_of(options.from_offsets),
        to_offsets=None if options.to_offsets is None else offsets_of(options.to_offsets),
        from_time_ms=from_ms,
        to_time_ms=to_ms,
        topics=options.topics,
    )
    if options.fail_on_data_loss:
        check_there(ranges, view)
        if from_ms is not None:
            check_time(ranges, view, _times_of_first(times[0]), from_ms)
    return new_plan(options.asked(), clamped(ranges, view), view.topic_ids, options.offsets_per_step)


def _times_of_first(found: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
    return {tp: each.timestamp for tp, each in found.items() if each.offset >= 0}


def _check_new(options: Options) -> None:
    if options.file is not None and os.path.exists(options.file):
        raise ReplayError(f"{options.file} is there already: name another file, or remove it")


def _still_there(plan: ReplayPlan, options: Options, source: ReplaySource) -> ReplayPlan:
    """What is left of an interrupted replay must be what it was."""
    view, _ = source.look(())
    _check_ids(plan, view)
    if options.fail_on_data_loss:
        check_there(plan.left(), view)
        return plan
    return plan


def _check_ids(plan: ReplayPlan, view: LogView) -> None:
    anew = [topic for topic, number in plan.topic_ids.items() if view.topic_ids.get(topic, number) != number]
    if anew:
        raise ReplayError(
            f"topic {', '.join(anew)} was deleted and made anew since the replay began, after {plan.done} of {plan.steps} steps: "
            "what was left to copy is gone. Give another name to a replay of the new topic"
        )


def _target(context: JobContext, options: Options, plan: ReplayPlan) -> Target:
    from tidelog.pipeline.replay_targets import FileTarget, TableTarget, TopicTarget

    if options.table is not None:
        return TableTarget(options.table, options.table_format)
    if options.file is not None:
        return FileTarget(options.file)
    topic = options.to_topic or ""
    count = _source_partitions(context, options, plan)
    has = _partitions_of(context, topic, count)
    keeps = len(options.topics) == 1 and has == count
    if options.partitions == "keep" and not keeps:
        raise ReplayError(
            f"{options.topics[0]} has {count} partitions and {topic} has {has}: partitions can be kept only where there are as many; use by-key"
        )
    return TopicTarget(
        context,
        topic,
        keeps_partitions=keeps and options.partitions != "by-key",
        adds_headers=options.position_headers,
        keeps_timestamps=options.keep_timestamps,
    )


def _source_partitions(context: JobContext, options: Options, plan: ReplayPlan) -> int:
    """Of the topic with the most. A directory of segments may hold some of them only."""
    view, _ = _source(context, options).look(())
    return max(
        (tp.partition + 1 for tp in view.latest), default=max(each.tp.partition + 1 for each in plan.ranges)
    )


def _partitions_of(context: JobContext, topic: str, wanted: int) -> int:
    from tidelog.client.admin_values import NewTopic
    from tidelog.client.blocking import Admin
    from tidelog.client.cluster import TopicMissingError

    with Admin(context.brokers) as admin:
        try:
            found = admin.describe_topics([topic])
        except TopicMissingError:
            admin.create_topics([NewTopic(topic, wanted)])
            return wanted
    return len(next(iter(found)).partitions)
