"""How much a task asks for at once: as much as pays, and in the end not more than what is left of its range.

Records behind the end of a range are fetched for nothing: the next micro-batch is read by whatever worker is free. How many bytes an offset takes is known from
the answer before, of this task or of an earlier one in the same process. A guess that is too low costs a round trip, never a record. Pure.
"""

from __future__ import annotations

from typing import Final

from tidelog.client.metadata import TopicPartition

SPARE_SHARE: Final = 0.05
SPARE_BYTES: Final = 256 << 10
"""Beyond what is left by the guess: records differ in size, and the last batch is needed whole."""


class FetchSizes:
    """Bytes for each offset, by partition: one number for each that was read."""

    def __init__(self) -> None:
        self._bytes_per_offset: dict[TopicPartition, float] = {}

    def learn(self, tp: TopicPartition, size: int, offsets: int) -> None:
        if size > 0 and offsets > 0:
            self._bytes_per_offset[tp] = size / offsets

    def wanted(self, tp: TopicPartition, offsets_left: int, limit: int) -> int:
        """Bytes to ask for, at most `limit`."""
        known = self._bytes_per_offset.get(tp)
        if known is None:
            return limit
        left = known * offsets_left * (1 + SPARE_SHARE) + SPARE_BYTES
        return limit if left >= limit else int(left)
