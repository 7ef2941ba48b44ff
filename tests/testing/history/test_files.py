"""Histories on disk: what a killed process leaves, files of several processes, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.history.story import P0, Story
from tidelog.testing.history import check
from tidelog.testing.history.files import HistoryFileError, read_histories, read_history, write_history
from tidelog.testing.history.operations import NEVER, Outcome
from tidelog.testing.history.recorder import Recorder


def test_the_lines_are_those_of_the_documentation(tmp_path: Path) -> None:
    story = Story()
    story.ack("pizza", 41)
    story.poll((41, "pizza"))
    write_history(story.history, tmp_path / "h")
    assert (tmp_path / "h").read_text().splitlines() == [
        '{"event":"send","id":1,"process":"p","at":1.0,"topic":"t","partition":0,"value":"pizza"}',
        '{"event":"ok","id":1,"at":2.0,"offset":41,"partition":0}',
        '{"event":"poll","id":3,"process":"c","at":3.0}',
        '{"event":"ok","id":3,"at":4.0,"records":[["t",0,[[41,"pizza"]]]]}',
    ]


def test_every_kind_of_operation_comes_back(tmp_path: Path) -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction, acks=1, idempotent=False)
    story.commit(transaction)
    story.refuse("b")
    story.lose_answer("ü\n", tp=P0._replace(topic="ö"))
    story.begin_send(7)
    story.assign(3)
    story.seek(None)
    story.history.subscribe("c", story.tick(), ["t"])
    story.rebalance(assigned=[P0], revoked=[P0])
    story.poll((0, "a"), final=True, committed=False)
    story.trim(1)
    write_history(story.history, tmp_path / "h")
    again = read_history(tmp_path / "h")
    for kind in ("sends", "polls", "moves", "trims"):
        was, now = getattr(story.history, kind), getattr(again, kind)
        assert [_fields(operation) for operation in now] == [_fields(operation) for operation in was], kind
    assert [send.value for send in again.transactions[0].sends] == ["a"]
    assert again.transactions[0].endings[0].outcome is Outcome.OK


def _fields(operation: object) -> dict[str, object]:
    names = [name for kind in type(operation).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(operation, name) for name in names if name != "transaction"}


def test_files_are_merged_by_time(tmp_path: Path) -> None:
    """Each process has only half of the story: what the first has read is sent too late by the second."""
    now = 0.0

    def clock() -> float:
        return now

    with Recorder(tmp_path / "1", clock=clock) as first, Recorder(tmp_path / "2", clock=clock) as second:
        early, late = second.send("p", "t", 0, "a"), second.send("p", "t", 0, "b")
        now = 1.0
        second.sent(early, 1)
        poll = first.poll("c")
        now = 2.0
        first.polled(poll, [(P0, 1, "a")])
        now = 3.0
        wrong = second.send("p2", "t", 0, "c")
        now = 4.0
        second.sent(wrong, 0)
    history = read_histories([tmp_path / "1", tmp_path / "2"])
    assert check(history).names == {"real-time-order", "lost-write"}
    assert [send.value for send in history.sends] == ["a", "b", "c"]
    assert late.completed == NEVER and history.sends[1].outcome is Outcome.INFO


def test_a_killed_process_leaves_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with Recorder(path) as recorder:
        recorder.sent(recorder.send("p", "t", 0, "a"), 0)
        recorder.send("p", "t", 0, "b")
    path.write_bytes(path.read_bytes() + b'{"event":"ok","id":3,"a')
    history = read_history(path)
    assert [(send.value, send.outcome) for send in history.sends] == [("a", "ok"), ("b", "info")]


@pytest.mark.parametrize(
    "text",
    [
        "not json\n",
        "{}\n",
        '{"event":"ok","id":1,"at":1}\n',
        '{"event":"dance","id":1,"process":"p","at":1}\n',
    ],
)
def test_what_is_no_history_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "h").write_text(text)
    with pytest.raises(HistoryFileError, match=r"/h"):
        read_history(tmp_path / "h")


def test_two_files_must_not_tell_of_one_process(tmp_path: Path) -> None:
    for name in "12":
        with Recorder(tmp_path / name) as recorder:
            recorder.send("p", "t", 0, name)
    with pytest.raises(HistoryFileError, match="both tell of the process 'p'"):
        read_histories([tmp_path / "1", tmp_path / "2"])


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    Recorder(tmp_path / "h").close()
    with pytest.raises(FileExistsError):
        Recorder(tmp_path / "h")
