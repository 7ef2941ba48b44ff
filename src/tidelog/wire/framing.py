"""Splits a stream of bytes into frames, with a cap.

Sans-IO: bytes go in, whole frames come out. Used by clients and tests; the broker's connection splits its own receive buffer in place.
A frame that claims more than the cap is refused by its length alone; nothing waits for the rest of it (I53).
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.errors import ProtocolError
from tidelog.wire.types import Buffer


class FrameReader:
    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: Buffer) -> list[bytes]:
        """The frames that are complete now, without their lengths. What is left waits for more."""
        self._buffer += data
        frames = []
        position = 0
        for start, end in self._complete():
            frames.append(bytes(memoryview(self._buffer)[start:end]))
            position = end
        del self._buffer[:position]
        return frames

    def _complete(self) -> Iterator[tuple[int, int]]:
        position = 0
        while len(self._buffer) - position >= 4:
            size = int.from_bytes(self._buffer[position : position + 4], "big", signed=True)
            if not 0 <= size <= self._max_frame_bytes:
                raise ProtocolError(
                    f"a frame claims {size} bytes; at most {self._max_frame_bytes} are allowed. Is the peer speaking Kafka?"
                )
            end = position + 4 + size
            if end > len(self._buffer):
                return
            yield position + 4, end
            position = end
