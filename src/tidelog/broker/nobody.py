"""The other nodes of a cluster of one: there are none, and whoever asks hears so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class Nobody:
    """In the place of `node_peers.NodePeers`, and of each of its lanes."""

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        asyncio.get_running_loop().call_soon(answered, None)

    @property
    def quorum(self) -> Nobody:
        return self

    @property
    def controllers(self) -> Nobody:
        return self

    @property
    def brokers(self) -> Nobody:
        return self

    def listens(self, _node_id: int, answered: Callable[[bool | None], None], /) -> None:
        asyncio.get_running_loop().call_soon(answered, None)

    def cut_off(self, node_ids: Iterable[int]) -> None:
        """There is nobody to be cut off from."""

    def close(self) -> None:
        """There is nothing to close."""
