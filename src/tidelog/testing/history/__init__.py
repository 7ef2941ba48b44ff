"""Histories of clients, and the anomalies that Jepsen looks for in logs like Kafka's (RELIABILITY §1).

    history = History()
    send = history.send("p1", at=0.1, topic="orders", partition=0, value="pizza")
    history.sent(send, at=0.2, offset=0)
    …
    check(history).raise_if_dirty()

A simulation records by itself; real clients are wrapped (`recorder`, `clients`), one file per operating system process (`files`). `check` gives back a readable report. Who has allowed what
an anomaly is (an unclean election, say) leaves it out: `check(history, [each for each in ANOMALIES if each is not unseen])`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.testing.history.anomalies_log import (
    duplicate,
    inconsistent_offsets,
    lost_write,
    phantom,
    unseen,
)
from tidelog.testing.history.anomalies_order import (
    internal_nonmonotonic_poll,
    internal_poll_skip,
    nonmonotonic_poll,
    nonmonotonic_send,
    poll_skip,
    real_time_order,
)
from tidelog.testing.history.anomalies_transactions import aborted_read, precommitted_read
from tidelog.testing.history.evidence import Evidence
from tidelog.testing.history.history import History
from tidelog.testing.history.report import Anomaly, AnomalyError, Found, Report, find_all

__all__ = ["ANOMALIES", "Anomaly", "AnomalyError", "Found", "History", "Report", "check"]

ANOMALIES: Final = (
    inconsistent_offsets,
    lost_write,
    unseen,
    duplicate,
    phantom,
    aborted_read,
    precommitted_read,
    poll_skip,
    internal_poll_skip,
    nonmonotonic_poll,
    internal_nonmonotonic_poll,
    nonmonotonic_send,
    real_time_order,
)


def check(history: History, anomalies: Iterable[Anomaly] = ANOMALIES) -> Report:
    """What of these a history shows. The history is not changed, and may be checked again after more has happened."""
    return find_all(Evidence(history), anomalies)
