"""Clients written in Go and JavaScript, fetched through their own registries into the user's cache directory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.clients.libraries.confluent import ConfluentLibrary
from tests.interop.suites import SuiteRun, names_in, run_suite
from tools.peers.maven import cache_dir
from tools.peers.process import Peer

HERE = Path(__file__).parent
KAFKAJS_NAMES = [
    *names_in([HERE / "node" / "kafkajs_checks.js"]),
    *(
        f"produce {codec} acks={acks} idempotent={idempotent}"
        for codec in ("none", "gzip", "snappy")
        for acks, idempotent in ((0, "false"), (1, "false"), (-1, "false"), (-1, "true"))
    ),
]
PLATFORMATIC_NAMES = [
    *names_in([HERE / "node" / "platformatic_checks.mjs"]),
    *(
        f"produce {codec} idempotent={idempotent}"
        for codec, idempotent in product(("none", "gzip", "snappy", "lz4", "zstd"), ("false", "true"))
    ),
]
RECORDS = 5000
FETCH_SECONDS_MAX = 300.0


def run(command: list[str], folder: Path, *, unavailable: str | None = None) -> str:
    """Run a command; where `unavailable` is given, failing means that a registry is not there."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
    )
    said = (done.stdout + done.stderr)[-1500:]
    if done.returncode != 0 and unavailable:
        pytest.skip(f"{unavailable}: {said}")
    assert done.returncode == 0, said
    return done.stdout


@pytest.fixture(scope="session")
def go_programs() -> Path:
    """The three programs, built once."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no `go` on the PATH")
    folder = cache_dir() / "interop-go"
    shutil.copytree(HERE / "go", folder, dirs_exist_ok=True)
    run([go, "mod", "tidy"], folder, unavailable="the Go modules cannot be fetched")
    run([go, "build", "-o", "bin/", "./..."], folder)
    return folder / "bin"


@pytest.mark.parametrize("client", ["franz", "sarama", "kafkago"])
def test_a_go_client_writes_and_reads(
    broker: Peer, go_programs: Path, new_topic_name: Callable[[str], str], client: str
) -> None:
    topic = new_topic_name(client)
    ConfluentLibrary().create_topic(broker.bootstrap, topic)
    output = run([str(go_programs / client), broker.bootstrap, topic, str(RECORDS)], HERE)
    assert output.split() == ["ok", str(RECORDS)]
    check_values(broker, topic)


def check_values(broker: Peer, topic: str) -> None:
    rows = ConfluentLibrary().read(broker.bootstrap, topic, start=0, count=RECORDS)
    assert [row.value for row in rows] == [b"%d" % number for number in range(RECORDS)]


@pytest.fixture(scope="session")
def node_folder() -> Path:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("no `node` and `npm` on the PATH")
    folder = cache_dir() / "interop-node"
    shutil.copytree(HERE / "node", folder, dirs_exist_ok=True)
    packages = ("kafkajs", "kafkajs-snappy", "@platformatic/kafka")
    if not all((folder / "node_modules" / package).exists() for package in packages):
        run([npm, "install", "--no-audit", "--no-fund"], folder, unavailable="the packages cannot be fetched")
    return folder


def test_kafkajs_writes(broker: Peer, node_folder: Path, new_topic_name: Callable[[str], str]) -> None:
    topic = new_topic_name("kafkajs")
    output = run(["node", "produce.js", broker.bootstrap, topic, str(RECORDS)], node_folder)
    assert output.split() == ["ok", str(RECORDS)]
    check_values(broker, topic)


@pytest.fixture(scope="module")
def kafkajs_suite(suite_broker: Peer, node_folder: Path) -> SuiteRun:
    return run_suite(["node", "kafkajs_checks.js", suite_broker.bootstrap], node_folder)


@pytest.mark.parametrize("name", KAFKAJS_NAMES)
def test_kafkajs(kafkajs_suite: SuiteRun, name: str) -> None:
    kafkajs_suite.expect_passed(name)


@pytest.fixture(scope="module")
def platformatic_suite(suite_broker: Peer, node_folder: Path) -> SuiteRun:
    return run_suite(["node", "platformatic_checks.mjs", suite_broker.bootstrap], node_folder)


@pytest.mark.parametrize("name", PLATFORMATIC_NAMES)
def test_platformatic_kafka(platformatic_suite: SuiteRun, name: str) -> None:
    platformatic_suite.expect_passed(name)


def test_every_check_in_javascript_is_named_here(
    kafkajs_suite: SuiteRun, platformatic_suite: SuiteRun
) -> None:
    assert sorted(kafkajs_suite.outcomes) == sorted(KAFKAJS_NAMES)
    assert sorted(platformatic_suite.outcomes) == sorted(PLATFORMATIC_NAMES)
