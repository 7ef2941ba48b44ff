"""Histories of a correct log are clean, whatever its clients do; with one anomaly put in, it is always found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.testing.history.injected import INJECTIONS
from tests.testing.history.reference import correct_history
from tidelog.testing.history import ANOMALIES, check
from tidelog.testing.history.files import read_history, write_history

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=400)
@given(seed=SEEDS, steps=st.integers(0, 300))
def test_a_correct_log_has_no_anomalies(seed: int, steps: int) -> None:
    check(correct_history(seed, steps)).raise_if_dirty()


def test_every_anomaly_can_be_put_in() -> None:
    assert INJECTIONS.keys() == {anomaly.name for anomaly in ANOMALIES}


@pytest.mark.parametrize("name", INJECTIONS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(seed=SEEDS)
def test_one_anomaly_is_found(name: str, seed: int) -> None:
    history = correct_history(seed)
    assume(INJECTIONS[name](history, random.Random(seed)))
    assert name in check(history).names


@settings(max_examples=20)
@given(seed=SEEDS, name=st.sampled_from([None, *INJECTIONS]))
def test_a_history_that_was_written_and_read_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, name: str | None
) -> None:
    history = correct_history(seed, 80)
    if name is not None:
        INJECTIONS[name](history, random.Random(seed))
    path: Path = tmp_path_factory.mktemp("history") / "history.jsonl"
    write_history(history, path)
    again = read_history(path)
    assert len(again) == len(history)
    assert str(check(again)) == str(check(history))
