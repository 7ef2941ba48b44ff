"""What a producer writes, byte for byte, when a scripted broker refuses, repeats and hangs up; and what it reports of each batch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.test_cluster import Script, script
from tidelog.client import Producer, TopicPartition
from tidelog.client.errors import BrokerError, DeliveryFailedError
from tidelog.client.producer.delivery import BatchReport
from tidelog.records.batch import read_header
from tidelog.wire.error_codes import ErrorCode

__all__ = ["script"]
TP = TopicPartition("t", 0)


def send(fake_broker: Any, script: Script, values: list[bytes], **options: Any) -> list[BatchReport]:
    reports: list[BatchReport] = []

    async def scenario(broker: Any) -> None:
        script.port = broker.port
        async with Producer(
            f"127.0.0.1:{broker.port}",
            **{"retry_backoff_ms": 1, "linger_ms": 100, "on_batch": reports.append, **options},
        ) as producer:
            for value in values:
                await producer.send("t", value, partition=0, timestamp_ms=1)

    fake_broker(script, scenario)
    return reports


def test_a_retried_batch_keeps_its_number_and_its_bytes(
    fake_broker: Any, script: Script, hang_up: object
) -> None:
    script.produce_answers = [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        hang_up,
        ErrorCode.NONE,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ]
    reports = send(fake_broker, script, [b"x" * 60] * 4, batch_size=250)
    headers = [read_header(batch) for _, batch in script.batches]
    assert [h.base_sequence for h in headers] == [0, 0, 0, 2]
    assert {(h.producer_id, h.producer_epoch) for h in headers} == {(77, 0)}
    assert script.batches[0] == script.batches[1] == script.batches[2]
    assert [(r.tp, r.record_count, r.error) for r in reports] == [(TP, 2, None)] * 2
    assert reports[0].base_offset == 0
    assert [r.size_bytes for r in reports] == [len(script.batches[2][1]), len(script.batches[3][1])]


def test_without_acks_all_there_is_no_producer_id(fake_broker: Any, script: Script) -> None:
    send(fake_broker, script, [b"x"], acks=1, enable_idempotence=False)
    header = read_header(script.batches[0][1])
    assert (header.producer_id, header.base_sequence) == (-1, -1)


def test_a_batch_that_is_too_large_is_taken_apart_and_stays_in_order(
    fake_broker: Any, script: Script
) -> None:
    script.produce_answers = [ErrorCode.MESSAGE_TOO_LARGE]
    reports = send(fake_broker, script, [b"%d" % n * 50 for n in range(8)])
    whole, *parts = [read_header(batch) for _, batch in script.batches]
    assert (whole.base_sequence, whole.record_count) == (0, 8)
    assert len(parts) > 1 and sum(part.record_count for part in parts) == 8
    at = 0
    for part, report in zip(parts, reports, strict=True):
        assert part.base_sequence == report.base_offset == at
        assert part.record_count == report.record_count
        at += part.record_count


def test_a_batch_that_fails_is_reported_with_its_error(fake_broker: Any, script: Script) -> None:
    script.produce_answers = [ErrorCode.MESSAGE_TOO_LARGE]
    reports: list[BatchReport] = []
    with pytest.raises(DeliveryFailedError, match=r"1 records were not delivered.*MESSAGE_TOO_LARGE"):
        send(fake_broker, script, [b"x"], on_batch=reports.append)
    ((tp, count, _, offset, error),) = reports
    assert (tp, count, offset) == (TP, 1, -1)
    assert isinstance(error, BrokerError) and "1 records for t-0 were not delivered" in error.__notes__


def test_whoever_counts_and_fails_holds_nobody_up(
    fake_broker: Any, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(report: BatchReport) -> None:
        raise RuntimeError("cannot count")

    send(fake_broker, script, [b"x"], on_batch=fail)
    assert len(script.batches) == 1
    assert "cannot count" in caplog.text
