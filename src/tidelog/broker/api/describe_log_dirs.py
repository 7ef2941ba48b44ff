"""DescribeLogDirs (35), versions 1-5: what lies in which log directory, and how much room is left.

2  flexible      3  top-level error      4  total and usable bytes of the volume      5  cordoned directories
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.storage.disk import DiskError
from tidelog.storage.files import parent
from tidelog.storage.log import Log
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(
    broker: Broker, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    wanted = _wanted(request)
    by_dir: dict[str, dict[str, list[Log]]] = {}
    for (topic, index), log in broker.logs.logs.items():
        if wanted(topic, index):
            by_dir.setdefault(parent(log.directory), {}).setdefault(topic, []).append(log)
    response = DescribeLogDirsResponse()
    for directory in broker.logs.dirs:
        if not directory.online:
            response.results.append(
                DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path)
            )
            continue
        result = DescribeLogDirsResult(
            log_dir=directory.path,
            topics=[
                DescribeLogDirsTopic(name=topic, partitions=[_partition(log) for log in logs])
                for topic, logs in by_dir.get(directory.path, {}).items()
            ],
        )
        try:
            result.total_bytes, result.usable_bytes = broker.disk.volume_bytes(directory.path)
        except DiskError:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        response.results.append(result)
    return response


def _wanted(request: DescribeLogDirsRequest) -> Callable[[str, int], bool]:
    if request.topics is None:
        return lambda topic, index: True
    asked = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return lambda topic, index: (topic, index) in asked


def _partition(log: Log) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=log.partition,
        partition_size=log.size_bytes,
        offset_lag=max(0, log.high_watermark - log.log_end_offset),
    )
