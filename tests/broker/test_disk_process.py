"""A broker process whose disk fails: how it ends, and what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.conftest import Wire, batch, code

PROGRAM = """
import sys
from tidelog.broker import server
from tidelog.config.resolve import BrokerConfig
from tidelog.testing.faulty_disk import FaultyDisk

directories, operation, place = sys.argv[1:]
disk = FaultyDisk()
disk.fail(operation, matches=lambda path: place in path)
server.PosixDisk = lambda **settings: disk
config = BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": directories})
sys.exit(server.run(config))
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A broker whose disk fails in `operation` on paths that contain `place`."""
    started: list[subprocess.Popen[str]] = []

    def start(operation: str, place: str, *, dirs: int = 1) -> subprocess.Popen[str]:
        directories = ",".join(str(tmp_path / f"d{number}") for number in range(dirs))
        command = [sys.executable, "-c", PROGRAM, directories, operation, place]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def connect(process: subprocess.Popen[str]) -> Wire:
    assert process.stdout is not None
    found = re.search(r"ready on 127\.0\.0\.1:(\d+)", process.stdout.readline())
    assert found is not None
    return Wire(int(found.group(1)))


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    return process.returncode, errors


def test_the_last_directory_that_fails_ends_the_process(run: Callable[..., subprocess.Popen[str]]) -> None:
    """With a status that says so to whoever watches it, and a line that says why to whoever reads."""
    process = run("sync", "/t-0/")
    wire = connect(process)
    assert code(wire.produce(wire.create("t"), batch())) == "KAFKA_STORAGE_ERROR"
    wire.close()
    status, errors = end_of(process)
    assert status == 1
    assert re.search(
        r"log directory \S*d0 goes offline with 1 partitions: sync failed on \S*t-0\S*: ", errors
    )
    assert "holds the metadata log; the broker stops. Repair the disk and start it again" in errors


def test_a_directory_that_fails_beside_others_does_not(run: Callable[..., subprocess.Popen[str]]) -> None:
    process = run("sync", "/d1/t-", dirs=2)
    wire = connect(process)
    topic = wire.create("t", 2)
    outcomes = sorted(code(wire.produce(topic, batch(), partition=index)) for index in range(2))
    assert outcomes == ["KAFKA_STORAGE_ERROR", "NONE"]
    wire.close()
    process.terminate()
    status, errors = end_of(process)
    assert status == 0
    assert re.search(r"log directory \S*d1 was not closed cleanly, the next start checks it", errors)


@pytest.mark.parametrize(
    ("operation", "place", "says"),
    [
        ("mkdir", "/d0", "no log directory can be used: mkdir failed on"),
        ("write", "meta.properties", "no log directory can be used"),
        ("write", "/__cluster_metadata-0/", "the cluster's metadata cannot be written"),
        ("list", "/__cluster_metadata-0", "the cluster's metadata cannot be read"),
    ],
)
def test_a_start_that_fails(
    run: Callable[..., subprocess.Popen[str]], operation: str, place: str, says: str
) -> None:
    status, errors = end_of(run(operation, place))
    assert status == 1
    assert f"tidelog: {says}" in errors
