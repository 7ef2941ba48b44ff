"""Scenario files a person can read: the diagrams that describe the system, and what must come of them. See `scenarios/*.txt`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replication.scenario_world import ScenarioWorld

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_happens_as_the_scenario_says(path: Path) -> None:
    assert ScenarioWorld().run(path.read_text()) > 5


def test_the_diagrams_are_there() -> None:
    assert {path.stem for path in SCENARIOS} >= {
        "a-follower-holds-the-watermark",
        "a-late-follower-leaves-and-returns",
        "the-watermark-is-exclusive",
    }


def test_a_sentence_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match="nobody knows"):
        ScenarioWorld().run("broker 1 hopes for the best")
