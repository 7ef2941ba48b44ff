"""How many bytes an offset takes, for limits by bytes: measured on the batches that come next in each partition.

A small piece of the log is fetched where the next micro-batch begins, and only the headers of its batches are read. Bytes are those of the log, compressed as
they lie there. Sizes that change a lot behind the piece make a batch larger or smaller than asked for; the next one is measured anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from tidelog.client.cluster import ClusterClient
from tidelog.client.errors import check
from tidelog.client.metadata import TopicPartition
from tidelog.records.batch import CURRENT_MAGIC, HEADER_SIZE, read_header
from tidelog.spark.fetch_requests import fetch
from tidelog.wire.error_codes import ErrorCode

SAMPLE_BYTES: Final = 128 << 10
"""Of each partition."""
_NOT_NOW: Final = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""Logs that have changed since they were looked at: the task that reads them says so."""


async def bytes_per_offset(
    cluster: ClusterClient, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, float]:
    """For partitions in which a whole batch header lies behind the position."""
    groups = await cluster.by_leader(positions)
    answers = await asyncio.gather(*(_sample(cluster, node, tps, positions) for node, tps in groups.items()))
    return {tp: size for answer in answers for tp, size in answer.items()}


async def _sample(
    cluster: ClusterClient, node: int, tps: list[TopicPartition], positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, float]:
    answers = await fetch(
        cluster,
        node,
        {tp: positions[tp] for tp in tps},
        partition_bytes=dict.fromkeys(tps, SAMPLE_BYTES),
        bytes_max=SAMPLE_BYTES * len(tps),
        wait_ms=0,
    )
    found: dict[TopicPartition, float] = {}
    for tp, data in answers:
        if data.error_code in _NOT_NOW:
            continue
        check(data.error_code, f"fetching from {tp}")
        if isinstance(data.records, memoryview):
            size = mean_bytes(data.records, positions[tp])
            if size is not None:
                found[tp] = size
    return found


def mean_bytes(records: memoryview, position: int) -> float | None:
    """Bytes for each offset from `position` on, by the headers of batches; the last one may be cut off behind its header."""
    at, size = 0, 0.0
    next_offset = position
    while at + HEADER_SIZE <= len(records):
        header = read_header(records, at)
        if header.magic != CURRENT_MAGIC or header.size < HEADER_SIZE:
            break
        if header.next_offset > position:
            # Of a batch that begins before the position only a part is read.
            share = min(1.0, (header.next_offset - position) / (header.last_offset_delta + 1))
            size += header.size * share if next_offset == position else header.size
            next_offset = header.next_offset
        at += header.size
    return size / (next_offset - position) if next_offset > position else None
