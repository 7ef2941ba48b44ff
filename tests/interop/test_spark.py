"""Spark's own Kafka connector and ours, side by side on one broker: the same reads and writes give the same rows.

On the Spark that the connector is made for (4.2), in an environment of its own: so this also shows that our source and sink work there.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop.spark_side import COMPARED, FORMATS
from tools.peers.process import Peer, PeerUnavailableError
from tools.peers.spark_jvm import connector_jars, connector_name, environment, spark_python

pytestmark = pytest.mark.timeout(1800)
SECONDS_MAX = 1200


@pytest.fixture(scope="module")
def answers(suite_broker: Peer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each gave, by what was asked for."""
    try:
        python, jars = spark_python(), connector_jars()
    except PeerUnavailableError as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("spark")
    command = [
        str(python),
        "-m",
        "tests.interop.spark_side",
        suite_broker.bootstrap,
        ",".join(map(str, jars)),
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, env=environment())
    assert done.returncode == 0, done.stderr[-5000:]
    return {what: {format: load(folder / f"{what}-{format}.json") for format in FORMATS} for what in COMPARED}


def load(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("what", [what for what in COMPARED if what not in ("refused", "speed")])
def test_both_give_the_same(answers: dict[str, dict[str, Any]], what: str) -> None:
    theirs, ours = answers[what]["kafka"], answers[what]["tidelog"]
    for format, each in answers[what].items():
        assert "error" not in each, f"{format}: {each['error']}"
        assert all(each.values()), (
            f"{format} gave nothing: {[name for name, found in each.items() if not found]}"
        )
    for name, rows in theirs.items():
        assert ours[name] == rows, name


def test_both_refuse_the_same(answers: dict[str, dict[str, Any]]) -> None:
    theirs, ours = answers["refused"]["kafka"], answers["refused"]["tidelog"]
    assert ours == theirs
    assert all(ours.values())


def test_speed(answers: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """Shown, not judged: the load is small and the machine busy."""
    theirs, ours = answers["speed"]["kafka"], answers["speed"]["tidelog"]
    with capsys.disabled():
        for name, rate in theirs.items():
            print(
                f"\n{name}: ours {ours[name]:,.0f} rows/s, {connector_name()} {rate:,.0f} ({ours[name] / rate:.2f}×)",
                end="",
            )
        print()
    assert min(*theirs.values(), *ours.values()) > 0
