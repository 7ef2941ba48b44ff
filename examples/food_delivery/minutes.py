"""Counts per minute and restaurant as they come from the topic of results: each newer one replaces the older one of the same minute. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from examples.food_delivery.expected import MINUTE_MS, NOTHING, PerMinute, Total, epoch_ms

REMEMBERED_MINUTES: Final = 60
"""Those before are kept as one sum; no order comes that late."""


class Minutes:
    def __init__(self) -> None:
        self._known: PerMinute = {}
        self._before = NOTHING
        self._newest = 0

    def add(self, value: bytes) -> None:
        minute, restaurant, total = read_result(json.loads(value))
        self._known[minute, restaurant] = total
        if minute > self._newest:
            self._newest = minute
            since = minute - REMEMBERED_MINUTES * MINUTE_MS
            for place in [place for place in self._known if place[0] < since]:
                self._before = _plus(self._before, self._known.pop(place))

    def newest(self, count: int) -> PerMinute:
        """Of so many minutes."""
        since = self._newest - (count - 1) * MINUTE_MS
        return {place: total for place, total in self._known.items() if place[0] >= since}

    def total(self) -> Total:
        total = self._before
        for each in self._known.values():
            total = _plus(total, each)
        return total


def read_result(document: dict[str, Any]) -> tuple[int, str, Total]:
    """Of one record of `orders-per-minute`: (minute, restaurant, total)."""
    return (
        epoch_ms(document["window_start"]),
        document["restaurant_id"],
        Total(document["orders"], document["revenue_cents"]),
    )


def _plus(one: Total, other: Total) -> Total:
    return Total(one.orders + other.orders, one.revenue_cents + other.revenue_cents)
