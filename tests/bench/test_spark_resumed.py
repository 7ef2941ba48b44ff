"""`bench.spark --json`: a run that was stopped goes on with the loads that it lacks, and never mixes two states of the code. Spark and the broker are played."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pytest

from bench import spark
from bench.spark_data import Data
from bench.spark_samples import Load, Measured


class PlayedPeer:
    bootstrap = "127.0.0.1:1"

    def __init__(self, **_settings: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def cpu_seconds(self) -> float:
        return 0.0


class PlayedSpark(PlayedPeer):
    asked: ClassVar[list[str]] = []
    fails_at = ""

    def ask(self, work: str, **arguments: Any) -> dict[str, Any]:
        kind = arguments.get("action", work)
        if kind == self.fails_at:
            raise KeyboardInterrupt
        self.asked.append(kind)
        rows = spark.spark_plan.COUNTS[100] // 10
        return {"seconds": 1.0, "cpu": 2.0, "sum": rows * 100 if kind == "sum" else None}


def made(_peer: Any, folder: Path, counts: dict[tuple[int, str], int]) -> dict[tuple[int, str], Data]:
    return {
        (size, codec): Data(size, codec, count, "rows", folder, folder)
        for (size, codec), count in counts.items()
    }


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "kept.json"
    for name, played in (
        ("TidelogPeer", PlayedPeer),
        ("SparkChild", PlayedSpark),
        ("make", made),
        ("spark_python", lambda: None),
        ("connector_jars", list),
        ("connector_name", lambda: "the connector"),
        ("commit", lambda: "abc"),
    ):
        monkeypatch.setattr(spark, name, played)
    monkeypatch.setattr(PlayedSpark, "asked", [])
    monkeypatch.setattr(
        sys, "argv", ["bench.spark", "--quick", "--kinds", "noop,sum", "--sizes", "100", "--codecs", "none", "--json", str(path)]
    )  # fmt: skip
    return path


def test_a_run_that_was_stopped_goes_on(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayedSpark, "fails_at", "sum")
    with pytest.raises(KeyboardInterrupt):
        spark.main()
    assert set(PlayedSpark.asked) == {"noop"}
    PlayedSpark.asked.clear()
    monkeypatch.setattr(PlayedSpark, "fails_at", "")
    spark.main()
    assert set(PlayedSpark.asked) == {"sum"}
    found = Measured.read(kept)
    assert {load for load, _ in found.samples} == {Load("noop", 100, "none"), Load("sum", 100, "none")}
    assert all(len(samples) == 1 for samples in found.samples.values())


def test_rounds_of_another_commit_are_refused(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.main()
    before = kept.read_text()
    monkeypatch.setattr(spark, "commit", lambda: "def")
    with pytest.raises(SystemExit):
        spark.main()
    assert "'commit': 'abc'" in capsys.readouterr().err
    assert kept.read_text() == before
