"""The tables of `bench.spark`: ratios are those of rounds, aims are judged by their median, and rounds that were taken in parts make one table."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from bench.cpu_tree import cpu_seconds
from bench.spark import loads
from bench.spark_plan import AIMS, JVM, KINDS, OURS, TUNED, VARIANTS, aim_for
from bench.spark_report import show, unmeasured, verdicts
from bench.spark_samples import Load, Measured, Sample, SamplesError, merged


def samples(*figures: float) -> list[Sample]:
    return [Sample(figure, 1.0, 0.5) for figure in figures]


def test_ratios_are_of_rounds_and_aims_of_their_median() -> None:
    load, tiny = Load("sink", 1024, "none"), Load("tiny", 100, "none")
    found = {
        (tiny, OURS): samples(90),
        (tiny, JVM): samples(100),
        (load, TUNED): samples(100, 200, 100),
        (load, OURS): samples(80, 240, 85),
        (load, JVM): samples(50, 100, 40),
    }
    out = io.StringIO()
    show(found, Console(file=out, width=220))
    figures, aims = out.getvalue().split("verdict")
    lines = [line for line in figures.splitlines() if "sink" in line or "tiny" in line]
    assert [line.split("│")[2].strip() for line in lines] == [OURS, JVM, OURS, JVM, TUNED]
    assert "2.12× (1.60–2.40)" in lines[2] and "0.85× (0.80–1.20)" in lines[2]
    judged = [[cell.strip() for cell in line.split("│")[2:-1]] for line in aims.splitlines() if OURS in line]
    assert judged == [
        [OURS, JVM, "≤ 1×", "0.90× (0.90–0.90)", "1 of 1", "met"],
        [OURS, JVM, "≥ 1.2×", "2.12× (1.60–2.40)", "3 of 3", "met"],
        [OURS, TUNED, "≥ 0.9×", "0.85× (0.80–1.20)", "1 of 3", "missed"],
    ]
    assert "not measured: 7 of 10 aims" in out.getvalue()


def test_the_plan_measures_every_aim() -> None:
    planned = loads(KINDS, [100, 1024], None)
    found = {(load, variant): samples(1.0) for load in planned for variant in VARIANTS[load.kind]}
    assert unmeasured(found) == []
    judged = {(verdict.load, verdict.aim.variant, verdict.aim.beside) for verdict in verdicts(found)}
    for aim in AIMS:
        kinds = [kind for kind in aim.kinds if kind != "tiny"]
        expected = {
            (Load(kind, size, "none"), aim.variant, aim.beside) for kind in kinds for size in aim.sizes
        }
        assert expected <= judged


def test_codecs_that_are_asked_for_are_those_of_every_kind() -> None:
    assert loads(["sum", "sink"], [100], ["lz4"]) == [Load("sum", 100, "lz4"), Load("sink", 100, "lz4")]


def test_rounds_taken_in_parts_make_one_table(tmp_path: Path) -> None:
    load, other = Load("noop", 100, "lz4"), Load("sink", 1024, "none")
    for number, found in enumerate(
        ({(load, OURS): samples(1, 2)}, {(load, OURS): samples(3), (other, JVM): samples(4)})
    ):
        part = Measured({"commit": "abc"})
        part.add(found)
        part.write(tmp_path / f"{number}.json")
    whole = merged([tmp_path / "0.json", tmp_path / "1.json"])
    assert whole.samples == {(load, OURS): samples(1, 2, 3), (other, JVM): samples(4)}
    assert whole.has(other) and not whole.has(Load("sink", 100, "none"))


def test_samples_of_different_commits_are_not_mixed(tmp_path: Path) -> None:
    for name in ("abc", "def"):
        Measured({"commit": name}).write(tmp_path / name)
    with pytest.raises(SamplesError, match="def"):
        merged([tmp_path / "abc", tmp_path / "def"])


def test_aims_depend_on_the_size() -> None:
    assert str(aim_for("sum", 100, OURS, JVM)) == "≥ 2.5×"
    assert str(aim_for("sum", 1024, OURS, JVM)) == "≥ 1.7×"
    assert aim_for("sink", 100, JVM, OURS) is None


def test_processor_time_of_children_counts() -> None:
    before = cpu_seconds(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    child = subprocess.Popen([sys.executable, "-c", f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {burn!r}])\ntime.sleep(60)"])  # fmt: skip
    try:
        until = time.monotonic() + 60
        while cpu_seconds(os.getpid()) - before < 0.3:
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
