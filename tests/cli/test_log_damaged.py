"""The `tidelog log` commands on damaged files: they name the place, end with 1, and never leave records out in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.storage.scrub_world import headers_of, sealed_log
from tidelog.cli.app import app
from tidelog.storage.posix_disk import PosixDisk


@pytest.fixture
def partition(tmp_path: Path) -> tuple[Path, int]:
    """A partition's directory, and where the second batch of its first segment stands."""
    log = sealed_log(disk=PosixDisk(), directory=str(tmp_path / "data" / "orders-0"))
    log.close_cleanly()
    return tmp_path / "data" / "orders-0", headers_of(log, log.segments[0])[1][0]


HARMS = [(10, "length"), (16, "magic"), (19, "CRC"), (70, "payload")]


@pytest.mark.parametrize("at", [at for at, _ in HARMS], ids=[name for _, name in HARMS])
def test_damage_is_named_by_every_command(partition: tuple[Path, int], tmp_path: Path, at: int) -> None:
    directory, position = partition
    segment = directory / f"{0:020d}.log"
    content = bytearray(segment.read_bytes())
    content[position + at] ^= 0x04
    segment.write_bytes(content)
    target = tmp_path / "out.parquet"

    exported = CliRunner().invoke(app, ["log", "export", str(directory), "--to", str(target)])
    assert exported.exit_code == 1
    assert str(segment) in exported.output and "Traceback" not in exported.output
    assert not list(tmp_path.glob("out*")), "no half of a file"

    dumped = CliRunner().invoke(app, ["log", "dump", str(segment)])
    assert f"position={position}" in dumped.output or f"position {position}" in dumped.output
    assert "crc=ok" in dumped.output, "what is sound is shown"

    verified = CliRunner().invoke(app, ["log", "verify", str(directory)])
    assert verified.exit_code == 1
    assert f"{segment}, position {position}" in verified.output


def test_a_torn_tail_of_the_last_segment_is_no_damage(partition: tuple[Path, int], tmp_path: Path) -> None:
    directory, position = partition
    segment = directory / f"{0:020d}.log"
    alone = tmp_path / "orders-0" / segment.name
    alone.parent.mkdir()
    alone.write_bytes(segment.read_bytes()[: position + 20])
    result = CliRunner().invoke(app, ["log", "export", str(alone), "--to", str(tmp_path / "out.arrow")])
    assert result.exit_code == 0, result.output
    assert "wrote 1 records" in result.output
