"""What a failed flow means for itself and for the others: `on_failure`, in a Spark session that is somebody else's."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelog.pipeline.runner import run
from tidelog.pipeline.spec import flow
from tidelog.pipeline.state_directory import StateInUseError
from tidelog.pipeline.status import PipelineStatus, read_status
from tidelog.pipeline.values import Pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FLAKY = "tests.pipeline.flaky_job"


def states(status: PipelineStatus) -> dict[str, str]:
    return {each.name: each.state for each in status.flows}


def test_restart_stop_and_continue(spark: Any, tmp_path: Path) -> None:
    pipeline = Pipeline(
        state=str(tmp_path),
        secrets={"hunter2": "${PASSWORD}"},
        restarts_max=2,
        flows=(
            flow("twice", FLAKY, failures=2, message="no hunter2", on_failure="restart"),
            flow("often", FLAKY, failures=9, on_failure="restart"),
            flow("once", FLAKY, failures=1),
            flow("fine", FLAKY),
            flow("slow", FLAKY, failures=1, message="Python worker failed to connect back"),
        ),
    )
    seen: list[PipelineStatus] = []
    last = run(pipeline, on_status=seen.append)
    assert states(last) == {
        "twice": "finished",
        "often": "failed",
        "once": "failed",
        "fine": "finished",
        "slow": "finished",
    }
    twice, often, once, fine, slow = last.flows
    assert (twice.restarts, twice.result, twice.error) == (2, {"tries": 3}, "RuntimeError: no ${PASSWORD}")
    assert (often.restarts, often.error) == (2, "RuntimeError: not yet")
    assert (once.restarts, fine.restarts, fine.error) == (0, 0, None)
    assert slow.restarts == 1, "nothing was done yet, so it tries again"
    assert any(states(each)["twice"] == "waiting" for each in seen if each.flows)
    assert read_status(str(tmp_path)) == last and last.state == "stopped"
    assert spark.range(3).count() == 3, "a session that was there is left running"


def test_one_failure_stops_all_if_it_is_to(spark: Any, tmp_path: Path) -> None:
    pipeline = Pipeline(
        state=str(tmp_path),
        on_failure="stop",
        flows=(flow("endless", FLAKY, endless=True), flow("bad", FLAKY, failures=1)),
    )
    assert states(run(pipeline)) == {"endless": "stopped", "bad": "failed"}

    stop = threading.Event()
    pipeline = replace(pipeline, flows=pipeline.flows[:1])

    def watch(status: PipelineStatus) -> None:
        if states(status) == {"endless": "running"}:
            stop.set()

    assert states(run(pipeline, stop=stop, on_status=watch)) == {"endless": "stopped"}

    other = replace(pipeline, flows=(flow("endless", "tests.pipeline.bounded_job", up_to=1),))
    with pytest.raises(
        StateInUseError, match=r"is of job tests\.pipeline\.flaky_job, and flow endless is of job"
    ):
        run(other)
