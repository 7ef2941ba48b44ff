"""The status file: what is written is what is read, and a reader knows whether its writer lives. What people see of it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.pipeline.display import Lines, errors, line, rendered, rows
from tidelog.pipeline.progress import QueryProgress
from tidelog.pipeline.status import (
    FlowStatus,
    PipelineStatus,
    StatusError,
    life_of,
    read_status,
    write_status,
)
from tidelog.process_identity import this_process

QUERY = QueryProgress(
    name="orders",
    batch=12,
    rows=15000,
    rows_per_second=1234.5,
    batch_ms=250,
    lag=7,
    watermark="2025-01-31T12:00:00.000Z",
)
STATUS = PipelineStatus(
    name="shop",
    state="running",
    file="/srv/shop.toml",
    master="local[*]",
    brokers="127.0.0.1:9092",
    started_at=1_700_000_000.0,
    written_at=1_700_000_100.0,
    process=this_process(),
    flows=(
        FlowStatus(
            name="orders", job="ingest", state="running", queries=(QUERY,), counters={"dead letters": 3}
        ),
        FlowStatus(
            name="audit", job="audit", state="failed", error="no such [topic]", restarts=2, result={"rows": 5}
        ),
    ),
)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    with pytest.raises(StatusError, match="no pipeline has run"):
        read_status(str(tmp_path))
    write_status(str(tmp_path), STATUS)
    assert read_status(str(tmp_path)) == STATUS
    assert os.listdir(tmp_path) == ["status.json"]
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(StatusError, match="is no status"):
        read_status(str(tmp_path))
    (tmp_path / "status.json").write_text("{}")
    with pytest.raises(StatusError, match="another version"):
        read_status(str(tmp_path))


def test_a_status_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for a full disk: the process writes up to it and no further."""
    script = (
        "import dataclasses, resource, signal, sys\n"
        "from tests.pipeline.test_status import STATUS\n"
        "from tidelog.pipeline.status import write_status\n"
        "write_status(sys.argv[1], STATUS)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n    write_status(sys.argv[1], dataclasses.replace(STATUS, state='stopped'))\n"
        "except OSError as error: print(error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "27\n"  # EFBIG
    assert os.listdir(tmp_path) == ["status.json"]
    assert read_status(str(tmp_path)).state == "running"


def test_whether_the_writer_lives() -> None:
    soon = STATUS.written_at + 1
    assert life_of(STATUS, soon) == "running"
    assert (
        life_of(STATUS, STATUS.written_at + 60)
        == f"silent for 60 s: process {os.getpid()} is there and says nothing"
    )
    other_boot = replace(STATUS, process={**STATUS.process, "boot": "x"})
    assert life_of(other_boot, soon) == "died: the machine has been started anew since"
    reused = replace(STATUS, process={**STATUS.process, "started": "1"})
    assert life_of(reused, soon) == f"died: process {os.getpid()} is gone"
    assert life_of(replace(other_boot, state="stopped"), soon) == "stopped"
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert life_of(replace(STATUS, process={**STATUS.process, "pid": child.pid}), soon).startswith("died")


def test_what_people_see(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(rows(STATUS)) == [
        ("orders", "running", "12", "1,234", "15,000", "7", "250", "2025-01-31T12:00:00Z", "dead letters 3"),
        ("audit", "failed (2 restarts)", "-", "-", "-", "-", "-", "-", "rows 5"),
    ]
    assert list(errors(STATUS)) == ["audit: no such [topic]"]
    assert line(STATUS.flows[0]) == (
        "orders: running; batch 12, 1,234 rows/s, 15,000 rows, lag 7, watermark 2025-01-31T12:00:00.000Z; dead letters 3"
    )
    from rich.console import Console

    written = io.StringIO()
    Console(width=200, file=written, markup=False).print(rendered(STATUS, "died: process 7 is gone"))
    text = written.getvalue()
    assert "died: process 7 is gone" in text and "no such [topic]" in text and "15,000" in text

    lines = Lines()
    lines(STATUS)
    lines(STATUS)
    said = [each[9:] for each in capsys.readouterr().out.splitlines()]
    assert said == [
        "pipeline shop: running",
        line(STATUS.flows[0]),
        "audit: no such [topic]",
        line(STATUS.flows[1]),
    ]
    lines(replace(STATUS, flows=(replace(STATUS.flows[0], state="stopped"),)))
    assert "orders: stopped" in capsys.readouterr().out
