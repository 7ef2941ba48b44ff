"""The example's city and the calculators beside it: repeatable, and as uneven as promised."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

from examples.food_delivery import expected
from examples.food_delivery.city import RESTAURANTS, WHALE
from examples.food_delivery.events import Event, events, moment
from examples.food_delivery.topics import TOPICS

START_MS = 1_780_000_000_000
ORDERS = 6_000


@pytest.fixture(scope="module")
def happened() -> list[Event]:
    return list(events(7, 10.0, START_MS, orders=ORDERS))


def test_the_same_seed_and_start_give_the_same_records(happened: list[Event]) -> None:
    assert list(itertools.islice(events(7, 10.0, START_MS), 500)) == happened[:500]
    assert list(itertools.islice(events(8, 10.0, START_MS), 500)) != happened[:500]


def test_records_come_in_the_order_of_their_time_at_the_rate_asked_for(happened: list[Event]) -> None:
    times = [event.at_ms for event in happened]
    assert times == sorted(times) and times[0] == START_MS
    placed = [event.at_ms for event in happened if event.topic == "orders"]
    seconds = (placed[-1] - START_MS) / 1000
    assert ORDERS / seconds == pytest.approx(10.0, rel=0.15)


def test_every_topic_of_the_city_is_known(happened: list[Event]) -> None:
    known = {name for name, _, _ in TOPICS}
    assert {event.topic for event in happened} < known
    assert known - {event.topic for event in happened} == {"orders-per-minute", "orders-dlq"}


def test_one_customer_is_a_whale_and_popularity_is_zipfs(happened: list[Event]) -> None:
    placed = expected.orders(happened)
    customers = Counter(order.customer_id for order in placed)
    assert customers.most_common(1)[0][0] == WHALE
    assert customers[WHALE] / ORDERS == pytest.approx(0.12, abs=0.02)
    assert customers.most_common(2)[1][1] < 15
    popular = Counter(order.restaurant_id for order in placed)
    first, second, tenth = (popular[RESTAURANTS[rank].restaurant_id] for rank in (0, 1, 9))
    assert first / second == pytest.approx(2, rel=0.25)
    assert first / tenth == pytest.approx(10, rel=0.4)


def test_a_few_orders_are_late_by_seconds_and_fewer_by_minutes(happened: list[Event]) -> None:
    late_seconds = [
        (event.at_ms - order.ordered_at_ms) / 1000
        for event in happened
        if event.topic == "orders" and (order := expected.decoded(event)) is not None
    ]
    assert min(late_seconds) >= 0 and max(late_seconds) < 301
    assert sum(2 <= each <= 20.001 for each in late_seconds) / ORDERS == pytest.approx(0.03, abs=0.01)
    assert sum(each >= 60 for each in late_seconds) / ORDERS == pytest.approx(0.01, abs=0.005)


def test_a_few_records_are_poison_of_every_kind(happened: list[Event]) -> None:
    bad = expected.poison(happened)
    assert len(bad) / ORDERS == pytest.approx(0.005, abs=0.003)
    values = [event.value or b"" for event in bad]
    assert b"" in values
    assert any(b'"a lot"' in value for value in values)
    assert any(value.startswith(b"\x00\xff") for value in values)
    assert any(value.startswith(b"{") and not value.endswith(b"}") for value in values)
    assert all(event.key for event in bad)
    placed = expected.orders(happened)
    assert len(placed) == ORDERS == len({order.order_id for order in placed})


def test_an_order_is_paid_cooked_brought_and_then_no_longer_open(happened: list[Event]) -> None:
    stories: dict[str, list[str]] = {}
    for event in happened:
        if event.topic in ("payments", "kitchen", "couriers"):
            said = json.loads(event.value or b"")
            stories.setdefault(said["order_id"], []).append(said["event"])
    whole = ["authorized", "accepted", "assigned", "ready", "picked_up", "delivered", "captured"]
    shapes = Counter(tuple(sorted(story)) for story in stories.values())
    assert len(stories) == ORDERS
    assert set(shapes) == {("declined",), tuple(sorted(whole)), tuple(sorted([*whole, "refunded"]))}
    assert shapes["declined",] / ORDERS == pytest.approx(0.02, abs=0.008)
    assert expected.current_state(happened, "order-status") == {}
    halfway = [event for event in happened if event.at_ms < START_MS + 200_000]
    still_open = expected.current_state(halfway, "order-status")
    assert Counter(state["status"] for state in still_open.values()).keys() == {
        "placed",
        "cooking",
        "on_the_way",
    }


def test_steps_say_how_long_they_took(happened: list[Event]) -> None:
    at_ms: dict[tuple[str, str], int] = {}
    for event in happened:
        if event.topic in ("payments", "kitchen", "couriers"):
            said = json.loads(event.value or b"")
            at_ms[said["order_id"], said["event"]] = event.at_ms
            if event.topic != "payments":
                before = {"accepted": "authorized", "ready": "accepted", "assigned": "accepted", "picked_up": "assigned", "delivered": "picked_up"}  # fmt: skip
                took_ms = event.at_ms - at_ms[said["order_id"], before[said["event"]]]
                assert said["seconds"] == took_ms / 1000 > 0
    found = expected.service_times(happened)
    assert sum(each.times for (_, _, event), each in found.items() if event == "ready") > 0.9 * ORDERS
    assert {event for _, _, event in found} == {"ready", "delivered"}
    assert all(15 <= each.mean_seconds <= each.longest_seconds <= 80 for each in found.values())


def test_the_state_of_restaurants_forgets_those_that_are_gone(happened: list[Event]) -> None:
    state = expected.current_state(happened, "restaurants")
    assert set(state) >= {each.restaurant_id for each in RESTAURANTS}
    came_and_went = [event.value is None for event in happened if event.key == b"restaurant-99"]
    assert came_and_went[:2] == [False, True]
    assert ("restaurant-99" in state) is not came_and_went[-1]


def order(number: int, at: str, cents: int = 100, restaurant: str = "r") -> Event:
    document = {
        "order_id": f"o{number}",
        "customer_id": "c",
        "restaurant_id": restaurant,
        "items": [],
        "total_cents": cents,
        "ordered_at": f"2026-01-01T{at}Z",
    }
    return Event(0, "orders", b"k", json.dumps(document).encode())


def test_orders_are_counted_in_the_minute_in_which_they_were_placed() -> None:
    seen = [order(1, "10:00:00.000"), order(2, "10:00:59.999", 250), order(3, "10:01:00.000", restaurant="s")]
    first = expected.epoch_ms("2026-01-01T10:00:00.000Z")
    assert expected.per_minute(expected.orders(seen)) == {
        (first, "r"): (2, 350),
        (first + 60_000, "s"): (1, 100),
    }
    assert moment(first) == "2026-01-01T10:00:00.000Z"


def test_an_order_is_late_when_an_earlier_round_has_closed_its_minute() -> None:
    rounds = [
        [
            order(1, "10:00:10.000"),
            order(2, "10:05:00.000"),
            order(3, "09:00:00.000"),
        ],  # nothing was closed before
        [
            order(4, "10:03:59.999"),
            order(5, "10:04:00.000"),
        ],  # all before 10:04:30 is closed, so minute 10:03 is
    ]
    found = expected.watched(rounds, 30_000)
    assert [each.order_id for each in found.late] == ["o4"]
    assert [each.order_id for each in found.in_time] == ["o1", "o2", "o3", "o5"]
    assert found.watermark_ms == expected.epoch_ms("2026-01-01T10:04:30.000Z")
    totals = expected.per_minute(found.in_time)
    assert len(totals) == 4 and len(expected.final(totals, found.watermark_ms)) == 2


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b"{}", b'"text"', b"\xff"])
def test_what_is_no_order_is_poison(value: bytes | None) -> None:
    assert expected.poison([Event(0, "orders", b"k", value)]) == [Event(0, "orders", b"k", value)]


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        events(1, 0, START_MS)
