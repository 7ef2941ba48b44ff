"""How the broker of the client's tests is set, ours and Kafka alike: groups in a hurry, so that no test waits for the patience of production."""

from __future__ import annotations

from typing import Final

BROKER_SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",  # it waits for no further members
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}
