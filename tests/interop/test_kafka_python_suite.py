"""kafka-python's own integration tests, run against the broker.

Owns which of them are left out. The sources come from PyPI, in the version that is installed, into a temporary directory; nothing of them is kept here. They lack what starts
a broker of their own, which an outside one has no need of.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.interop.conftest import new_broker
from tools.peers.process import Peer

RELEASE = version("kafka-python")
FETCH_SECONDS_MAX = 200.0
SUITE_SECONDS_MAX = 300.0
PASSED_MIN = 45  # fewer would mean that the names below leave out more than they say

LEFT_OUT = (
    "transactional",
    "acls",
    "reassignments",
    "replica_log_dirs",
    "ssl",
    "sasl",
)
SETTINGS = {"num.partitions": "4", "group.min.session.timeout.ms": "1000"}
"""What the broker that they start themselves would have."""

NO_SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self): ...

    def close(self): ...


class SpawnedService: ...
"""


@pytest.fixture(scope="module")
def kafka_python_broker() -> Iterator[Peer]:
    with new_broker("replicated", SETTINGS) as peer:
        yield peer


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The unpacked release; skips, in pip's words, where there is none to be had."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*pip, "--no-binary", ":all:", "--dest", str(tmp_path), f"kafka-python=={RELEASE}"],
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"PyPI did not deliver kafka-python {RELEASE} within {FETCH_SECONDS_MAX:.0f} s")
    if done.returncode != 0:
        pytest.skip(f"the sources of kafka-python {RELEASE} cannot be fetched: {done.stderr[-1500:]}")
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    folder = tmp_path / archive.name.removesuffix(".tar.gz")
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(NO_SERVICE)
    return folder


def test_kafka_python_passes_its_own_tests(kafka_python_broker: Peer, sources: Path) -> None:
    settings = {
        "KAFKA_VERSION": "4.3.0",
        "KAFKA_URI": f"kafka://{kafka_python_broker.bootstrap}",
        "KAFKA_ROOT": str(sources),  # looked for, not used
        "PYTHONPATH": str(sources),
    }
    chosen = " and ".join(f"not {name}" for name in LEFT_OUT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "test/integration", "-k", chosen, "-q", "-rf", "-W", "ignore", "-p", "no:cacheprovider", "--show-capture=no"],
        cwd=sources,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS_MAX,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= PASSED_MIN, done.stdout[-2000:]
