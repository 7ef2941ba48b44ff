"""The process that compacts: `python -m tidelog.broker.cleaner_worker <descriptor>`, started by the broker, told what to do over a socket.

It does all that takes time: reading sealed segments, filtering, writing and syncing `.cleaned` files and their indexes. It never changes a file
that anybody reads, so it may die at any moment; and it dies with the broker, whose end of the socket it watches between two chunks.

Frames are a length of four bytes and a pickled value, between two processes of one program: a job or a word goes out, groups, progress and an
end come back. A process of its own, not a fork: numba's memory and its compiler's threads stay out of the broker. Not `multiprocessing` either,
which would run the main module of whoever embeds the broker a second time.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from tidelog.errors import CorruptDataError
from tidelog.ports import SystemClock
from tidelog.storage.cleaner_job import (
    Cleaned,
    CleaningInterrupted,
    CleanJob,
    Failure,
    NoRoomToClean,
    Progress,
    Rate,
)
from tidelog.storage.disk import DiskError
from tidelog.storage.leftovers import discard_cleaned
from tidelog.storage.posix_disk import PosixDisk

if TYPE_CHECKING:
    from tidelog.storage.cleaner import LogCleaner

GO_ON = "go on"
CANCEL = "cancel"

NICENESS = 10
"""Clients come first: on a busy machine the cleaner gets a tenth of a processor."""
PROGRESS_SECONDS = 0.5
LENGTH = struct.Struct(">I")


class BrokerGone(Exception):
    pass


class Channel:
    """The worker's end of the socket. Blocking: there is nothing else to do."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, message: object) -> None:
        data = pickle.dumps(message)
        try:
            self._sock.sendall(LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise BrokerGone from error

    def receive(self) -> Any:
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return pickle.loads(self._exactly(size))

    def has_news(self, seconds: float) -> bool:
        return bool(select.select([self._sock], [], [], seconds)[0])

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                more = self._sock.recv(count - len(data))
            except OSError as error:
                raise BrokerGone from error
            if not more:
                raise BrokerGone
            data += more
        return bytes(data)


class Worker:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._disk = PosixDisk()
        self._told_at = 0.0

    def serve(self) -> None:
        """Until the broker has gone."""
        while True:
            message = self._channel.receive()
            if isinstance(message, CleanJob):
                self._channel.send(self._outcome(message))

    def _outcome(self, job: CleanJob) -> Cleaned | Failure:
        try:
            return self._clean(job)
        except BrokerGone:
            raise
        except Exception as error:  # noqa: BLE001 - the broker decides what it means
            self._discard(job)
            return _failure(error)

    def _clean(self, job: CleanJob) -> Cleaned:
        from tidelog.storage.cleaner import LogCleaner

        cleaner: LogCleaner  # `pause` needs it

        def pause(seconds: float) -> None:
            until = time.monotonic() + seconds
            while True:
                now = time.monotonic()
                if now - self._told_at >= PROGRESS_SECONDS:
                    self._told_at = now
                    self._channel.send(Progress(cleaner.bytes_read, cleaner.bytes_written))
                if self._channel.has_news(min(max(0.0, until - now), PROGRESS_SECONDS)):
                    self._listen(cleaner)
                    return  # at another rate, perhaps
                if time.monotonic() >= until:
                    return

        cleaner = LogCleaner(self._disk, job, clock=SystemClock(), secret=os.urandom(16), pause=pause)
        for group in cleaner.groups():
            self._channel.send(group)
            while self._listen(cleaner) != GO_ON:
                pass
        return cleaner.result

    def _listen(self, cleaner: LogCleaner) -> object:
        message = self._channel.receive()
        if isinstance(message, Rate):
            cleaner.bytes_per_second = message.bytes_per_second
        elif message != GO_ON:
            raise CleaningInterrupted(f"the broker said {message}")
        return message

    def _discard(self, job: CleanJob) -> None:
        try:
            discard_cleaned(self._disk, job.directory)
        except (DiskError, FileNotFoundError):
            return  # the log has gone, or its disk: the broker knows, or will


def _failure(error: Exception) -> Failure:
    text = str(error)
    if isinstance(error, DiskError):
        return Failure("DiskError", text, disk_error=(error.operation, error.path, error.errno or 0))
    known = (CorruptDataError, CleaningInterrupted, NoRoomToClean, FileNotFoundError, ImportError)
    for kind in known:
        if isinstance(error, kind):
            return Failure(kind.__name__, text)
    return Failure("bug", "".join(traceback.format_exception(error)))


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which then ends this one
    os.nice(NICENESS)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        Worker(channel).serve()
    except BrokerGone:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
