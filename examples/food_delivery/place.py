"""The directory of a run: where the broker, the pipeline, the tables and the logs of the example are, and that only one run is in it at a time.

Nothing outside of it is written, and nothing is removed from a directory that the example has not made.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.cli.local_cluster import LAYOUT_FILE
from tidelog.errors import TidelogError

HOST: Final = "127.0.0.1"
MARK: Final = ".food-delivery"
"""A directory with this file is ours. It is locked while a run is in it."""
SPECIFICATION: Final = Path(__file__).with_name("pipeline.toml")


class PlaceError(TidelogError):
    """The example cannot run here; says what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    directory: Path

    @property
    def broker(self) -> Path:
        return self.directory / "broker"

    @property
    def tables(self) -> Path:
        return self.directory / "tables"

    @property
    def database(self) -> Path:
        return self.directory / "food_delivery.db"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def specification(self) -> Path:
        return self.directory / "pipeline.toml"

    def require_brokers(self, count: int) -> None:
        """PlaceError if earlier runs had more or fewer: their records are not where this one would look for them."""
        layout = self.broker / LAYOUT_FILE
        if layout.exists():
            before = len(json.loads(layout.read_text())["controller_ports"])
        elif (self.broker / "meta.properties").exists():
            before = 1
        else:
            return
        if before != count:
            raise PlaceError(
                f"{self.directory} has the data of earlier runs with {before} broker{'s' if before > 1 else ''}: "
                f"go on with make run BROKERS={before}, or begin anew with make run FRESH=1"
            )

    @contextmanager
    def taken(self, *, fresh: bool) -> Iterator[None]:
        """Ours alone until the end of the `with` block. `fresh`: what earlier runs left is removed first."""
        mark = self.directory / MARK
        if self.directory.exists() and not mark.exists() and any(self.directory.iterdir()):
            raise PlaceError(
                f"{self.directory} is not empty and was not made by this example: name another directory with --directory"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(mark, "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PlaceError(
                    f"another run of the example is in {self.directory}: end it with Ctrl-C there, or name another --directory"
                ) from None
            if fresh:
                self._clear()
            yield

    def _clear(self) -> None:
        for each in self.directory.iterdir():
            if each.name == MARK:
                continue
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink()

    def write_specification(self) -> None:
        """A copy of the example's own. Its paths count from where it is, so they lead into this directory."""
        unfinished = self.specification.with_suffix(".unfinished")
        shutil.copyfile(SPECIFICATION, unfinished)
        os.replace(unfinished, self.specification)


def require_free(port: int) -> None:
    """PlaceError if somebody listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PlaceError(
                f"port {port} of {HOST} cannot be had ({error.strerror}); a broker may be running there already. "
                f"End it, or take another port: make run PORT={port + 100}"
            ) from error
