"""What follows from the tries of `bench.failover`, and that a run which was stopped goes on."""

from __future__ import annotations

import json
from pathlib import Path

from bench.failover_tries import KILL, PAUSE, STOP, TriesFile, Try, missed, rows


def made(
    outage: float, *, kind: str = KILL, of_controller: bool = False, detected: float | None = 0.5
) -> Try:
    return Try("tidelog", "abc", kind, of_controller, None, detected, outage, 0.1)


def test_rows_split_an_outage_into_detection_and_what_comes_after() -> None:
    found = rows([made(1.0), made(3.0, of_controller=True), made(2.0, detected=None)])
    assert [(row.was_controller, row.outage) for row in found] == [
        (None, (3, 2.0, 3.0)),
        (False, (2, 1.5, 2.0)),
        (True, (1, 3.0, 3.0)),
    ]
    assert found[0].detected == (2, 0.5, 0.5)
    assert found[0].election == (2, 1.5, 2.5)
    assert found[0].controller is None


def test_a_try_from_before_newcomers_were_counted_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "tries.jsonl"
    known = made(1.0)._asdict()
    del known["newcomer"]
    path.write_text(json.dumps(known) + "\n")
    assert TriesFile(path).read() == [made(1.0)]
    (row, _) = rows([made(6.0, kind=PAUSE)._replace(newcomer=0.1), made(7.0, kind=PAUSE)])
    assert row.newcomer == (1, 0.1, 0.1)


def test_an_aim_is_missed_by_its_middle_or_by_its_worst() -> None:
    assert missed([made(1.9), made(2.9)], "tidelog") == [
        "kill -9: p50 2.40 s, max 2.90 s; the aim is 2 and 3 s"
    ]
    assert missed([made(1.0), made(1.0), made(3.1)], "tidelog") != []
    assert missed([made(1.0), made(0.19, kind=STOP)], "tidelog") == []
    assert missed([made(0.21, kind=STOP)], "tidelog") != []
    assert missed([made(9.0)], "kafka") == []


def test_tries_are_read_again(tmp_path: Path) -> None:
    file = TriesFile(tmp_path / "below" / "tries.jsonl")
    assert file.read() == []
    for each in (made(1.0), made(2.0, kind=STOP)):
        file.add(each)
    assert file.read() == [made(1.0), made(2.0, kind=STOP)]
