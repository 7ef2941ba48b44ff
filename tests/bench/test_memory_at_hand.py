"""Memory is held before a measurement and given away while something takes it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bench import memory_at_hand
from bench.memory_at_hand import _LEAD_BYTES, _PIECE_BYTES, _Held

PIECES = 10


def test_what_is_taken_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    held = _Held(PIECES * _PIECE_BYTES)

    def free_bytes() -> int:
        """What is free besides others' doing: less when something is taken, more when a piece is let go."""
        return (1 << 30) - taken + (PIECES - len(held._pieces)) * _PIECE_BYTES

    monkeypatch.setattr(memory_at_hand, "free_bytes", free_bytes)
    lead = _LEAD_BYTES // _PIECE_BYTES
    with held:
        wait_until(lambda: len(held._pieces) == PIECES - lead)
        taken = 2 * _PIECE_BYTES
        wait_until(lambda: len(held._pieces) == PIECES - lead - 2)
        taken = PIECES * _PIECE_BYTES
        wait_until(lambda: not held._pieces)


def test_what_is_left_is_let_go_at_the_end() -> None:
    held = _Held(PIECES * _PIECE_BYTES)
    with held:
        pass
    assert all(piece.closed for piece in held._pieces)
    assert not held._thread.is_alive()


def test_nothing_to_hold() -> None:
    with memory_at_hand.at_hand(0):
        pass


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
