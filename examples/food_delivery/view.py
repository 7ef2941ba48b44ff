"""Results for a person: a table that is redrawn on a terminal, a few lines now and then elsewhere. Pure: a `Snapshot` in, texts and rich tables out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from examples.food_delivery.expected import MINUTE_MS, NOTHING, PerMinute, Total

if TYPE_CHECKING:
    from rich.console import RenderableType

MINUTES_SHOWN: Final = 4
RESTAURANTS_SHOWN: Final = 10
STATUSES: Final = ("placed", "cooking", "on_the_way")
SERVICE: Final = {"ready": "cooking", "delivered": "delivery"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the pipeline has come to so far; None is not known (yet)."""

    per_minute: PerMinute = field(default_factory=dict)
    """Of the last minutes."""
    total: Total = NOTHING
    """Of all minutes."""
    restaurants: Mapping[str, str] = field(default_factory=dict)
    """Their names."""
    open_orders: Mapping[str, int] = field(default_factory=dict)
    """By status."""
    paid_cents: int | None = None
    service_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long steps took lately, on average, by event."""
    late: int | None = None
    dead_letters: int | None = None
    last_reason: str | None = None
    """Why the last dead letter is one."""
    lag: int | None = None
    troubles: tuple[str, ...] = ()

    @property
    def has_results(self) -> bool:
        return bool(self.per_minute)

    def minutes(self) -> list[int]:
        """The newest first; without gaps."""
        if not self.per_minute:
            return []
        newest = max(minute for minute, _ in self.per_minute)
        return [newest - back * MINUTE_MS for back in range(MINUTES_SHOWN)]

    def of_minute(self, minute: int) -> Total:
        return _sum(total for (when, _), total in self.per_minute.items() if when == minute)

    def ranked(self) -> list[tuple[str, Total]]:
        """Restaurants, the one with most orders in the minutes shown first."""
        shown = set(self.minutes())
        sums: dict[str, Total] = {}
        for (minute, restaurant), total in self.per_minute.items():
            if minute in shown:
                sums[restaurant] = _sum((sums.get(restaurant, NOTHING), total))
        return sorted(sums.items(), key=lambda each: (-each[1].orders, each[0]))

    def name(self, restaurant_id: str) -> str:
        return self.restaurants.get(restaurant_id, restaurant_id)


def _sum(totals: Iterator[Total] | tuple[Total, ...]) -> Total:
    orders = revenue = 0
    for each in totals:
        orders, revenue = orders + each.orders, revenue + each.revenue_cents
    return Total(orders, revenue)


def lines(snapshot: Snapshot) -> Iterator[str]:
    """For a file or a pipe; troubles are not among them."""
    minutes = snapshot.minutes()
    if not minutes:
        yield "no results yet"
        return
    for minute in reversed(minutes[:2]):
        total = snapshot.of_minute(minute)
        best = sorted(
            (
                (each, restaurant)
                for (when, restaurant), each in snapshot.per_minute.items()
                if when == minute
            ),
            reverse=True,
        )[:3]
        names = ", ".join(f"{snapshot.name(restaurant)} {each.orders}" for each, restaurant in best)
        yield f"minute {clock(minute)}: {total.orders} orders, revenue {money(total.revenue_cents)}; most: {names or '-'}"
    yield "; ".join(summary(snapshot))


def summary(snapshot: Snapshot) -> Iterator[str]:
    yield f"in all {snapshot.total.orders} orders, revenue {money(snapshot.total.revenue_cents)}"
    if snapshot.paid_cents is not None:
        yield f"paid {money(snapshot.paid_cents)}"
    statuses = ", ".join(f"{snapshot.open_orders.get(each, 0)} {each.replace('_', ' ')}" for each in STATUSES)
    yield f"open orders: {statuses}"
    if snapshot.service_seconds:
        times = (
            f"{SERVICE[each]} {seconds:.0f} s"
            for each, seconds in sorted(snapshot.service_seconds.items(), reverse=True)
        )
        yield f"on average {', '.join(times)}"
    yield f"late {number(snapshot.late)}"
    reason = f" (last: {snapshot.last_reason})" if snapshot.last_reason else ""
    yield f"dead letters {number(snapshot.dead_letters)}{reason}"
    yield f"lag {number(snapshot.lag)} records"


def picture(snapshot: Snapshot, title: str) -> RenderableType:
    """For a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    minutes = snapshot.minutes()
    table = Table(title=title, title_justify="left", expand=False)
    table.add_column("orders per minute")
    for place, minute in enumerate(minutes):
        table.add_column(clock(minute), justify="right", style="bold" if place == 0 else "")
    table.add_column("revenue", justify="right")
    if not minutes:
        table.add_row("waiting for the first results …", "")
    ranked = snapshot.ranked()
    for restaurant, total in ranked[:RESTAURANTS_SHOWN]:
        counts = (
            str(snapshot.per_minute.get((minute, restaurant), NOTHING).orders or "·") for minute in minutes
        )
        table.add_row(snapshot.name(restaurant), *counts, money(total.revenue_cents))
    if len(ranked) > RESTAURANTS_SHOWN:
        rest = dict(ranked[RESTAURANTS_SHOWN:])
        counts = (
            str(_sum(tuple(snapshot.per_minute.get((minute, each), NOTHING) for each in rest)).orders)
            for minute in minutes
        )
        table.add_row(
            f"{len(rest)} more", *counts, money(_sum(tuple(rest.values())).revenue_cents), style="dim"
        )
    if minutes:
        totals = [snapshot.of_minute(minute) for minute in minutes]
        table.add_section()
        table.add_row("all", *(str(each.orders) for each in totals), money(_sum(tuple(totals)).revenue_cents))
    below = [Text(each) for each in summary(snapshot)]
    return Group(table, *below, *(Text(each, style="red") for each in snapshot.troubles))


def clock(at_ms: int) -> str:
    """Of a minute, in UTC, as the tables have it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M")


def money(cents: int) -> str:
    return f"{cents / 100:,.2f}"


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
