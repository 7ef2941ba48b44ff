"""Brokers for the tests of compaction: the fixtures of the broker's own tests."""

from __future__ import annotations

from tests.broker.conftest import foreign, launch

__all__ = ["foreign", "launch"]
