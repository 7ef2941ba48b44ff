"""An answer: there at once, or a place in the queue of answers until it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tidelog.storage.disk import FileRange
from tidelog.wire.types import Part

if TYPE_CHECKING:
    from tidelog.broker.connection import Connection

Answer: TypeAlias = bytes | Sequence[Part]
"""A whole response frame: in one piece, or in parts of which some may be file ranges."""


class Pending:
    """An answer that is not there yet and keeps its place in the queue.

    `alone`: requests behind it are not looked at before it is there, as Kafka does for all. So a connection holds at most two
    parked fetches and one admin request, whatever it pipelines, and what it asks for after CreateTopics sees the topic.
    """

    __slots__ = ("alone", "connection", "done", "on_cancel", "on_next_request", "parts", "weight")

    def __init__(self, connection: Connection, *, alone: bool = False, weight: int = 0) -> None:
        self.connection = connection
        self.alone = alone
        self.weight = weight  # bytes, about, that are kept for it
        self.done = False
        self.parts: Answer = ()
        self.on_cancel: Callable[[], None] | None = None
        """Called when the connection goes away first: whoever works on the answer may stop."""
        self.on_next_request: Callable[[], None] | None = None
        """Called before the client's next request is handled, whose answer has to wait for this one."""

    def complete(self, parts: Answer, *, at_once: bool = False) -> None:
        """Deliver the answer (no parts: this request gets none). The files of an answer nobody waits for are released.

        `at_once`: no other answer of this connection is about to be complete, so that nothing is won by sending them together.
        """
        assert not self.done, "a request is answered once"
        self.done = True
        self.on_cancel = None
        if self.connection.closed:
            release(parts)
        else:
            self.parts = parts
            self.connection.answer_ready(at_once=at_once)


def release(answer: Answer) -> None:
    if not isinstance(answer, bytes):
        for part in answer:
            if isinstance(part, FileRange):
                part.release()
