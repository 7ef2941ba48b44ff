"""`tidelog consume` without a group: from given offsets, to given ends or until Ctrl-C, to stdout. Commits nothing."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.cli.boundary import CommandError
from tidelog.cli.output import put_out
from tidelog.cli.reading import POLL_MS, POLL_MS_TO_END, Watch, go_on_where_cut, reader_options
from tidelog.cli.record_format import RecordFormat
from tidelog.cli.start_offsets import end_offsets, start_offsets
from tidelog.client.cluster import ClusterClient
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.consumer.records import ConsumerRecord
from tidelog.client.errors import LogTruncatedError, NoOffsetError
from tidelog.client.metadata import TopicPartition


async def print_records(
    cluster: ClusterClient,
    bootstrap_servers: str,
    topic: str,
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int] | None,
    write: RecordFormat,
    count: int | None,
) -> None:
    left = count
    unfinished = {tp for tp, offset in positions.items() if ends is None or offset < ends[tp]}
    watch = Watch(cluster, topic)
    async with Consumer(bootstrap_servers, **reader_options()) as consumer:
        consumer.assign(unfinished)
        for tp in unfinished:
            consumer.seek(tp, positions[tp])
        while unfinished and left != 0:
            records = await _poll(cluster, consumer, left, is_to_end=ends is not None)
            lines = [write(record) for record in records if ends is None or _is_before(record, ends)]
            put_out(b"".join(lines))
            if left is not None:
                left -= len(lines)
            if ends is not None:
                reached = {tp for tp, offset in consumer.positions().items() if offset >= ends[tp]}
                consumer.pause(*reached)
                unfinished -= reached
            await watch.heard(bool(records))


async def _poll(
    cluster: ClusterClient, consumer: Consumer, left: int | None, *, is_to_end: bool
) -> list[ConsumerRecord]:
    try:
        return await consumer.poll(timeout_ms=POLL_MS_TO_END if is_to_end else POLL_MS, max_records=left)
    except NoOffsetError as error:
        first = (await start_offsets(cluster, [error.tp], from_beginning=True))[error.tp]
        end = (await end_offsets(cluster, [error.tp]))[error.tp]
        if error.offset is None or first <= error.offset <= end:
            raise  # it is another topic by now
        raise CommandError(
            f"offset {error.offset} of {error.tp} is not there; the partition has offsets {first} to {end} (exclusive)"
        ) from None
    except LogTruncatedError as error:
        go_on_where_cut(consumer, error)
        return []


def _is_before(record: ConsumerRecord, ends: Mapping[TopicPartition, int]) -> bool:
    return record.offset < ends[TopicPartition(record.topic, record.partition)]
