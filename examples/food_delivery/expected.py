"""What the pipeline should arrive at, calculated in plain Python from the records themselves. Pure; knows nothing of Spark, tables or topics' offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from examples.food_delivery.events import Event

MINUTE_MS: Final = 60_000
_ORDER: Final = {
    "order_id": str,
    "customer_id": str,
    "restaurant_id": str,
    "items": list,
    "total_cents": int,
    "ordered_at": str,
}


class Order(NamedTuple):
    order_id: str
    customer_id: str
    restaurant_id: str
    total_cents: int
    ordered_at_ms: int
    document: dict[str, Any]


class Total(NamedTuple):
    orders: int
    revenue_cents: int


NOTHING: Final = Total(0, 0)
PerMinute = dict[tuple[int, str], Total]
"""By (beginning of the minute in ms, restaurant)."""


def decoded(event: Event) -> Order | None:
    """None: poison."""
    try:
        document = json.loads((event.value or b"").decode("utf-8"))
    except ValueError:
        return None
    if not isinstance(document, dict) or not all(
        isinstance(document.get(name), kind) for name, kind in _ORDER.items()
    ):
        return None
    return Order(
        document["order_id"],
        document["customer_id"],
        document["restaurant_id"],
        document["total_cents"],
        epoch_ms(document["ordered_at"]),
        document,
    )


def orders(happened: Iterable[Event]) -> list[Order]:
    return [order for event in happened if event.topic == "orders" and (order := decoded(event)) is not None]


def poison(happened: Iterable[Event]) -> list[Event]:
    return [event for event in happened if event.topic == "orders" and decoded(event) is None]


def per_minute(counted: Iterable[Order]) -> PerMinute:
    totals: PerMinute = {}
    for order in counted:
        place = minute_of(order.ordered_at_ms), order.restaurant_id
        before = totals.get(place, NOTHING)
        totals[place] = Total(before.orders + 1, before.revenue_cents + order.total_cents)
    return totals


class Steps(NamedTuple):
    """How long something took, of so many times."""

    times: int
    mean_seconds: float
    longest_seconds: float


def service_times(happened: Iterable[Event]) -> dict[tuple[int, str, str], Steps]:
    """Cooking ("ready") and the way to the door ("delivered"), by minute, restaurant and event."""
    found: dict[tuple[int, str, str], list[float]] = {}
    for event in happened:
        if event.topic not in ("kitchen", "couriers"):
            continue
        said = json.loads(event.value or b"")
        if said["event"] in ("ready", "delivered"):
            place = minute_of(epoch_ms(said["at"])), said["restaurant_id"], said["event"]
            found.setdefault(place, []).append(said["seconds"])
    return {place: Steps(len(each), sum(each) / len(each), max(each)) for place, each in found.items()}


class Watched(NamedTuple):
    in_time: list[Order]
    late: list[Order]
    watermark_ms: int
    """After the last round; a minute that ends at or before it is final."""


def watched(rounds: Sequence[Iterable[Event]], delay_ms: int) -> Watched:
    """Which orders count, if each round is read as one batch: an order is late when its minute was over, by more than `delay_ms` behind the newest of all earlier rounds."""
    in_time: list[Order] = []
    late: list[Order] = []
    newest_ms = watermark_ms = 0
    for happened in rounds:
        for order in orders(happened):
            is_late = minute_of(order.ordered_at_ms) + MINUTE_MS <= watermark_ms
            (late if is_late else in_time).append(order)
            newest_ms = max(newest_ms, order.ordered_at_ms)
        watermark_ms = max(watermark_ms, newest_ms - delay_ms)
    return Watched(in_time, late, watermark_ms)


def final(totals: PerMinute, watermark_ms: int) -> PerMinute:
    """Those minutes to which nothing can be added any more."""
    return {place: total for place, total in totals.items() if place[0] + MINUTE_MS <= watermark_ms}


def current_state(happened: Iterable[Event], topic: str) -> dict[str, dict[str, Any]]:
    """The latest value of each key; a tombstone takes its key away."""
    state: dict[str, dict[str, Any]] = {}
    for event in happened:
        if event.topic != topic:
            continue
        if event.value is None:
            state.pop(event.key.decode(), None)
        else:
            state[event.key.decode()] = json.loads(event.value)
    return state


def minute_of(at_ms: int) -> int:
    return at_ms - at_ms % MINUTE_MS


def epoch_ms(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)
