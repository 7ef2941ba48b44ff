"""Memory is held before a measurement and given away while something takes it."""

from __future__ import annotations

import mmap
import time

from bench import memory_at_hand
from bench.memory_at_hand import _PIECE_BYTES, _Held

SIZE = 10 * _PIECE_BYTES


def test_what_is_taken_is_let_go() -> None:
    held = _Held(SIZE)
    assert len(held._pieces) == 10
    with held:
        taken = mmap.mmap(-1, 4 * SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        deadline = time.monotonic() + 30
        while held._pieces:
            assert time.monotonic() < deadline, "it keeps what others need"
            time.sleep(0.01)
        taken.close()


def test_what_is_left_is_let_go_at_the_end() -> None:
    held = _Held(SIZE)
    with held:
        pass
    assert all(piece.closed for piece in held._pieces)
    assert not held._thread.is_alive()


def test_nothing_to_hold() -> None:
    with memory_at_hand.at_hand(0):
        pass
