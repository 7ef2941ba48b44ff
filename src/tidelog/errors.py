"""What can go wrong, by whose fault.

* `RequestError`: the peer asked for something we must refuse. Carries the wire error code; the connection lives on.
* `ProtocolError`: the peer's bytes make no sense. That connection is closed, and only that one.
* `CorruptDataError`: bytes on our own disk do not check out.
* `tidelog.storage.disk.DiskError`: the disk refused; its log directory goes offline.

Anything else that reaches the top is a bug of ours and is logged as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.wire.error_codes import ErrorCode


MESSAGE_CHARACTERS_MAX = 2000


class TidelogError(Exception):
    """Base of every error that Tidelog raises on purpose."""


class ProtocolError(TidelogError):
    """The peer sent bytes that are not Kafka's protocol, or not within our limits."""


class RequestError(TidelogError):
    """A request that is refused, with the code that says why to the client.

    Messages quote what the client sent, which may be long, and must fit into a string of an old protocol version.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        message = (
            message if len(message) <= MESSAGE_CHARACTERS_MAX else message[:MESSAGE_CHARACTERS_MAX] + "…"
        )
        super().__init__(message or code.name)
        self.code = code
        self.message = message or code.name


class CorruptDataError(TidelogError):
    """Stored bytes fail their check. Names the file and the position."""
