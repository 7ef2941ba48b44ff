"""What a client of a broker can run into, and whether trying again may help.

Every error names the broker (host:port) or the resource it is about, and says what to do. `retriable` is the single
fact on which the retry loop in `cluster.py` decides; nothing else in this package guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.errors import TidelogError
from tidelog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.client.metadata import TopicPartition


class ClientError(TidelogError):
    """Base of everything that this package raises on purpose."""

    retriable = False


class BrokerUnreachableError(ClientError):
    """No TCP connection to one broker, or to any of the bootstrap list."""

    retriable = True


class ConnectionLostError(ClientError):
    """The connection went away with requests in flight: whether they were carried out is unknown."""

    retriable = True


class RequestTimedOutError(ClientError):
    """No answer in time: whether the request was carried out is unknown."""

    retriable = True


class MalformedResponseError(ClientError):
    """The other side does not speak Kafka's protocol, or not correctly."""


class UnsupportedRequestError(ClientError):
    """The broker and this client have no common version of an API."""


class BrokerError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, code: int, about: str, message: str | None = None) -> None:
        try:
            known: ErrorCode | None = ErrorCode(code)
        except ValueError:
            known = None
        name = known.name if known is not None else f"error code {code}"
        super().__init__(f"{about}: {message} ({name})" if message else f"{about}: {name}")
        self.code = code
        self.about = about
        self.message = message
        self.name = name
        self.retriable = known is not None and known.retriable


class SettingsError(ClientError, ValueError):
    """A setting that makes no sense by itself, or not beside another one."""


class ClosedError(ClientError):
    """The producer or consumer was closed, and is asked for something."""


class DeliveryTimedOutError(ClientError):
    """A record was not acknowledged within `delivery.timeout.ms`. The broker may have it all the same."""


class DeliveryFailedError(ClientError):
    """Records whose delivery nobody waited for were not delivered; `flush` and `close` say so."""


class BufferExhaustedError(ClientError):
    """No room for another record within `max.block.ms`: records come faster than the brokers take them."""


class RecordTooLargeError(ClientError):
    """A record that is larger than `max.request.size` or `buffer.memory`."""


class CommitFailedError(ClientError):
    """Offsets were not committed because the group goes on without this member: somebody else may have the partitions by now."""


class FencedInstanceError(ClientError):
    """Another consumer with the same `group.instance.id` has taken this one's place."""


class NoOffsetError(ClientError):
    """A partition has no committed offset, or one that is not in the log any more, and `auto.offset.reset` is none."""

    def __init__(self, message: str, tp: TopicPartition, offset: int | None) -> None:
        """`offset` is the one that is not in the log; None if nothing is committed."""
        super().__init__(message)
        self.tp = tp
        self.offset = offset


class LogTruncatedError(ClientError):
    """Records that this consumer has read are gone: a leader was elected without them (KIP-320)."""

    def __init__(self, message: str, tp: TopicPartition, offset: int) -> None:
        """`offset` is where the log was cut: the first one that may hold another record now; -1 if nobody knows."""
        super().__init__(message)
        self.tp = tp
        self.offset = offset


class RecordError(ClientError):
    """One record cannot be decoded; the consumer's position is still before it."""


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise what a response's error code says; nothing for NONE."""
    if code != ErrorCode.NONE:
        raise BrokerError(code, about, message)
