"""Errors that the application must hear of, and that wait until it asks for records.

One that says that a partition cannot be read where it stands waits only for as long as it stands there: whoever seeks, or gives the partition up, has dealt with it. So a
listener may take its time to say where a new partition begins, while others find that nobody knows. Each error is told of once, however often it comes before that. Pure.
"""

from __future__ import annotations

from collections import deque

from tidelog.client.consumer.positions import PartitionState, Positions
from tidelog.client.errors import ClientError, LogTruncatedError, NoOffsetError


class Troubles:
    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._waiting: deque[tuple[ClientError, PartitionState | None, int]] = deque()

    def append(self, error: ClientError) -> None:
        if any(str(error) == str(other) for other, _, _ in self._waiting):
            return
        state = None
        if isinstance(error, NoOffsetError | LogTruncatedError):
            state = self._positions.states.get(error.tp)
        self._waiting.append((error, state, state.version if state is not None else 0))

    def __bool__(self) -> bool:
        while self._waiting and self._is_dealt_with(*self._waiting[0][1:]):
            self._waiting.popleft()
        return bool(self._waiting)

    def popleft(self) -> ClientError:
        """IndexError if there is none that anybody must hear of."""
        if not self:
            raise IndexError("no errors")
        return self._waiting.popleft()[0]

    def _is_dealt_with(self, state: PartitionState | None, version: int) -> bool:
        if state is None:
            return False
        return self._positions.states.get(state.tp) is not state or state.version != version
