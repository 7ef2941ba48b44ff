"""ExplainTopic (20002), version 0: why each segment of a partition is still there. Tidelog's own; never listed in ApiVersions (`wire/tidelog_api.py`)."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.limited_log import LimitedLog
from tidelog.errors import CorruptDataError, RequestError
from tidelog.replication.partition import Partition
from tidelog.storage.disk import DiskError
from tidelog.storage.segment_fate import each_fate
from tidelog.storage.segment_times import unknown_times
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.tidelog_api import ExplainedSegment, ExplainTopicRequest, ExplainTopicResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

SEGMENTS_PER_TURN = 200
TRIES = 3
"""A segment that goes while it is looked at is no trouble: the look begins anew."""

complaints = LimitedLog(logging.getLogger("tidelog.broker"), lines_per_second=2)


async def handle(
    broker: Broker, context: RequestContext, request: ExplainTopicRequest
) -> ExplainTopicResponse:
    try:
        partition = broker.partitions.leader_of(request.topic, request.partition)
        return await _explain(broker, partition)
    except RequestError as error:
        return ExplainTopicResponse(error_code=error.code, error_message=error.message)


async def _explain(broker: Broker, partition: Partition) -> ExplainTopicResponse:
    log = partition.log
    for part in unknown_times(log):
        await broker.read_in_thread(part.warm)
        part.load()
    for _ in range(TRIES):
        try:
            segments = await _segments(broker, partition)
        except FileNotFoundError:
            continue
        except DiskError as error:
            if error.errno == errno.ENOENT:
                continue
            broker.partitions.disk_failed(partition, error)
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except CorruptDataError as error:
            complaints.error("%r cannot be explained: %s", partition, error)
            raise RequestError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        policies = ("delete", log.config.delete_policy), ("compact", log.config.compact_policy)
        return ExplainTopicResponse(
            now_ms=broker.clock.wall_ms(),
            cleanup_policy=",".join(name for name, is_on in policies if is_on),
            log_start_offset=log.log_start_offset,
            last_stable_offset=log.last_stable_offset,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            segments=segments,
        )
    raise RequestError(
        ErrorCode.REQUEST_TIMED_OUT, "segments were deleted faster than they could be looked at; ask again"
    )


async def _segments(broker: Broker, partition: Partition) -> list[ExplainedSegment]:
    """Some in each turn of the loop: a log may have ten thousand."""
    explained: list[ExplainedSegment] = []
    horizon_ms = broker.cleaner.horizon_ms((partition.topic, partition.index))
    for fate in each_fate(partition.log, broker.clock.wall_ms(), horizon_ms=horizon_ms):
        explained.append(
            ExplainedSegment(
                base_offset=fate.base_offset,
                end_offset=fate.end_offset,
                size=fate.size,
                newest_timestamp=fate.newest_timestamp,
                age_ms=fate.age_ms,
                fate=fate.fate.value,
                until_ms=-1 if fate.goes_at_ms is None else fate.goes_at_ms,
                explanation=fate.explanation,
            )
        )
        if len(explained) % SEGMENTS_PER_TURN == 0:
            await asyncio.sleep(0)
    return explained
