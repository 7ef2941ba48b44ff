"""What the bench concludes from its samples: ratios, targets, percentiles, and whether memory is flat."""

from __future__ import annotations

import math
import random

import pytest

from bench import report, soak_verdict, targets
from bench.latency import percentiles
from bench.results import Metric, Results
from bench.scenarios import MACHINE, WRITE_LIMIT, limit_metric
from bench.soak_verdict import MB, Sample

PRODUCED = Metric("produce 1 KiB", "MB/s", True)


def measured(*, kafka: list[float], ours: list[float]) -> Results:
    results = Results(baseline="kafka")
    for number, (theirs, own) in enumerate(zip(kafka, ours, strict=True)):
        results.round_number = number
        results.add(PRODUCED, "kafka", theirs)
        results.add(PRODUCED, "tidelog-replicated", own)
    return results


def test_a_ratio_is_taken_round_by_round() -> None:
    """A machine that is half as fast in one round changes nothing: both were measured in it."""
    ratio = measured(kafka=[100, 50, 100], ours=[200, 100, 150]).ratio(PRODUCED, "tidelog-replicated")
    assert ratio is not None
    assert ratio == (2.0, 1.5, 2.0)


def test_a_round_that_failed_for_one_peer_is_left_out_of_the_pairs() -> None:
    results = Results(baseline="kafka")
    for number, value in enumerate((100.0, 10.0, 100.0)):
        results.round_number = number
        results.add(PRODUCED, "kafka", value)
        if number != 1:
            results.add(PRODUCED, "tidelog-replicated", 200.0)
    assert results.round_ratios(PRODUCED, "tidelog-replicated", "kafka") == [2.0, 2.0]
    assert results.median(PRODUCED, "tidelog-replicated") == 200.0
    assert results.as_json(["tidelog-replicated"])["produce 1 KiB [MB/s]"] == {
        "tidelog-replicated": {
            "samples": [200.0, None, 200.0],
            "median": 200.0,
            "ratio": {"median": 2.0, "low": 2.0, "high": 2.0},
        }
    }


@pytest.mark.parametrize(("ours", "met"), [([159, 170, 161], True), ([159, 158, 300], False)])
def test_a_target_is_judged_by_the_median(ours: list[float], met: bool) -> None:
    (verdict,) = targets.judge(measured(kafka=[100, 100, 100], ours=ours))
    assert verdict.target.text == "≥ 1.6×"
    assert verdict.is_met is met
    assert verdict.rounds == 3


def test_a_target_without_a_peer_beside_it_is_absolute() -> None:
    results = Results(baseline="kafka")
    results.add(Metric(targets.P99, "ms", False), "tidelog-fsync", 51.0)
    (verdict,) = targets.judge(results)
    assert not verdict.is_met
    assert report.target_rows(results)[0][3:] == ["≤ 50", "51.0 ms (51.0–51.0)", "0 of 1", "missed"]


def test_every_target_names_a_metric_that_the_full_run_measures() -> None:
    """A metric that is renamed would silently lose its target."""
    from bench.plan import FULL

    labels = {cell.label for cell in FULL.cells}
    for target in targets.TARGETS:
        name = target.metric
        if name.startswith(("produce ", "consume ", "raw fetch ")):
            assert name.removeprefix("produce ").removeprefix("consume ").removeprefix("raw fetch ") in labels
        elif name.startswith("broker CPU per GB"):
            assert name.partition(", ")[2] in labels


def test_shares_of_the_machines_limit_stand_in_a_table_of_their_own() -> None:
    results = measured(kafka=[100], ours=[200])
    results.add(limit_metric(WRITE_LIMIT, "1 KiB"), MACHINE, 400.0)
    assert report.limit_rows(results, ["kafka", "tidelog-replicated"]) == [
        ["produce 1 KiB", "0.25× (0.25–0.25)", "0.50× (0.50–0.50)"]
    ]
    assert len(report.rows(results, ["kafka", "tidelog-replicated"])) == 1
    assert "0.50×" in report.markdown(results, ["kafka", "tidelog-replicated"])


def test_percentiles_are_measured_values() -> None:
    found = percentiles([number * 1_000_000 for number in range(1, 1001)])
    assert found == (500.0, 990.0, 999.0)
    assert percentiles([7_000_000]) == (7.0, 7.0, 7.0)


def memory(seconds: int, at: dict[str, float], *, seed: int = 1) -> list[Sample]:
    """Samples of a process with noise, spikes, and `at["growth"]` MB more per minute."""
    draw = random.Random(seed)
    found = []
    for second in range(seconds):
        warm = 1 - math.exp(-second / 40)
        size = 40 + 30 * warm + at.get("growth", 0.0) * second / 60 + draw.gauss(0, at.get("noise", 0.5))
        if draw.random() < 0.03:
            size += 25  # a large answer waits for a slow reader
        found.append(Sample(second, int(size * MB), 100))
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("growth", "flat"), [(0.0, True), (-0.5, True), (0.2, False), (1.0, False)])
def test_a_climb_is_told_from_noise(growth: float, flat: bool, seed: int) -> None:
    verdict = soak_verdict.judge(memory(1200, {"growth": growth}, seed=seed), warm_up_seconds=300)
    assert verdict.is_flat is flat
    assert verdict.peak_bytes > 85 * MB


def test_a_soak_without_samples_proves_nothing() -> None:
    with pytest.raises(ValueError, match="too few"):
        soak_verdict.judge(memory(10, {}), warm_up_seconds=9)


def test_the_minutes_and_the_plot_show_the_climb() -> None:
    samples = memory(300, {"growth": 10.0, "noise": 0.0})
    table = soak_verdict.minutes(samples)
    assert [minute.minute for minute in table] == [1, 2, 3, 4, 5]
    assert table[-1].median_bytes > table[0].median_bytes + 30 * MB
    top, *_, bottom = soak_verdict.plot(samples).splitlines()[:-2]
    assert top.count("█") < 20 < bottom.count("█")
