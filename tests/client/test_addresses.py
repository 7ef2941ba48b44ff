from __future__ import annotations

import random

import pytest

from tidelog.client.addresses import Address, parse_address, parse_addresses
from tidelog.client.backoff import Backoff, Deadline


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", Address("localhost", 9092)),
        ("broker-1:19092", Address("broker-1", 19092)),
        (" 127.0.0.1:1 ", Address("127.0.0.1", 1)),
        ("[::1]:9094", Address("::1", 9094)),
        ("[::1]", Address("::1", 9092)),
    ],
)
def test_addresses_as_people_write_them(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ":9092", "host:", "host:x", "host:0", "host:65536", "::1", "[::1", "[::1]x", "h:²"]
)
def test_bad_addresses_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="bootstrap server"):
        parse_address(text)


def test_lists_keep_their_order_and_drop_repeats() -> None:
    assert parse_addresses("b:1, a:2,b:1") == [Address("b", 1), Address("a", 2)]
    assert parse_addresses(["b:1", "a:2,c:3"]) == [Address("b", 1), Address("a", 2), Address("c", 3)]
    with pytest.raises(ValueError, match="at least one"):
        parse_addresses(" , ")


def test_addresses_print_as_they_are_written() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert str(Address("host", 9092)) == "host:9092"


def test_backoff_doubles_to_its_ceiling_with_jitter() -> None:
    backoff = Backoff(random.Random(1), first_ms=100, max_ms=1000)
    for expected_ms in (100, 200, 400, 800, 1000, 1000):
        assert 0.8 * expected_ms <= backoff.next_seconds() * 1000 <= 1.2 * expected_ms
    for _ in range(5000):
        assert backoff.next_seconds() <= 1.2
    backoff.reset()
    assert backoff.next_seconds() <= 0.12


def test_deadline() -> None:
    deadline = Deadline(10.0, 500)
    assert not deadline.passed(10.4)
    assert deadline.remaining_ms(10.2) == pytest.approx(300, abs=1)
    assert deadline.passed(10.5)
    assert deadline.remaining_ms(99) == 0
