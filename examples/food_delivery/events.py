"""What happens in the city, as records for the log: pure and repeatable, the same seed and start give the same records byte for byte.

Every order is placed (`orders`), paid (`payments`), cooked (`kitchen`) and brought (`couriers`); `order-status` has the current state of the open ones and a
tombstone for each that is done, `restaurants` the current state of all restaurants. In this city minutes of waiting are seconds: an order takes one to three
minutes from app to door.

What makes it real: some orders arrive late, because a phone was in a tunnel (seconds) or out of reach (minutes), so `ordered_at` says when it was and the order of
arrival does not. Some records of `orders` are poison: an old app or a broken gateway wrote what no reader can decode. One customer is a whale.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any, Final, NamedTuple

from examples.food_delivery.city import (
    COURIERS,
    CUSTOMERS,
    POP_UP,
    RESTAURANTS,
    WHALE,
    WHALE_SHARE,
    ZIPF_EXPONENT,
    Restaurant,
)

TUNNEL_SHARE, TUNNEL_SECONDS = 0.03, (2.0, 20.0)
OUT_OF_REACH_SHARE, OUT_OF_REACH_SECONDS = 0.01, (60.0, 300.0)
POISON_SHARE: Final = 0.005
DECLINED_SHARE, REFUNDED_SHARE = 0.02, 0.01
RESTAURANT_CHANGE_SHARE: Final = 0.01
RUSH_SECONDS, RUSH_HEIGHT = 240.0, 0.35
"""Orders come in waves: this much above and below the mean rate, once in so many seconds."""


class Event(NamedTuple):
    """One record, and when it reaches the log."""

    at_ms: int
    topic: str
    key: bytes
    value: bytes | None
    """None is a tombstone."""


def events(seed: int, rate: float, now_ms: int, *, orders: int | None = None) -> Iterator[Event]:
    """In the order of `at_ms`, from `now_ms` on, with `rate` orders a second on average. `orders`: so many, with all that follows from them; None: without end."""
    if rate <= 0:
        raise ValueError(f"the rate is in orders a second and must be above 0, not {rate}")
    return _City(seed, rate, now_ms).live(orders)


class _City:
    def __init__(self, seed: int, rate: float, now_ms: int) -> None:
        self._chance = Random(seed)
        self._rate, self._start_ms = rate, now_ms
        self._agenda: list[tuple[int, int, Event]] = []
        """What will happen because of what has happened: (when, tie breaker, event)."""
        self._ties = itertools.count()
        self._popularity = list(
            itertools.accumulate(rank**-ZIPF_EXPONENT for rank in range(1, len(RESTAURANTS) + 1))
        )
        self._is_open = dict.fromkeys((each.restaurant_id for each in RESTAURANTS), True)
        self._rating = {each.restaurant_id: 4.0 + rank % 9 / 10 for rank, each in enumerate(RESTAURANTS)}
        self._has_pop_up = False

    def live(self, orders: int | None) -> Iterator[Event]:
        for each in RESTAURANTS:
            yield Event(
                self._start_ms,
                "restaurants",
                each.restaurant_id.encode(),
                self._restaurant(each, self._start_ms),
            )
        at_ms = float(self._start_ms)
        for number in itertools.count() if orders is None else range(orders):
            at_ms += self._until_next_ms(at_ms)
            yield from self._agenda_until(at_ms)
            self._order(number, int(at_ms))
            if self._chance.random() < POISON_SHARE:
                self._poison(number, int(at_ms))
            if self._chance.random() < RESTAURANT_CHANGE_SHARE:
                self._restaurant_change(int(at_ms))
        yield from self._agenda_until(math.inf)

    def _until_next_ms(self, at_ms: float) -> float:
        wave = math.sin((at_ms - self._start_ms) / 1000 / RUSH_SECONDS * math.tau)
        return self._chance.expovariate(self._rate * (1 + RUSH_HEIGHT * wave)) * 1000

    def _agenda_until(self, at_ms: float) -> Iterator[Event]:
        while self._agenda and self._agenda[0][0] <= at_ms:
            yield heapq.heappop(self._agenda)[2]

    def _plan(self, at_ms: int, topic: str, key: str, value: dict[str, Any] | bytes | None) -> None:
        encoded = _json(value) if isinstance(value, dict) else value
        event = Event(at_ms, topic, key.encode(), encoded)
        heapq.heappush(self._agenda, (at_ms, next(self._ties), event))

    # -- an order and what follows from it ---------------------------------------------------------------------------

    def _order(self, number: int, at_ms: int) -> None:
        chance = self._chance
        order_id = f"order-{self._start_ms // 1000}-{number}"
        is_whale = chance.random() < WHALE_SHARE
        customer_id = WHALE if is_whale else f"customer-{chance.randrange(1, CUSTOMERS):05}"
        restaurant = self._chosen_restaurant()
        dishes = chance.sample(restaurant.menu, chance.randint(1, 3))
        items = [
            {
                "dish": dish.name,
                "quantity": chance.randint(4, 12) if is_whale else chance.choice((1, 1, 1, 2, 2, 3)),
                "price_cents": dish.price_cents,
            }
            for dish in dishes
        ]
        order = {
            "order_id": order_id,
            "customer_id": customer_id,
            "restaurant_id": restaurant.restaurant_id,
            "items": items,
            "total_cents": sum(item["quantity"] * item["price_cents"] for item in items),  # type: ignore[operator]
            "ordered_at": moment(at_ms - self._transit_ms()),
        }
        self._plan(at_ms, "orders", order_id, order)
        self._status(order, "placed", at_ms)
        self._pay_and_serve(order, at_ms)

    def _chosen_restaurant(self) -> Restaurant:
        while True:
            (chosen,) = self._chance.choices(RESTAURANTS, cum_weights=self._popularity)
            if self._is_open[chosen.restaurant_id]:
                return chosen

    def _transit_ms(self) -> int:
        """How long an order was on its way from the phone."""
        draw = self._chance.random()
        if draw < OUT_OF_REACH_SHARE:
            return self._within(*OUT_OF_REACH_SECONDS)
        if draw < OUT_OF_REACH_SHARE + TUNNEL_SHARE:
            return self._within(*TUNNEL_SECONDS)
        return self._within(0.05, 0.8)

    def _within(self, least_seconds: float, most_seconds: float) -> int:
        return int(self._chance.uniform(least_seconds, most_seconds) * 1000)

    def _pay_and_serve(self, order: dict[str, Any], placed_ms: int) -> None:
        paid_ms = placed_ms + self._within(0.2, 1.5)
        if self._chance.random() < DECLINED_SHARE:
            self._payment(order, "declined", paid_ms)
            self._status(order, None, paid_ms)
            return
        self._payment(order, "authorized", paid_ms)

        accepted_ms = paid_ms + self._within(1, 6)
        ready_ms = accepted_ms + self._within(20, 80)
        self._kitchen(order, "accepted", paid_ms, accepted_ms)
        self._status(order, "cooking", accepted_ms)
        self._kitchen(order, "ready", accepted_ms, ready_ms)

        courier_id = f"courier-{self._chance.randrange(COURIERS):03}"
        assigned_ms = accepted_ms + self._within(5, 18)
        picked_up_ms = max(ready_ms, assigned_ms) + self._within(2, 15)
        delivered_ms = picked_up_ms + self._within(15, 60)
        for what, since_ms, at_ms in (
            ("assigned", accepted_ms, assigned_ms),
            ("picked_up", assigned_ms, picked_up_ms),
            ("delivered", picked_up_ms, delivered_ms),
        ):
            self._courier(order, courier_id, what, since_ms, at_ms)
        self._status(order, "on_the_way", picked_up_ms)
        self._status(order, None, delivered_ms)
        self._payment(order, "captured", delivered_ms + self._within(0.1, 1))
        if self._chance.random() < REFUNDED_SHARE:
            self._payment(order, "refunded", delivered_ms + self._within(10, 60))

    def _status(self, order: dict[str, Any], status: str | None, at_ms: int) -> None:
        """None: the order is no longer open."""
        state = {
            **{name: order[name] for name in ("order_id", "restaurant_id", "customer_id", "total_cents")},
            "status": status,
            "changed_at": moment(at_ms),
        }
        self._plan(at_ms, "order-status", order["order_id"], state if status is not None else None)

    def _payment(self, order: dict[str, Any], what: str, at_ms: int) -> None:
        """Keyed by customer: billing wants those of one customer in order, and gets the whale on one partition."""
        payment = {
            "payment_id": f"{order['order_id']}-{what}",
            "order_id": order["order_id"],
            "customer_id": order["customer_id"],
            "event": what,
            "amount_cents": -order["total_cents"] if what == "refunded" else order["total_cents"],
            "paid_at": moment(at_ms),
        }
        self._plan(at_ms, "payments", order["customer_id"], payment)

    def _kitchen(self, order: dict[str, Any], what: str, since_ms: int, at_ms: int) -> None:
        """Keyed by restaurant: a kitchen reads its own orders, in order."""
        self._plan(at_ms, "kitchen", order["restaurant_id"], _step(order, what, since_ms, at_ms))

    def _courier(self, order: dict[str, Any], courier_id: str, what: str, since_ms: int, at_ms: int) -> None:
        said = {"courier_id": courier_id, **_step(order, what, since_ms, at_ms)}
        self._plan(at_ms, "couriers", order["order_id"], said)

    # -- poison ------------------------------------------------------------------------------------------------------

    def _poison(self, number: int, at_ms: int) -> None:
        order_id = f"order-{self._start_ms // 1000}-{number}-poison"
        whole = _json(
            {
                "order_id": order_id,
                "customer_id": WHALE,
                "restaurant_id": RESTAURANTS[0].restaurant_id,
                "items": [],
                "total_cents": 0,
                "ordered_at": moment(at_ms),
            }
        )
        kinds: tuple[Callable[[], bytes], ...] = (
            lambda: whole[: len(whole) // 2],  # cut off on its way
            lambda: whole.replace(b'"total_cents":0', b'"total_cents":"a lot"'),
            lambda: whole.replace(b'"items":[]', b'"items":"pizza"'),
            lambda: b"",
            lambda: b"\x00\xff\xfe" + self._chance.randbytes(12),
            lambda: b"<order>" + order_id.encode() + b"</order>",
        )
        self._plan(at_ms, "orders", order_id, self._chance.choice(kinds)())

    # -- restaurants -------------------------------------------------------------------------------------------------

    def _restaurant_change(self, at_ms: int) -> None:
        chance, which = self._chance, self._chance.random()
        if which < 0.25:
            self._has_pop_up = not self._has_pop_up
            value = self._restaurant(POP_UP, at_ms) if self._has_pop_up else None
            self._plan(at_ms, "restaurants", POP_UP.restaurant_id, value)
            return
        closed = [each for each in RESTAURANTS if not self._is_open[each.restaurant_id]]
        if which < 0.5:
            changed = chance.choice(
                closed[:1] or RESTAURANTS[3:]
            )  # the best are always open, and at most one is not
            self._is_open[changed.restaurant_id] = not self._is_open[changed.restaurant_id]
        else:
            changed = chance.choice(RESTAURANTS)
            rating = self._rating[changed.restaurant_id] + chance.choice((-0.1, 0.1))
            self._rating[changed.restaurant_id] = min(5.0, max(1.0, round(rating, 1)))
        self._plan(at_ms, "restaurants", changed.restaurant_id, self._restaurant(changed, at_ms))

    def _restaurant(self, restaurant: Restaurant, at_ms: int) -> bytes:
        return _json(
            {
                "restaurant_id": restaurant.restaurant_id,
                "name": restaurant.name,
                "cuisine": restaurant.cuisine,
                "district": restaurant.district,
                "rating": round(self._rating.get(restaurant.restaurant_id, 4.0), 1),
                "is_open": self._is_open.get(restaurant.restaurant_id, True),
                "changed_at": moment(at_ms),
            }
        )


def _step(order: dict[str, Any], what: str, since_ms: int, at_ms: int) -> dict[str, Any]:
    """What a kitchen or a courier tells: that something is done, and how long it took since the step before."""
    return {
        "restaurant_id": order["restaurant_id"],
        "order_id": order["order_id"],
        "event": what,
        "seconds": (at_ms - since_ms) / 1000,
        "at": moment(at_ms),
    }


def moment(at_ms: int) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
