"""Records that could not be dealt with, kept where they can be looked at and sent back: the format of dead-letter and retry topics.

A dead letter has the original key, value and headers, byte for byte, and beside them headers that say where it was, why it is here, and how often it was
tried. A redrive sends the original back to its topic and leaves a note in the dead-letter topic that it was; what a dead-letter topic still holds is what
has no such note. Parts of the product that cannot decode a record use the same format. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.records.record import Headers

PREFIX: Final = "dlq."
TOPIC, PARTITION, OFFSET, TIMESTAMP = "dlq.topic", "dlq.partition", "dlq.offset", "dlq.timestamp"
REASON, ATTEMPTS, GROUP, NOT_BEFORE = "dlq.reason", "dlq.attempts", "dlq.group", "dlq.not-before"
REDRIVEN: Final = "dlq.redriven"
"""In a note: partition:offset of the dead letter in its own topic."""
REASON_CHARACTERS_MAX: Final = 2_000


class Origin(NamedTuple):
    """Where a record was first, and what became of it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    reason: str = ""
    attempts: int = 0
    group: str = ""
    not_before_ms: int = 0
    """For a retry topic: not to be tried again earlier."""


def dead_letter_headers(headers: Headers, origin: Origin) -> Headers:
    """The original headers, and what is to be known of the record. Those of an earlier failure are replaced."""
    own = (
        (TOPIC, origin.topic.encode()),
        (PARTITION, str(origin.partition).encode()),
        (OFFSET, str(origin.offset).encode()),
        (TIMESTAMP, str(origin.timestamp_ms).encode()),
        (REASON, origin.reason[:REASON_CHARACTERS_MAX].encode()),
        (ATTEMPTS, str(origin.attempts).encode()),
        (GROUP, origin.group.encode()),
        (NOT_BEFORE, str(origin.not_before_ms).encode()),
    )
    return (*original_headers(headers), *own)


def original_headers(headers: Headers) -> Headers:
    return tuple((name, content) for name, content in headers if not name.startswith(PREFIX))


def origin_of(headers: Headers) -> Origin | None:
    """None if the record is no dead letter."""
    found = {
        name: (content or b"").decode("utf-8", "replace")
        for name, content in headers
        if name.startswith(PREFIX)
    }
    try:
        return Origin(
            found[TOPIC],
            int(found[PARTITION]),
            int(found[OFFSET]),
            int(found[TIMESTAMP]),
            found.get(REASON, ""),
            int(found.get(ATTEMPTS, "0")),
            found.get(GROUP, ""),
            int(found.get(NOT_BEFORE, "0")),
        )
    except (KeyError, ValueError):
        return None


def redriven_note(partition: int, offset: int) -> Headers:
    return ((REDRIVEN, f"{partition}:{offset}".encode()),)


def redriven_places(headers: Iterable[tuple[str, bytes | None]]) -> tuple[int, int] | None:
    """(partition, offset) of the dead letter that a note speaks of; None if this is no note."""
    for name, content in headers:
        if name == REDRIVEN and content is not None:
            partition, _, offset = content.decode("ascii", "replace").partition(":")
            if partition.isdecimal() and offset.isdecimal():
                return int(partition), int(offset)
    return None
