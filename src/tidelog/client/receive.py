"""Answers off a socket, each in a buffer of its own.

The decoder hands out views into the frame it was given (a fetch answer's records are never copied again), so a frame's
bytes must stay untouched as long as anybody has a view of it. Small frames are copied out of one scratch buffer, so that many pipelined
answers cost one read; a frame larger than the scratch buffer is read by the kernel straight into its final place. Memory that was used
before is used again once nobody looks at it any more: fresh pages cost about as much as the bytes that are put there.
This file owns no socket and never decodes; a length beyond the limit is refused before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.errors import ProtocolError

_SCRATCH_BYTES = 64 * 1024
_LENGTH_BYTES = 4
_KEPT_MAX = 3
_KEPT_BYTES_MAX = (8 << 20) + (64 << 10)
"""An answer of 8 MiB of records, as tables ask for, with what stands around them."""


class FrameReceiver:
    """`buffer()` is where the next bytes go; `received(n)` yields the frames that are now complete."""

    __slots__ = ("_frame", "_frame_filled", "_kept", "_max_frame_bytes", "_scratch", "_scratch_filled")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._scratch_filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._kept: list[bytearray] = []

    def buffer(self) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._scratch[self._scratch_filled :]

    @property
    def missing_bytes(self) -> int:
        """How much of a large frame is still to come; 0 when none has begun."""
        return 0 if self._frame is None else len(self._frame) - self._frame_filled

    def received(self, count: int) -> Iterator[memoryview]:
        """Account for `count` bytes. ProtocolError when a length makes no sense."""
        if self._frame is None:
            self._scratch_filled += count
            yield from self._split_scratch()
            return
        self._frame_filled += count
        if self._frame_filled == len(self._frame):
            frame, self._frame = self._frame, None
            yield frame

    def _split_scratch(self) -> Iterator[memoryview]:
        scratch, end, position = self._scratch, self._scratch_filled, 0
        while end - position >= _LENGTH_BYTES:
            body = position + _LENGTH_BYTES
            length = self._checked_length(bytes(scratch[position:body]))
            if length > end - body:
                if length > len(scratch) - _LENGTH_BYTES:
                    self._start_large_frame(length, scratch[body:end])
                    return
                break
            yield memoryview(bytes(scratch[body : body + length]))
            position = body + length
        rest = end - position
        if position and rest:
            scratch[:rest] = bytes(scratch[position:end])
        self._scratch_filled = rest

    def _start_large_frame(self, length: int, begun: memoryview) -> None:
        self._frame = memoryview(self._memory(length))[:length]
        self._frame[: len(begun)] = begun
        self._frame_filled = len(begun)
        self._scratch_filled = 0

    def _memory(self, length: int) -> bytearray:
        free = [memory for memory in self._kept if not _has_views(memory)]
        for memory in free:
            if len(memory) >= length:
                return memory
        made = bytearray(length)
        if length <= _KEPT_BYTES_MAX:
            if len(self._kept) == _KEPT_MAX and free:
                self._kept.remove(free[0])  # too small for what comes now
            if len(self._kept) < _KEPT_MAX:
                self._kept.append(made)
        return made

    def _checked_length(self, prefix: bytes) -> int:
        length = int.from_bytes(prefix, "big", signed=True)
        if 4 <= length <= self._max_frame_bytes:
            return length
        if prefix == b"HTTP":
            raise ProtocolError("an HTTP server answers there, not a Kafka broker: check the port")
        if prefix[:2] in (b"\x15\x03", b"\x16\x03"):
            raise ProtocolError("a TLS listener answers there: use the broker's PLAINTEXT port")
        raise ProtocolError(
            f"an answer claims to have {length} bytes (at most {self._max_frame_bytes} are accepted): "
            "check that a Kafka broker listens on that port"
        )


def _has_views(memory: bytearray) -> bool:
    """Python refuses to change the size of what somebody looks at."""
    try:
        memory.append(0)
    except BufferError:
        return True
    memory.pop()
    return False
