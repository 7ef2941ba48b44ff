"""Bad input is told in the log, but a flood of it does not flood the log."""

from __future__ import annotations

import logging

import pytest

from tidelog.broker.limited_log import LINES_PER_SECOND, LimitedLog


def test_a_flood_is_counted_instead_of_written(caplog: pytest.LogCaptureFixture) -> None:
    now = [10.0]
    log = LimitedLog(logging.getLogger("tidelog.test"), now=lambda: now[0])
    for number in range(1000):
        log.warning("bad frame %d", number)
    assert [record.getMessage() for record in caplog.records] == [
        f"bad frame {number}" for number in range(LINES_PER_SECOND)
    ]
    caplog.clear()
    now[0] = 11.0
    log.warning("one more")
    assert [record.getMessage() for record in caplog.records] == [
        f"{1000 - LINES_PER_SECOND} more lines like the last ones were left out",
        "one more",
    ]
    caplog.clear()
    now[0] = 12.0
    log.warning("calm again")
    assert [record.getMessage() for record in caplog.records] == ["calm again"]
