"""What leaves through stdout: all of it, also where one write takes only a part."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tidelog.cli.output import put_out


class Narrow:
    """A raw stream as PYTHONUNBUFFERED gives it: it takes what fits, and says how much."""

    def __init__(self) -> None:
        self.taken = bytearray()
        self.flushed = False

    def write(self, data: memoryview) -> int:
        self.taken += data[:7]
        return len(data[:7])

    def flush(self) -> None:
        self.flushed = True


def test_all_of_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = Narrow()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=narrow))
    put_out(b"a line that is longer than one write takes\n")
    assert narrow.taken == b"a line that is longer than one write takes\n"
    assert narrow.flushed


def test_nothing_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = Narrow()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=narrow))
    put_out(b"")
    assert narrow.taken == b""
