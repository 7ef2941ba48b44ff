"""Whoever sends the frames of a live fuzz run: many connections, some frames at once, and an eye on what comes back."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from random import Random

from tests.fuzz.dictionary import FOREIGN_GREETINGS, FRAME_LENGTHS
from tests.fuzz.frames import Frame, Frames
from tests.fuzz.wire import Wire, framed

SILENCE_SECONDS_MAX = 1.0
"""A fetch whose wait was mutated to three weeks parks, and rightly. Nobody waits for it."""
LAST_WORD = 0x7EADBEEF
GARBAGE = 0.04
MUTANTS_PER_MESSAGE, KEPT = 3, 0.5
"""Fewer of each message, and half of them well formed: what the decoder refuses never reaches the broker's own code."""
TOPICS = {
    "fuzz-0": {},
    "fuzz-1": {"cleanup.policy": "compact"},
    "fuzz-2": {"message.timestamp.type": "LogAppendTime", "durability": "replicated"},
    "fuzz.3": {"compression.type": "zstd", "message.timestamp.after.max.ms": "9223372036854775807"},
    "fuzz-4": {
        "message.timestamp.before.max.ms": "1000",
        "max.message.bytes": "1000",
        "retention.ms": "1000",
    },
}


class Attacker(threading.Thread):
    """Sends `frames_max` frames of one seed. What the broker did with each group of them is counted in `outcomes`."""

    def __init__(self, port: int, seed: int, frames_max: int, topic_ids: list[bytes]) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._frames_max = frames_max
        self._rng = Random(seed)
        self._topic_ids = topic_ids
        self._source: Iterator[Frame] = Frames(
            seed,
            topics=tuple(TOPICS),
            topic_ids=topic_ids,
            now_ms=time.time_ns() // 1_000_000,
            mutants=MUTANTS_PER_MESSAGE,
            kept=KEPT,
        ).requests()
        self._wire: Wire | None = None
        self.seed = seed
        self.sent = 0
        self.outcomes: Counter[str] = Counter()
        self.last_frames: deque[Frame] = deque(maxlen=200)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            queue: deque[Frame] = deque()
            while self.sent < self._frames_max:
                if self._rng.random() < GARBAGE:
                    self._send_garbage()
                    continue
                wanted = min(self._rng.choice((1, 1, 5, 20, 60)), self._frames_max - self.sent)
                while len(queue) < wanted:
                    queue.append(next(self._source))
                group = [queue.popleft() for _ in range(wanted)]
                done = self._send_group(group)
                queue.extendleft(reversed(group[done:]))
                self.sent += done
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self.error = error
        finally:
            self._hang_up()

    def _connection(self) -> Wire:
        if self._wire is None:
            self._wire = Wire(self._port, timeout=SILENCE_SECONDS_MAX)
            self.outcomes["connections"] += 1
        return self._wire

    def _hang_up(self) -> None:
        if self._wire is not None:
            (self._wire.abort if self._rng.random() < 0.3 else self._wire.close)()
            self._wire = None

    def _send_group(self, group: list[Frame]) -> int:
        """How many of them the broker has looked at."""
        self.last_frames.extend(group)
        wire = self._connection()
        last_word = framed(struct.pack(">hhih", 18, 0, LAST_WORD, -1))
        answered: set[int] = set()
        try:
            wire.send(b"".join(framed(frame.data) for frame in group) + last_word)
            while True:
                (correlation_id,) = struct.unpack_from(">i", wire.receive())
                if correlation_id == LAST_WORD:
                    break
                answered.add(correlation_id)
        except (EOFError, ConnectionError):
            self._hang_up()
            self.outcomes["refused"] += 1
        except TimeoutError:
            self._hang_up()
            self.outcomes["silent"] += 1
        else:
            self.outcomes["answered"] += len(answered)
            self.outcomes["unanswered"] += len(group) - len(answered)
            return len(group)
        self.outcomes["answered"] += len(answered)
        # Whatever comes after the frame that ended the connection has not been looked at: it is sent again.
        reached = [n for n, frame in enumerate(group) if _correlation_id(frame) in answered]
        return min(len(group), (reached[-1] + 2) if reached else 1)

    def _send_garbage(self) -> None:
        """Lengths that lie, other protocols, noise, and connections that end in the middle of a word."""
        rng = self._rng
        self.sent += 1
        self.outcomes["garbage"] += 1
        kind = rng.randrange(5)
        if kind == 0:
            data = struct.pack(">i", rng.choice(FRAME_LENGTHS)) + rng.randbytes(rng.choice((0, 3, 100)))
        elif kind == 1:
            data = rng.choice(FOREIGN_GREETINGS)
        elif kind == 2:
            data = rng.randbytes(rng.choice((1, 4, 5, 60, 5000)))
        elif kind == 3:
            frames = b"".join(framed(frame.data) for frame in islice(self._source, 3))
            data = frames[: rng.randrange(1, len(frames))]
        else:
            data = struct.pack(">i", rng.choice((40_000, 1 << 20))) + rng.randbytes(33_000)
        try:
            with Wire(self._port, timeout=SILENCE_SECONDS_MAX) as wire:
                wire.send(data)
                if rng.random() < 0.5:
                    wire.sock.shutdown(socket.SHUT_WR)
                    wire.is_closed(SILENCE_SECONDS_MAX)
                elif rng.random() < 0.5:
                    wire.abort()
        except OSError:
            pass  # a broker that hangs up on us is right


def _correlation_id(frame: Frame) -> int:
    return int.from_bytes(frame.data[4:8], "big", signed=True) if len(frame.data) >= 8 else LAST_WORD
