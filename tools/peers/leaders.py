"""Who leads a topic's partitions, as one broker of a cluster knows it, and whether a controller is the active one.

Owns two fixed encodings (Metadata 7, DescribeQuorum 0) over a `RawConnection`, for the same reason as `raw.py`: what judges our client does not stand on it.
"""

from __future__ import annotations

import contextlib
import struct
from typing import NamedTuple

from tools.peers.raw import RawConnection

METADATA, VERSION = 3, 7
DESCRIBE_QUORUM = 55
METADATA_LOG = b"__cluster_metadata"
NO_LEADER = -1


class Led(NamedTuple):
    leader: int
    """Node id; -1 while there is none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class _Answer:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(f">{layout}", self._data, self._position)
        self._position += struct.calcsize(f">{layout}")
        return int(value)

    def skip(self, size: int) -> None:
        self._position += size

    def text(self) -> str:
        size = max(self.number("h"), 0)
        self._position += size
        return self._data[self._position - size : self._position].decode()

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.number("i") for _ in range(self.number("i")))


def partitions_of(bootstrap: str, topic: str, *, timeout_seconds: float = 2.0) -> dict[int, Led]:
    """Every partition of a topic; none if the broker does not know the topic. OSError where nobody answers in time."""
    with contextlib.closing(LeaderWatch(bootstrap, topic, timeout_seconds=timeout_seconds)) as watch:
        return watch.look()


def _partitions(answer: _Answer) -> dict[int, Led]:
    for _ in ("correlation id", "throttle time"):
        answer.number("i")
    for _ in range(answer.number("i")):  # brokers: node id, host, port, rack
        answer.number("i"), answer.text(), answer.number("i"), answer.text()
    answer.text(), answer.number("i")  # cluster id, controller
    found: dict[int, Led] = {}
    for _ in range(answer.number("i")):  # the one topic: error, name, whether it is internal
        answer.number("h"), answer.text(), answer.number("b")
        for _ in range(answer.number("i")):
            answer.number("h")
            number = answer.number("i")
            found[number] = Led(answer.number("i"), answer.number("i"), answer.numbers(), answer.numbers())
            answer.numbers()  # offline replicas
    return found


class LeaderWatch:
    """One connection to one broker, asked again and again who leads a topic's partitions."""

    def __init__(self, bootstrap: str, topic: str, *, timeout_seconds: float = 2.0) -> None:
        self._connection = RawConnection(bootstrap, timeout_seconds=timeout_seconds)
        name = topic.encode()
        body = struct.pack(f">hhihih{len(name)}sb", METADATA, VERSION, 1, -1, 1, len(name), name, 0)
        self._frame = struct.pack(">i", len(body)) + body

    def look(self) -> dict[int, Led]:
        self._connection.send(self._frame)
        return _partitions(_Answer(bytes(self._connection.receive())))

    def close(self) -> None:
        self._connection.close()


def active_controller(bootstrap: str, *, timeout_seconds: float = 2.0) -> int | None:
    """The quorum's leader, if the controller at this address is it; others do not know, or not for sure."""
    size = len(METADATA_LOG)
    # The header's client id is absent and it has no tags; a topic with one partition; lengths are one more than they are.
    body = struct.pack(
        f">hhihBBB{size}sBiBBB", DESCRIBE_QUORUM, 0, 1, -1, 0, 2, size + 1, METADATA_LOG, 2, 0, 0, 0, 0
    )
    with RawConnection(bootstrap, timeout_seconds=timeout_seconds) as connection:
        connection.send(struct.pack(">i", len(body)) + body)
        answer = _Answer(bytes(connection.receive()))
    answer.number("i"), answer.number("b")  # correlation id, tags
    if answer.number("h") or answer.number("b") != 2:
        return None
    answer.skip(answer.number("b") - 1)
    if answer.number("b") != 2:
        return None
    answer.number("i")
    return None if answer.number("h") else answer.number("i")
