"""What recovery found is told in the broker's log, by file and position."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tidelog.testing import Cluster


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A stopped broker's directory with one record in orders-0; the stop counts as a crash."""
    with Cluster(data_dir=tmp_path, topics=["orders"]) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        producer.produce("orders", b"ramen")
        assert producer.flush(10) == 0
    (tmp_path / ".kafka_cleanshutdown").unlink()
    return tmp_path


def test_a_torn_tail_is_told_with_its_place(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = stopped / "orders-0" / "00000000000000000000.log"
    size = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"torn")
    with caplog.at_level(logging.INFO, "tidelog.broker"), Cluster(data_dir=stopped):
        pass
    (told,) = [record for record in caplog.records if "was cut" in record.getMessage()]
    assert told.levelno == logging.WARNING
    assert f"{segment} was cut at position {size} (4 bytes)" in told.getMessage()


def test_damage_is_an_error_and_nothing_is_cut(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = stopped / "orders-0" / "00000000000000000000.log"
    content = bytearray(segment.read_bytes())
    content[-1] ^= 0xFF
    segment.write_bytes(content)
    with caplog.at_level(logging.INFO, "tidelog.broker"), Cluster(data_dir=stopped):
        pass
    (told,) = [record for record in caplog.records if "is damaged" in record.getMessage()]
    assert told.levelno == logging.ERROR
    assert str(segment) in told.getMessage()
    assert segment.stat().st_size == len(content)
