"""The bench of three brokers: rounds are kept and gone on with, aims are judged, and every load runs on a real cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench import cluster
from bench.cluster_loads import CELLS, broker_cpu, loads, produced, steady, throughput
from bench.plan import MB
from bench.results import Results
from bench.targets import judge

HERE = {"commit": "abc", "machine": "this one"}


def sampled() -> Results:
    results = Results(baseline="kafka")
    for number, (kafka, tidelog) in enumerate(((60.0, 120.0), (70.0, 84.0), (80.0, 136.0))):
        results.round_number = number
        results.add(produced("1 KiB"), "kafka", kafka)
        results.add(produced("1 KiB"), "tidelog-replicated", tidelog)
    return results


def test_rounds_are_kept_in_a_file_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    cluster.write(path, sampled(), HERE)
    found = Results(baseline="kafka")
    cluster.read(path, found, HERE)
    assert found.samples == sampled().samples
    bench = cluster.Bench(["kafka", "tidelog-replicated"], [], Console(quiet=True), found)
    first = throughput(CELLS[0])
    assert [bench._has(first, "kafka", number) for number in range(4)] == [True, True, True, False]


def test_rounds_of_another_commit_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    cluster.write(path, sampled(), HERE)
    with pytest.raises(cluster.MixedRunsError, match="def"):
        cluster.read(path, Results(baseline="kafka"), HERE | {"commit": "def"})


def test_aims_are_judged_by_the_median_of_the_rounds() -> None:
    (verdict,) = judge(sampled(), cluster.TARGETS)
    assert (verdict.median, verdict.rounds_met, verdict.is_met) == (1.7, 2, True)


def test_every_aim_is_of_something_that_is_measured() -> None:
    measured = {load.headline.name for load in loads()} | {broker_cpu(cell.label).name for cell in CELLS}
    assert {target.metric for target in cluster.TARGETS} <= measured


def test_scenarios_are_chosen_by_pattern() -> None:
    assert [load.name for load in cluster.chosen_loads("latency*")] == ["latency", "latency-linger0"]
    with pytest.raises(SystemExit, match="no scenario is called throughput-1GB"):
        cluster.chosen_loads("throughput-1GB")


@pytest.mark.slow
@pytest.mark.alone
def test_loads_measure_a_real_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [
        throughput(replace(CELLS[0], volume=10 * MB)),
        steady(5, seconds=0.5, skip_seconds=0.2),
    ]
    monkeypatch.setattr(cluster, "warm_up", lambda *_arguments: None)
    results = Results(baseline="tidelog-replicated")
    bench = cluster.Bench(["tidelog-replicated"], chosen, Console(quiet=True), results)
    bench.measure(1, 0.0, tmp_path / "rounds.json", HERE)
    assert len(results.samples) == 3 + 4
    for metric, by_peer in results.samples.items():
        assert len(by_peer["tidelog-replicated"]) == 1, metric.name
    assert (tmp_path / "rounds.json").exists()
