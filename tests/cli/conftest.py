"""Commands in this process (fast) or as a user runs them (a process), and a broker for those that need one."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass
class Result:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    named = os.environ.get("TIDELOG_TEST_BOOTSTRAP")
    if named:
        yield named
        return
    from tidelog.testing import Cluster

    with Cluster() as cluster:
        yield cluster.bootstrap_servers


@pytest.fixture
def topic() -> str:
    return f"cli-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def tidelog(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`tidelog("topic", "list")` in this process; the exit code, stdout and stderr."""
    from tidelog.cli import main

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["tidelog", *map(str, arguments)])
        code: Any = 0
        try:
            main.main()
        except SystemExit as stop:
            code = stop.code or 0
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def on(
    tidelog: Callable[..., Result], bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """The same with a broker to talk to."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP_SERVERS", bootstrap)
    return tidelog


@pytest.fixture
def process(bootstrap: str) -> Callable[..., subprocess.Popen[bytes]]:
    def start(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tidelog.cli.main", *map(str, arguments)]
        environment = {**os.environ, "TIDELOG_BOOTSTRAP_SERVERS": bootstrap}
        options = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
        } | options
        return subprocess.Popen(command, env=environment, **options)

    return start
