"""Apache Kafka's Java clients, both releases in use: administration, producing and consuming without groups.

The checks are in `java/`; each of them is a test here under its own name. Left out, or written as Kafka's broker
behaves, is what fails with Kafka itself: `TIDELOG_TEST_BROKER=kafka` runs the same checks against it.
"""

from __future__ import annotations

import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from tests.interop.suites import SuiteRun, names_in, run_suite
from tools.peers.kafka import class_path
from tools.peers.maven import java
from tools.peers.process import Peer

SOURCES = Path(__file__).parent / "java"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NAMES = [
    *names_in(SOURCES.glob("*.java")),
    *(f"round trip {codec} acks={acks}" for codec, acks in product(CODECS, ("0", "1", "all"))),
]


@pytest.fixture(scope="module")
def java_suite(suite_broker: Peer, client_version: str, tmp_path_factory: pytest.TempPathFactory) -> SuiteRun:
    """One run of all checks with one release of the client, compiled against it."""
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip("no `javac` on the PATH: the checks need a JDK, 17 or newer")
    classes = tmp_path_factory.mktemp(f"java-{client_version}")
    jars = class_path(client_version)
    sources = [str(path) for path in sorted(SOURCES.glob("*.java"))]
    compiled = subprocess.run(
        [compiler, "-d", str(classes), "-cp", jars, *sources], capture_output=True, text=True, check=False
    )
    assert compiled.returncode == 0, compiled.stderr
    options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return run_suite(
        [java(), *options, "-cp", f"{classes}:{jars}", "ClientSuite", suite_broker.bootstrap], classes
    )


@pytest.mark.parametrize("name", NAMES)
def test_java_client(java_suite: SuiteRun, name: str) -> None:
    java_suite.expect_passed(name)


def test_every_java_check_is_named_here(java_suite: SuiteRun) -> None:
    assert sorted(java_suite.outcomes) == sorted(NAMES)
