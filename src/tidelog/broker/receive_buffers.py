"""The buffers that all connections of an event loop receive into, and whose turn it is when many want to be served."""

from __future__ import annotations

from time import monotonic

RECEIVE_BYTES = 256 * 1024
"""The least size of the buffer that all connections of a loop receive into."""
KEEP_FRAME_BYTES = 2 * 1024 * 1024
"""A buffer up to this size is kept for the next large frame of any connection."""
SPARE_BUFFERS_MAX = 8
"""How many such buffers are kept."""
SPARE_PER_BYTE = 32
"""How many bytes of a kept buffer each byte of a frame that has arrived is good for."""


class ReceiveBuffers:
    """What the connections of one event loop receive into. Only the connection whose turn it is touches `current`.

    A connection that is left with a part of a large frame takes the buffer with it, so the part is never copied, and gives it
    back when the frame is complete. Idle connections hold nothing.
    """

    __slots__ = ("_spare", "current", "large_after", "resuming")

    def __init__(self) -> None:
        self.large_after = 0.0  # when the next large request may be handled
        self.resuming = 0  # connections that have received more requests than they could handle in their turn
        self.current = new_buffer(RECEIVE_BYTES)
        self._spare: list[memoryview] = []

    def take(self) -> memoryview:
        taken = self.current
        self.current = self._largest_spare() or new_buffer(RECEIVE_BYTES)
        return taken

    def _largest_spare(self) -> memoryview | None:
        if not self._spare:
            return None
        return self._spare.pop(max(range(len(self._spare)), key=lambda number: len(self._spare[number])))

    def spare_for(self, size: int, filled: int) -> memoryview | None:
        """A kept buffer that a frame of this size fits into, once enough of it has arrived: nobody gets one for a mere claim."""
        if filled * SPARE_PER_BYTE < size:
            return None
        for number, buffer in enumerate(self._spare):
            if len(buffer) >= size:
                return self._spare.pop(number)
        return None

    def took_large(self, began: float) -> None:
        """A large request was handled since `began`: for as long again it is the turn of small ones.

        It may take half a second, and a crowd may send one each at the same time. Produce is no part of this: its bytes are
        records, not work.
        """
        now = monotonic()
        self.large_after = now + (now - began)

    def give(self, buffer: memoryview) -> None:
        """Whoever has sent a large frame is likely to send another: the larger buffer is received into first."""
        if len(buffer) > KEEP_FRAME_BYTES:
            return
        if len(buffer) > len(self.current):
            buffer, self.current = self.current, buffer
        if len(buffer) >= RECEIVE_BYTES and len(self._spare) < SPARE_BUFFERS_MAX:
            self._spare.append(buffer)


def new_buffer(size: int) -> memoryview:
    """Of about this size. Frames of one client differ by some bytes: a buffer that is to be kept must fit the next one, too."""
    if size > RECEIVE_BYTES:
        size = -(-size // RECEIVE_BYTES) * RECEIVE_BYTES
    return memoryview(bytearray(size))
