"""The table of `bench.spark`: ratios are those of rounds, and aims are judged by their median."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time

from rich.console import Console

from bench.cpu_tree import cpu_seconds
from bench.spark_plan import JVM, OURS, TUNED, aim_for
from bench.spark_report import Load, Sample, as_json, show


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
    lines = [line for line in out.getvalue().splitlines() if "sink" in line or "tiny" in line]
    assert [line.split("│")[2].strip() for line in lines] == [OURS, JVM, OURS, JVM, TUNED]
    assert "≤ 1× JVM met" in lines[0]
    assert "2.12× (1.60–2.40)" in lines[2] and "≥ 1.2× JVM met" in lines[2]
    assert "0.85× (0.80–1.20)" in lines[2] and "≥ 0.9× JVM tuned missed" in lines[2]
    assert len(as_json(found)) == 5


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
