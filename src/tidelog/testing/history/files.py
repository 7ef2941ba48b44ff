"""A history as JSON lines: one line per event, so that a process that is killed leaves everything it had begun.

    {"event": "send", "id": 7, "process": "p1", "at": 12.5, "topic": "orders", "partition": 0, "value": "pizza"}
    {"event": "ok", "id": 7, "at": 12.6, "offset": 41}

Owns the format. An id names an operation within its file; an event of an operation follows the line that began it. A field that has its default is left out. Files of several processes of one machine are
merged by time (`read_histories`): the monotonic clock is the same for all of them. A last line without its end is what a kill left, and is not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.history import History
from tidelog.testing.history.operations import (
    ACKS_ALL,
    UNKNOWN_OFFSET,
    Assign,
    Ending,
    Operation,
    Outcome,
    Poll,
    Rebalance,
    Seek,
    Send,
    Subscribe,
    Transaction,
    Trim,
)

Event = dict[str, Any]


class HistoryFileError(ValueError):
    """A file that is no history, or files that do not belong together."""


# ---- operations to events


def began(operation: Operation | Transaction) -> Event:
    """The line that begins an operation."""
    event: Event = {"event": _NAMES[type(operation)], "id": operation.begun, "process": operation.process}
    if isinstance(operation, Transaction):
        return event | {"at": operation.began}
    event["at"] = operation.invoked
    match operation:
        case Send():
            event |= {"topic": operation.topic, "partition": operation.partition, "value": operation.value}
            if operation.acks != ACKS_ALL:
                event["acks"] = operation.acks
            if not operation.idempotent:
                event["idempotent"] = False
            if operation.transaction is not None:
                event["transaction"] = operation.transaction.begun
        case Poll():
            event |= {"final": True} if operation.final else {}
            event |= {} if operation.committed else {"committed": False}
        case Assign():
            event["positions"] = [[*tp, offset] for tp, offset in operation.positions.items()]
        case Subscribe():
            event["topics"] = operation.topics
        case Rebalance():
            event |= {
                "assigned": [list(tp) for tp in operation.assigned],
                "revoked": [list(tp) for tp in operation.revoked],
            }
        case Seek() | Trim():
            event |= {"partition": list(operation.tp), "offset": operation.offset}
        case Ending():
            event |= {"transaction": operation.transaction.begun, "commit": operation.is_commit}
    return event


def ended(operation: Operation) -> Event:
    """The line that ends one."""
    event: Event = {"event": str(operation.outcome), "id": operation.begun, "at": operation.completed}
    if operation.outcome is not Outcome.OK:
        return event | ({"why": operation.why} if operation.why else {})
    match operation:
        case Send():
            event |= {"offset": operation.offset, "partition": operation.partition}
        case Poll():
            event["records"] = [[*tp, pairs] for tp, pairs in operation.records.items()]
    return event


def line(event: Event) -> str:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=True) + "\n"


def write_history(history: History, path: Path) -> None:
    begun: list[Operation | Transaction] = [
        *history.sends, *history.polls, *history.moves, *history.transactions, *history.trims,
        *(ending for transaction in history.transactions for ending in transaction.endings),
    ]  # fmt: skip
    events = [(operation.begun, began(operation)) for operation in begun]
    events += [
        (operation.ended, ended(operation))
        for operation in begun
        if not isinstance(operation, Transaction | Assign | Subscribe | Rebalance | Seek) and operation.ended
    ]
    events.sort(key=itemgetter(0))
    with path.open("w", encoding="ascii") as file:
        file.writelines(line(event) for _, event in events)


# ---- events to operations


def read_history(path: Path) -> History:
    return read_histories([path])


def read_histories(paths: Iterable[Path]) -> History:
    """One history of several files, whose events are put in the order of their times."""
    paths = list(paths)
    history = History()
    owners: dict[str, Path] = {}
    replays = {path: _Replay(history) for path in paths}
    for _at, _order, event, path in merge(
        *(_events(path, order) for order, path in enumerate(paths)), key=itemgetter(0, 1)
    ):
        process = event.get("process")
        if process is not None and owners.setdefault(process, path) != path:
            raise HistoryFileError(f"{path} and {owners[process]} both tell of the process {process!r}")
        try:
            replays[path].apply(event)
        except (KeyError, TypeError) as error:
            raise HistoryFileError(
                f"{path}: {event} does not follow from what is before it: {error!r}"
            ) from error
    return history


def _events(path: Path, order: int) -> Iterator[tuple[float, int, Event, Path]]:
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n"):
                return
            try:
                event = json.loads(text)
                yield event["at"], order, event, path
            except (ValueError, KeyError, TypeError) as error:
                raise HistoryFileError(f"{path}:{number} is no event of a history: {error!r}") from error


class _Replay:
    """The events of one file, told to a history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._operations: dict[int, Any] = {}

    def apply(self, event: Event) -> None:
        name = event["event"]
        begin = _BEGIN.get(name)
        if begin is not None:
            self._operations[event["id"]] = begin(self, event)
            return
        operation, at = self._operations.pop(event["id"]), event["at"]
        if name == Outcome.FAIL:
            self._history.failed(operation, at, event.get("why", ""))
        elif name == Outcome.INFO:
            self._history.unknown(operation, at, event.get("why", ""))
        elif name != Outcome.OK:
            raise KeyError(name)
        elif isinstance(operation, Send):
            offset = event.get("offset", UNKNOWN_OFFSET)
            self._history.sent(operation, at, offset, partition=event.get("partition"))
        elif isinstance(operation, Poll):
            records = {
                TopicPartition(topic, partition): [(offset, value) for offset, value in pairs]
                for topic, partition, pairs in event["records"]
            }
            self._history.polled_by_partition(operation, at, records)
        else:
            self._history.done(operation, at)

    def _send(self, event: Event) -> Send:
        transaction = self._operations[event["transaction"]] if "transaction" in event else None
        return self._history.send(
            event["process"], event["at"], event["topic"], event["partition"], event["value"],
            acks=event.get("acks", ACKS_ALL), idempotent=event.get("idempotent", True), transaction=transaction,
        )  # fmt: skip

    def _poll(self, event: Event) -> Poll:
        final, committed = event.get("final", False), event.get("committed", True)
        return self._history.poll(event["process"], event["at"], final=final, committed=committed)

    def _assign(self, event: Event) -> Assign:
        positions = {
            TopicPartition(topic, partition): offset for topic, partition, offset in event["positions"]
        }
        return self._history.assign(event["process"], event["at"], positions)

    def _subscribe(self, event: Event) -> Subscribe:
        return self._history.subscribe(event["process"], event["at"], event["topics"])

    def _rebalance(self, event: Event) -> Rebalance:
        assigned = [TopicPartition(*tp) for tp in event["assigned"]]
        revoked = [TopicPartition(*tp) for tp in event["revoked"]]
        return self._history.rebalance(event["process"], event["at"], assigned=assigned, revoked=revoked)

    def _seek(self, event: Event) -> Seek:
        tp = TopicPartition(*event["partition"])
        return self._history.seek(event["process"], event["at"], tp, event["offset"])

    def _trim(self, event: Event) -> Trim:
        tp = TopicPartition(*event["partition"])
        return self._history.trim(event["process"], event["at"], tp, event["offset"])

    def _transaction(self, event: Event) -> Transaction:
        return self._history.begin(event["process"], event["at"])

    def _end(self, event: Event) -> Ending:
        return self._history.end(self._operations[event["transaction"]], event["at"], commit=event["commit"])


_NAMES: Final[dict[type, str]] = {
    Send: "send",
    Poll: "poll",
    Assign: "assign",
    Subscribe: "subscribe",
    Rebalance: "rebalance",
    Seek: "seek",
    Trim: "trim",
    Transaction: "begin",
    Ending: "end",
}
_BEGIN: Final[dict[str, Callable[[_Replay, Event], object]]] = {
    "send": _Replay._send,
    "poll": _Replay._poll,
    "assign": _Replay._assign,
    "subscribe": _Replay._subscribe,
    "rebalance": _Replay._rebalance,
    "seek": _Replay._seek,
    "trim": _Replay._trim,
    "begin": _Replay._transaction,
    "end": _Replay._end,
}
