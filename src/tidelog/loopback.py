"""Connections whose other end is on this machine. Nothing on the way can be congested there, and what protects a network costs time.

Some machines send by BBR, which holds packets back and lets a timer release each of them: on loopback a large answer then takes twice the time and three times the
processor. Reno, which every Linux lets everybody choose, does nothing where nothing is lost.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Final

_ALGORITHM: Final = getattr(socket, "TCP_CONGESTION", None)
"""Other systems than Linux have no choice."""


def send_at_once(sock: Any) -> None:
    """For a socket whose two addresses are the same."""
    if _ALGORITHM is not None:
        with suppress(OSError):  # a system that has no reno, or allows nobody to choose it
            sock.setsockopt(socket.IPPROTO_TCP, _ALGORITHM, b"reno")
