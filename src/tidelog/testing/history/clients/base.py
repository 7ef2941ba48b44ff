"""What all recording clients share: names, labels for values, and what an error means.

A wrapped producer takes records one after the other, whoever calls: the order of its sends in the history is the order in which the client has taken them over, and with that
what an idempotent producer promises. How long that takes is counted to the send.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.operations import ACKS_ALL, Poll, Send, Transaction, Value
from tidelog.testing.history.recorder import Recorder
from tidelog.wire.error_codes import ErrorCode

Label = Callable[[Any], Value]

REFUSED: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
    }
)
"""A broker that says so has judged what is in the batch, and each of its repeats alike. After any other error an earlier attempt may have been stored."""


def text(value: Any) -> Value:
    """The value itself, as text; a label of one's own is for values that are long, or not unique."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


class Recorded:
    """Everything that is not recorded goes to the client itself."""

    def __init__(self, client: Any, recorder: Recorder, process: str, *, label: Label = text) -> None:
        self.client = client
        self.recorder = recorder
        self.process = process
        self._label = label

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


class RecordedProducer(Recorded):
    def __init__(
        self,
        client: Any,
        recorder: Recorder,
        process: str,
        *,
        label: Label = text,
        acks: int = ACKS_ALL,
        idempotent: bool = True,
    ) -> None:
        """`acks` and `idempotent` are those of the client, which not every library tells."""
        super().__init__(client, recorder, process, label=label)
        self._acks = acks
        self._idempotent = idempotent
        self._transaction: Transaction | None = None

    def _begin_send(self, topic: str, partition: int | None, value: Any) -> Send:
        return self.recorder.send(
            self.process,
            topic,
            partition,
            self._label(value),
            acks=self._acks,
            idempotent=self._idempotent,
            transaction=self._transaction,
        )

    def _not_sent(self, send: Send, error: BaseException, code: int | None) -> None:
        if code in REFUSED:
            self.recorder.failed(send, repr(error))
        else:
            self.recorder.unknown(send, repr(error))


class BlockingProducer(RecordedProducer):
    """For libraries without an event loop: any thread may send."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._turn = threading.Lock()

    def begin_transaction(self) -> None:
        self.client.begin_transaction()
        self._transaction = self.recorder.begin(self.process)

    def commit_transaction(self, *arguments: Any) -> None:
        self._end(self.client.commit_transaction, arguments, commit=True)

    def abort_transaction(self, *arguments: Any) -> None:
        self._end(self.client.abort_transaction, arguments, commit=False)

    def _end(self, call: Callable[..., Any], arguments: tuple[Any, ...], *, commit: bool) -> None:
        assert self._transaction is not None, "no transaction was begun through this wrapper"
        ending = self.recorder.end(self._transaction, commit=commit)
        try:
            call(*arguments)
        except BaseException as error:
            self.recorder.unknown(ending, repr(error))
            raise
        self.recorder.done(ending)
        self._transaction = None


class RecordedConsumer(Recorded):
    def __init__(
        self,
        client: Any,
        recorder: Recorder,
        process: str,
        *,
        label: Label = text,
        committed: bool = True,
        final: bool = False,
    ) -> None:
        """`committed`: reads with `isolation.level=read_committed`, or there are no transactions. `final`: reads everything from the beginning to close a history."""
        super().__init__(client, recorder, process, label=label)
        self._committed = committed
        self._final = final

    def _begin_poll(self) -> Poll:
        return self.recorder.poll(self.process, final=self._final, committed=self._committed)

    def _moved(self, assigned: Iterable[Any] = (), revoked: Iterable[Any] = ()) -> None:
        self.recorder.rebalance(self.process, assigned=_plain(assigned), revoked=_plain(revoked))


def _plain(partitions: Iterable[Any]) -> list[TopicPartition]:
    """Every library has a partition of its own."""
    return sorted(TopicPartition(tp.topic, tp.partition) for tp in partitions)
