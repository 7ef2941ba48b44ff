"""Who leads a topic's partitions, as one broker of a cluster knows it.

Owns one fixed encoding (Metadata 7) over a `RawConnection`, for the same reason as `raw.py`: what judges our client does not stand on it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tools.peers.raw import RawConnection

METADATA, VERSION = 3, 7
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

    def text(self) -> str:
        size = max(self.number("h"), 0)
        self._position += size
        return self._data[self._position - size : self._position].decode()

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.number("i") for _ in range(self.number("i")))


def partitions_of(bootstrap: str, topic: str, *, timeout_seconds: float = 2.0) -> dict[int, Led]:
    """Every partition of a topic; none if the broker does not know the topic. OSError where nobody answers in time."""
    name = topic.encode()
    body = struct.pack(f">hhihih{len(name)}sb", METADATA, VERSION, 1, -1, 1, len(name), name, 0)
    with RawConnection(bootstrap, timeout_seconds=timeout_seconds) as connection:
        connection.send(struct.pack(">i", len(body)) + body)
        answer = _Answer(bytes(connection.receive()))
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
