"""A PostgreSQL server for tests: its own, in a temporary directory, on a free port of this machine only, gone afterwards.

Nothing is skipped in silence: where no server is installed, `server` raises `pytest.skip` with what to install.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def _programs() -> Path | None:
    if found := shutil.which("initdb"):
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The address of an empty database."""
    programs = _programs()
    if programs is None:
        pytest.skip(
            "no PostgreSQL server here: install one (Debian: postgresql) to test tables of state in it"
        )
    owner = "postgres" if os.geteuid() == 0 else None  # initdb refuses root
    if owner and not any(each.pw_name == owner for each in pwd.getpwall()):
        pytest.skip("a PostgreSQL server does not run as root, and there is no user postgres to run it as")
    home = Path(tempfile.mkdtemp(prefix="tidelog-postgres-"))
    if owner:
        shutil.chown(home, owner)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [str(programs / program), *arguments],
            check=True,
            user=owner,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    try:
        run("initdb", "-D", str(home / "data"), "-U", "tide", "-A", "trust", "-E", "UTF8", "--no-sync")
        flags = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={home} -c fsync=off"
        run("pg_ctl", "-D", str(home / "data"), "-w", "-l", str(home / "log"), "-o", flags, "start")
        try:
            yield f"postgresql://tide@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", str(home / "data"), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
