"""A record on its way in: as interceptors see it, and the checks that only bytes go further."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tidelog.records.record import Headers


class OutgoingRecord(NamedTuple):
    """A record before it is serialized, as interceptors see it; they return another one."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


Interceptor = Callable[[OutgoingRecord], OutgoingRecord]


def as_bytes(topic: str, what: str, given: object) -> bytes:
    """A copy of what could still change; TypeError for what is no bytes."""
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise TypeError(
        f"the {what} of a record for {topic} is {type(given).__name__}, not bytes: give it as bytes, or the producer a serializer"
    )


def as_headers(topic: str, headers: Iterable[tuple[str, Any]]) -> Headers:
    checked: list[tuple[str, bytes | None]] = []
    for name, content in headers:
        if not isinstance(name, str):
            raise TypeError(
                f"a header of a record for {topic} is named by {type(name).__name__}, not by a string"
            )
        checked.append((name, None if content is None else as_bytes(topic, f"header {name!r}", content)))
    return tuple(checked)
