"""`tidelog pipeline` and `tidelog spark` where nothing has to run: what they refuse, and what they read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result
from tidelog.pipeline.checkpoints import read_offsets, write_offsets
from tidelog.spark.offsets import Offsets

TINY = "tests.pipeline.tiny_job"


@pytest.fixture
def spec(tmp_path: Path, topic: str, bootstrap: str) -> Path:
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f'[pipeline]\nbrokers = "{bootstrap}"\nstate = "state"\n'
        f'[[flow]]\nname = "copy"\njob = "{TINY}"\ntopics = ["{topic}"]\nfile = "out/copied"\n'
    )
    return file


def test_a_specification_that_can_work(tidelog: Callable[..., Result], spec: Path) -> None:
    assert tidelog("pipeline", "validate", spec) == Result(0, f"copy: {TINY}\n", "")
    assert json.loads(tidelog("pipeline", "validate", spec, "--json").out)["flows"] == [
        {"name": "copy", "job": TINY}
    ]
    assert os.listdir(spec.parent) == ["pipeline.toml"], "nothing was made"


def test_one_that_cannot(tidelog: Callable[..., Result], spec: Path) -> None:
    spec.write_text(spec.read_text().replace("topics", "topcs"))
    for command in ("validate", "run", "status"):
        done = tidelog("pipeline", command, spec)
        assert (done.code, done.out) == (1, "")
        assert (
            done.err == f"error: {spec}:7: flow copy: topcs: there is no such option: did you mean topics?\n"
        )
    assert "No such file" in tidelog("pipeline", "validate", spec.with_name("other.toml")).err


def test_what_only_brokers_and_disks_know(on: Callable[..., Result], spec: Path, topic: str) -> None:
    done = on("pipeline", "validate", spec, "--online")
    assert done.code == 1
    assert f"error: {spec}: flow copy: there is no topic {topic}" in done.err
    assert on("topic", "create", topic).code == 0
    spec.write_text(spec.read_text() + 'to_topic = "nowhere-yet"\n')
    done = on("pipeline", "validate", spec, "--online")
    assert (done.code, done.out) == (0, f"copy: {TINY}\n")
    assert "warning: flow copy: there is no topic nowhere-yet yet" in done.err
    (spec.parent / "out").write_text("a file where a directory belongs")
    done = on("pipeline", "validate", spec, "--online")
    assert done.code == 1 and "out/copied cannot be written to" in done.err


def test_offsets_out_of_a_checkpoint_and_into_one(tidelog: Callable[..., Result], spec: Path) -> None:
    done = tidelog("pipeline", "checkpoint", "export", spec, "copy")
    assert done.code == 1 and "there is no finished batch" in done.err
    done = tidelog("pipeline", "checkpoint", "export", spec, "cpoy")
    assert done.code == 1 and "there is no flow cpoy; there are copy" in done.err
    offsets = {"orders": {"0": 33, "1": 20}, "#": {"ids": {"orders": "ab"}}}
    file = spec.with_name("offsets.json")
    file.write_text(json.dumps(offsets))
    assert tidelog("pipeline", "checkpoint", "import", spec, "copy", file).code == 0
    assert json.loads(tidelog("pipeline", "checkpoint", "export", spec, "copy").out) == offsets
    file.write_text('{"orders": {"0": 1}}')
    done = tidelog("pipeline", "checkpoint", "import", spec, "copy", file)
    assert done.code == 1 and "--overwrite" in done.err
    done = tidelog("pipeline", "checkpoint", "import", spec, "copy", file, "--overwrite")
    assert done.code == 0 and "what was there is now" in done.out
    kept = Path(done.out.split()[-1])
    assert read_offsets(str(kept)).to_json() == offsets
    assert json.loads(tidelog("pipeline", "checkpoint", "export", spec, "copy").out) == {"orders": {"0": 1}}
    for wrong in ('{"orders": {"0": -1}}', "{}", "[]", "x"):
        file.write_text(wrong)
        assert tidelog("pipeline", "checkpoint", "import", spec, "copy", file, "--overwrite").code == 1


def test_a_batch_that_is_not_done_does_not_count(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    write_offsets(str(checkpoint), Offsets.from_json('{"orders": {"0": 5}}'))
    planned = (checkpoint / "offsets" / "0").read_text().replace('"0":5', '"0":9')
    (checkpoint / "offsets" / "1").write_text(planned)
    assert read_offsets(str(checkpoint)).to_json() == {"orders": {"0": 5}}
    (checkpoint / "commits" / "1").write_text("v1\n{}")
    assert read_offsets(str(checkpoint)).to_json() == {"orders": {"0": 9}}


def test_a_status_and_a_cluster_that_are_not_there(tidelog: Callable[..., Result], spec: Path) -> None:
    done = tidelog("pipeline", "status", spec)
    assert done.code == 1 and "no pipeline has run with the state directory" in done.err
    for command in ("status", "down"):
        done = tidelog("spark", "cluster", command, "-d", spec.parent)
        assert done.code == 1 and "there is no cluster in" in done.err
    done = tidelog("spark", "cluster", "up", "-d", spec.parent, "--memory", "much")
    assert done.code == 1 and "is no amount of memory" in done.err
