"""The whole bench in small, with Tidelog beside itself: every scenario runs, and every table has its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import report
from bench.plan import MB, Cell, Plan
from bench.results import Results
from bench.run import Bench, chosen_scenarios, rotated, write_json

PEERS = ["tidelog-replicated", "tidelog-fsync"]
TINY = Plan(
    rounds=1,
    cells=(Cell(1024, 10 * MB, 0.1), Cell(100, 2 * MB, 0.1, "lz4", 6)),
    request_seconds=0.1,
    steady_seconds=0.5,
    steady_skip_seconds=0.2,
    cold_bytes=20 * MB,
    readers_seconds=0.5,
    warm_up_seconds=0.0,
)


@pytest.mark.slow
@pytest.mark.alone
def test_every_scenario_measures_every_peer(tmp_path: Path) -> None:
    chosen, with_start = chosen_scenarios("*", TINY)
    saved: list[Results] = []
    bench = Bench(PEERS, TINY, chosen, with_start, Console(quiet=True), after_round=saved.append)
    bench.measure()
    assert saved == [bench.results]
    machine_rows = [metric for metric, peers in bench.results.samples.items() if "machine" in peers]
    assert len(machine_rows) == 3
    for metric, peers in bench.results.samples.items():
        if metric not in machine_rows:
            assert sorted(peers) == sorted(PEERS), metric.name
            assert all(len(values) == 1 and values[0] >= 0 for values in peers.values()), metric.name
    write_json(tmp_path / "out.json", bench.results, PEERS)
    content = json.loads((tmp_path / "out.json").read_text())
    assert "produce 1 KiB [MB/s]" in content["metrics"]
    assert content["targets"], "fsync beside our own replicated is a target"
    assert "| produce 1 KiB [MB/s] ↑ |" in report.markdown(bench.results, PEERS)


def test_scenarios_are_chosen_by_pattern() -> None:
    chosen, with_start = chosen_scenarios("throughput-*,latency", TINY)
    assert [scenario.name for scenario in chosen] == ["throughput-1KiB", "throughput-100B-lz4-6p", "latency"]
    assert not with_start
    with pytest.raises(SystemExit, match="no scenario is called throughput-1GB"):
        chosen_scenarios("throughput-1GB", TINY)


def test_the_order_of_the_peers_rotates() -> None:
    assert [rotated(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]
