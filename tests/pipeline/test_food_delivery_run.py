"""The parts of `make run` without its processes: its directory, its port, what it starts and ends, what it shows."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.food_delivery.children import Child
from examples.food_delivery.expected import NOTHING, Total
from examples.food_delivery.minutes import Minutes
from examples.food_delivery.place import MARK, Place, PlaceError, require_free
from examples.food_delivery.view import Snapshot, lines, picture

MINUTE = 1_780_000_020_000


def test_a_directory_belongs_to_one_run_at_a_time_and_goes_on_where_it_was(tmp_path: Path) -> None:
    place = Place(tmp_path / "run")
    with place.taken(fresh=False):
        place.database.write_text("kept")
        with pytest.raises(PlaceError, match="another run"), Place(tmp_path / "run").taken(fresh=True):
            pass
    with place.taken(fresh=False):
        assert place.database.read_text() == "kept"


def test_a_fresh_start_removes_what_runs_left_and_nothing_else(tmp_path: Path) -> None:
    place, outside = Place(tmp_path / "run"), tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    with place.taken(fresh=False):
        (place.tables / "orders").mkdir(parents=True)
        place.database.touch()
        (place.directory / "link").symlink_to(outside)
    with place.taken(fresh=True):
        assert [each.name for each in place.directory.iterdir()] == [MARK]
    assert (outside / "precious").read_text() == "mine"


def test_a_directory_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(PlaceError, match="not made by this example"), Place(tmp_path).taken(fresh=True):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("before", "mark", "text"),
    [(1, "meta.properties", ""), (3, "cluster.json", '{"controller_ports": [1, 2, 3]}')],
)
def test_a_run_goes_on_with_as_many_brokers_as_it_had(
    tmp_path: Path, before: int, mark: str, text: str
) -> None:
    place = Place(tmp_path / "run")
    with place.taken(fresh=False):
        place.require_brokers(before)
        place.broker.mkdir()
        (place.broker / mark).write_text(text)
        place.require_brokers(before)
        with pytest.raises(
            PlaceError, match=f"make run BROKERS={before}, or begin anew with make run FRESH=1"
        ):
            place.require_brokers(before + 1)


def test_a_port_that_is_taken_is_said_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PlaceError, match=f"make run PORT={port + 100}"):
            require_free(port)
    require_free(port)


Started = Callable[[str], Child]


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return lambda code: Child(
        "child", [sys.executable, "-u", "-c", code], tmp_path / "logs" / "child.log", os.environ
    )


async def test_a_child_that_ends_leaves_its_last_lines(started: Started) -> None:
    child = started("for n in range(50): print('line', n)\nraise SystemExit(3)")
    await _until(lambda: child.exit_code is not None)
    assert child.exit_code == 3
    assert child.last_lines(2) == ["line 48", "line 49"]
    assert await child.stop(signal.SIGTERM, 1.0)


async def test_a_child_is_asked_first_and_killed_only_if_it_does_not_listen(started: Started) -> None:
    polite = started("import signal; print('up'); signal.sigwait({signal.SIGUSR1}) if 0 else signal.pause()")
    await _until(lambda: polite.last_lines() == ["up"])
    assert await polite.stop(signal.SIGTERM, 60.0)
    assert polite.exit_code == -signal.SIGTERM
    deaf = started(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"
    )
    await _until(lambda: deaf.last_lines() == ["up"])
    began_at = time.monotonic()
    assert not await deaf.stop(signal.SIGTERM, 0.3)
    assert deaf.exit_code == -signal.SIGKILL and time.monotonic() - began_at < 60


async def test_what_a_child_has_started_goes_with_it(started: Started) -> None:
    child = started(
        "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    )
    await _until(lambda: bool(child.last_lines()))
    grandchild = int(child.last_lines()[0])
    await child.stop(signal.SIGTERM, 5.0)
    await _until(lambda: not _is_alive(grandchild))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
async def test_children_end_when_their_parent_is_killed(started: Started, tmp_path: Path) -> None:
    parent = started(
        "import os, pathlib, sys, time\n"
        "from examples.food_delivery.children import Child\n"
        f"child = Child('inner', ['sleep', '600'], pathlib.Path({str(tmp_path)!r}) / 'inner.log', os.environ)\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    await _until(lambda: bool(parent.last_lines()))
    inner = int(parent.last_lines()[0])
    os.kill(parent.pid, signal.SIGKILL)
    await _until(lambda: parent.exit_code is not None and not _is_alive(inner))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def result(minute: str, restaurant: str, orders: int, cents: int) -> bytes:
    start = f"2026-01-01T{minute}:00.000Z"
    return json.dumps(
        {"window_start": start, "restaurant_id": restaurant, "orders": orders, "revenue_cents": cents}
    ).encode()


def test_a_newer_result_of_a_minute_replaces_the_older_and_old_minutes_become_a_sum() -> None:
    minutes = Minutes()
    for each in (("10:00", "a", 1, 10), ("10:00", "a", 3, 30), ("10:01", "b", 5, 50)):
        minutes.add(result(*each))
    assert minutes.total() == Total(8, 80)
    assert list(minutes.newest(1).values()) == [Total(5, 50)]
    assert sorted(minutes.newest(2).values()) == [Total(3, 30), Total(5, 50)]
    minutes.add(result("11:01", "a", 1, 1))
    minutes.add(result("11:02", "a", 1, 1))
    assert len(minutes.newest(1000)) == 2
    assert minutes.total() == Total(10, 82)


SNAPSHOT = Snapshot(
    per_minute={
        (MINUTE, "r1"): Total(4, 1_000),
        (MINUTE, "r2"): Total(1, 250),
        (MINUTE - 60_000, "r2"): Total(7, 123_456),
    },
    total=Total(120, 9_999_900),
    restaurants={"r1": "Kaze", "r2": "Umi"},
    open_orders={"cooking": 3},
    service_seconds={"delivered": 37.4, "ready": 50.0},
    late=2,
    dead_letters=1,
    last_reason="no JSON",
    lag=1_234,
)


def test_lines_say_what_was_counted() -> None:
    before, now, rest = lines(SNAPSHOT)
    assert before.endswith("7 orders, revenue 1,234.56; most: Umi 7")
    assert now.endswith("5 orders, revenue 12.50; most: Kaze 4, Umi 1")
    assert "in all 120 orders, revenue 99,999.00" in rest
    assert "on average cooking 50 s, delivery 37 s; late" in rest
    assert "late 2; dead letters 1 (last: no JSON); lag 1,234 records" in rest
    assert next(lines(Snapshot())) == "no results yet"


def test_the_picture_has_restaurants_by_rank_and_a_sum() -> None:
    from rich.console import Console

    output = io.StringIO()
    Console(file=output, width=100).print(picture(SNAPSHOT, "title"))
    text = output.getvalue()
    assert text.index("Umi") < text.index("Kaze") < text.index("all")
    row = next(line for line in text.splitlines() if "Umi" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["Umi", "1", "7", "·", "·", "1,237.06"]
    Console(file=output, width=100).print(picture(Snapshot(total=NOTHING), "title"))
    assert "waiting for the first results" in output.getvalue()
