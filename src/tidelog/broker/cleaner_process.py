"""The broker's end of a cleaner's process: starting it, talking to it without blocking the loop, and noticing that it has died."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tidelog.broker.cleaner_worker import CANCEL, LENGTH
from tidelog.errors import CorruptDataError
from tidelog.storage.cleaner_job import Cleaned, CleaningInterrupted, Failure, NoRoomToClean
from tidelog.storage.disk import DiskError

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

MODULE = "tidelog.broker.cleaner_worker"
NEEDS = ("numba", "numpy")
END_SECONDS_MAX = 5.0


class WorkerDied(Exception):
    """Its end of the socket is closed."""


class WorkerBug(Exception):
    """It failed in a way that nobody expected."""


def missing_packages() -> list[str]:
    """What compaction needs and is not installed. Looks at the disk."""
    return [name for name in NEEDS if find_spec(name) is None]


class CleanerProcess:
    def __init__(
        self,
        broker: Broker,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._broker = broker
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, broker: Broker) -> CleanerProcess:
        ours, theirs = socket.socketpair()
        try:
            process = await broker.in_background(lambda: _spawn(theirs.fileno()))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(broker, process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def send(self, message: object) -> None:
        data = pickle.dumps(message)
        try:
            self._writer.write(LENGTH.pack(len(data)) + data)
            await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise WorkerDied(f"the cleaner's process {self.pid} does not listen any more") from error

    async def receive(self, seconds: float) -> Any:
        """Its next message. What it has failed with is raised here as if it had happened here. One that says nothing for `seconds` hangs."""
        message = await self._receive_within(seconds)
        if isinstance(message, Failure):
            raise _exception(message)
        return message

    async def _receive_within(self, seconds: float) -> Any:
        try:
            return await asyncio.wait_for(self._receive(), seconds)
        except TimeoutError:
            raise WorkerDied(
                f"the cleaner's process {self.pid} has said nothing for {seconds:.0f} s"
            ) from None

    async def _receive(self) -> Any:
        try:
            (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            return pickle.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise WorkerDied(f"the cleaner's process {self.pid} has died") from error

    async def cancel(self, seconds: float) -> None:
        """Let it give up the job at hand; it takes the next one then. One that says nothing for `seconds` hangs."""
        await self.send(CANCEL)
        while not isinstance(await self._receive_within(seconds), Cleaned | Failure):
            pass  # it had gone on before it heard

    def kill(self) -> None:
        """At once. It holds nothing that could be lost."""
        if self.is_alive:
            self._process.send_signal(signal.SIGKILL)

    async def end(self) -> None:
        """It ends when its socket does; a process that does not is killed."""
        self._writer.close()
        await self._broker.in_background(self._wait)

    def _wait(self) -> None:
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    """The same interpreter, which finds its modules where this one does; nothing of where it runs is on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
        pass_fds=[descriptor],
    )


def _exception(failure: Failure) -> Exception:
    if failure.disk_error is not None:
        operation, path, number = failure.disk_error
        return DiskError(operation, path, OSError(number, os.strerror(number)))
    kinds: dict[str, type[Exception]] = {
        kind.__name__: kind
        for kind in (CorruptDataError, CleaningInterrupted, NoRoomToClean, FileNotFoundError, ImportError)
    }
    return kinds.get(failure.kind, WorkerBug)(failure.text)
