"""A seed or an effort for the tests is none of the broker's settings: the broker under test starts all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.cli.start import resolve
from tools.peers.tidelog import TidelogPeer


def test_variables_for_tests_do_not_reach_the_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "TIDELOG_CRASH_SEED",
        "TIDELOG_CRASH_CYCLES",
        "TIDELOG_TEST_EFFORT",
        "TIDELOG_FUZZ_SEED",
        "TIDELOG_KILLS",
    ):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("TIDELOG_NUM_PARTITIONS", "3")
    config = resolve(None, TidelogPeer(data_dir=tmp_path).environment(), ())
    assert config.int("num.partitions") == 3, "a setting does"
