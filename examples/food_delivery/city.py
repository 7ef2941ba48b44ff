"""Who is in the city: restaurants with their menus, customers, couriers, and how often each of them turns up. Constants only."""

from __future__ import annotations

from typing import Final, NamedTuple


class Dish(NamedTuple):
    name: str
    price_cents: int


class Restaurant(NamedTuple):
    restaurant_id: str
    name: str
    cuisine: str
    district: str
    menu: tuple[Dish, ...]


_MENUS: Final = {
    "pizza": (Dish("Margherita", 890), Dish("Diavola", 1090), Dish("Tiramisu", 550), Dish("Lemonade", 320)),
    "sushi": (
        Dish("Salmon Set", 1850),
        Dish("Maki Mix", 1290),
        Dish("Miso Soup", 420),
        Dish("Green Tea", 280),
    ),
    "burgers": (Dish("Classic", 990), Dish("Double", 1390), Dish("Fries", 390), Dish("Cola", 290)),
    "phở": (Dish("Phở Bò", 1150), Dish("Bún Chả", 1250), Dish("Gỏi Cuốn", 590), Dish("Cà Phê Sữa Đá", 380)),
    "curry": (Dish("Chana Masala", 980), Dish("Butter Chicken", 1320), Dish("Naan", 290), Dish("Lassi", 360)),
    "vegan": (
        Dish("Bowl of the Day", 1090),
        Dish("Falafel Plate", 950),
        Dish("Soup", 520),
        Dish("Juice", 410),
    ),
}
_NAMES: Final = (
    ("Forno Nove", "pizza", "Harbour"),
    ("Tide & Rice", "sushi", "Harbour"),
    ("Grill Street", "burgers", "Station"),
    ("Quán Sông", "phở", "Old Town"),
    ("Saffron Yard", "curry", "Station"),
    ("Green Window", "vegan", "Old Town"),
    ("Luna Rossa", "pizza", "Hill"),
    ("Kaze", "sushi", "Hill"),
    ("Smash Corner", "burgers", "Harbour"),
    ("Bếp Nhỏ", "phở", "Station"),
    ("Monsoon", "curry", "Hill"),
    ("Root Cellar", "vegan", "Harbour"),
    ("Da Piero", "pizza", "Old Town"),
    ("Umi", "sushi", "Station"),
    ("Patty's", "burgers", "Hill"),
    ("Hạ Long", "phở", "Hill"),
    ("Tandoor 8", "curry", "Old Town"),
    ("Leaf", "vegan", "Station"),
    ("Sette Bello", "pizza", "Station"),
    ("Nori", "sushi", "Old Town"),
)

RESTAURANTS: Final = tuple(
    Restaurant(f"restaurant-{number:02}", name, cuisine, district, _MENUS[cuisine])
    for number, (name, cuisine, district) in enumerate(_NAMES, 1)
)
"""From the most popular to the least: the second has about half the orders of the first, the tenth about a tenth (Zipf)."""
ZIPF_EXPONENT: Final = 1.0

POP_UP: Final = Restaurant("restaurant-99", "Night Market", "burgers", "Harbour", _MENUS["burgers"])
"""Opens and vanishes: its record comes, and then a tombstone. It takes no orders by app."""

CUSTOMERS: Final = 4_000
COURIERS: Final = 120
WHALE: Final = "customer-00000"
"""A company that feeds its whole office: one customer with a share that everybody who partitions by customer gets to feel."""
WHALE_SHARE: Final = 0.12
