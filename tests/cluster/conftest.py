"""Where clusters of processes live: a directory that is gone after a test that passes, and stays after one that fails."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Unlike `tmp_path`, nobody tidies it up: logs and history of a failure are there when somebody comes to look."""
    failed_before = request.session.testsfailed
    made = Path(tempfile.mkdtemp(prefix="tidelog-cluster-"))
    yield made
    if request.session.testsfailed == failed_before:
        shutil.rmtree(made, ignore_errors=True)
