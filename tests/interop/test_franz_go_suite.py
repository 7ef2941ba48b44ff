"""franz-go's own tests of its client, run against the broker.

Owns which release is run and which of its tests are left out. The sources come through the Go module proxy into a
temporary directory; nothing of them is kept here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tools.peers.process import Peer

MODULE = "github.com/twmb/franz-go@v1.22.2"
FETCH_SECONDS_MAX = 200.0
SUITE_SECONDS_MAX = 400
PASSED_MIN = 100  # fewer would mean that the pattern below leaves out more than it names

LEFT_OUT = (
    "ShareGroup",
    "Txn",  # transactions
    "SCRAM",  # needs a second listener with accounts
)


def go_command() -> str:
    path = shutil.which("go")
    if path is None:
        pytest.skip("no `go` on the PATH: franz-go's tests cannot be built")
    return path


def fetch(command: list[str], folder: Path) -> str:
    """Run a command that needs the module proxy; skip, in its own words, where the proxy is not there."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the Go module proxy did not deliver {MODULE} within {FETCH_SECONDS_MAX:.0f} s")
    if done.returncode != 0:
        pytest.skip(f"{MODULE} cannot be fetched through Go: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout


@pytest.fixture
def client_sources(tmp_path: Path) -> Path:
    """A writable copy of the client's package, with the modules that it needs in Go's cache."""
    go = go_command()
    cached = json.loads(fetch([go, "mod", "download", "-json", MODULE], tmp_path))["Dir"]
    sources = tmp_path / "franz-go"
    shutil.copytree(cached, sources)
    for path in (sources, *sources.rglob("*")):  # the module cache is read-only
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    fetch([go, "mod", "download"], sources)
    return sources / "pkg" / "kgo"


def test_franz_go_passes_its_own_tests(suite_broker: Peer, client_sources: Path) -> None:
    settings = {"KGO_LOG_LEVEL": "none", "KGO_SEEDS": suite_broker.bootstrap, "KGO_TEST_RF": "1"}
    done = subprocess.run(
        [go_command(), "test", "-v", "-timeout", f"{SUITE_SECONDS_MAX}s", "-skip", "|".join(LEFT_OUT), "."],
        cwd=client_sources,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS_MAX + 200,  # building comes on top
        check=False,
    )
    said = done.stdout + done.stderr
    failed = re.findall(r"^\s*--- FAIL: (\S+)", said, re.MULTILINE)
    assert not failed, f"{', '.join(failed)}\n{said[-6000:]}"
    assert done.returncode == 0, said[-6000:]
    passed = re.findall(r"^--- PASS: (\S+)", said, re.MULTILINE)
    assert len(passed) >= PASSED_MIN, passed
