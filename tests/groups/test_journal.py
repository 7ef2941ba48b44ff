"""The judge of the group tests finds what it is there to find, and nothing in a story without faults."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.groups.journal import Event, Journal, Life, Story


def event(at: float, kind: str, **fields: Any) -> Event:
    return Event(kind, at, fields)


def assigned(at: float, *partitions: int) -> Event:
    return event(at, "assigned", partitions=list(partitions))


def revoked(at: float, *partitions: int) -> Event:
    return event(at, "revoked", partitions=list(partitions))


def record(at: float, partition: int, offset: int) -> Event:
    return event(at, "record", partition=partition, offset=offset, value=f"{partition}-{offset}")


def commit(at: float, number: int, position: int) -> list[Event]:
    """Partition 0, asked and acknowledged."""
    return [
        event(at, "committing", commit=number, positions={"0": position}),
        event(at, "committed", commit=number, positions={"0": position}),
    ]


FIRST = [assigned(1, 0), record(2, 0, 0), record(3, 0, 1), *commit(4, 1, 2), revoked(5, 0)]


def test_a_right_handover_has_no_faults() -> None:
    second = [assigned(6, 0), record(7, 0, 2)]
    story = Story([Life("a", FIRST), Life("b", second)])
    assert story.faults() == []
    assert story.owners() == {0: ["b"]}
    assert story.shares() == {"b": {0}}
    assert story.delivered() == {"0-0", "0-1", "0-2"}
    assert story.committed() == {0: 2}
    assert story.repeated() == 0


def test_two_owners_are_found() -> None:
    story = Story([Life("a", FIRST), Life("b", [assigned(4.9, 0)])])
    (fault,) = story.faults()
    assert fault.startswith("two owners: a owns 0")


def test_two_owners_are_found_behind_a_short_one() -> None:
    long, short, late = [assigned(1, 0)], [assigned(2, 0), revoked(3, 0)], [assigned(4, 0)]
    story = Story([Life("a", long), Life("b", short), Life("c", late)])
    assert len(story.overlaps()) == 2


def test_a_killed_owner_owns_until_its_kill() -> None:
    alive = [*FIRST[:-1]]
    assert not Story([Life("a", alive, killed_at=5), Life("b", [assigned(6, 0)])]).overlaps()
    assert Story([Life("a", alive, killed_at=7), Life("b", [assigned(6, 0)])]).overlaps()
    assert Story([Life("a", alive), Life("b", [assigned(6, 0)])]).overlaps()


def test_the_same_member_may_get_a_partition_back() -> None:
    story = Story([Life("a", [*FIRST, assigned(6, 0), record(7, 0, 2)])])
    assert story.faults() == []


def test_who_gets_back_what_nobody_else_has_had_may_go_on_where_it_was() -> None:
    first = [
        assigned(1, 0),
        record(2, 0, 0),
        record(3, 0, 1),
        *commit(4, 1, 1),
        revoked(5, 0),
        assigned(6, 0),
    ]
    for offset, faults in ((1, 0), (2, 0), (0, 1), (3, 1)):
        assert len(Story([Life("a", [*first, record(7, 0, offset)])]).wrong_starts()) == faults, offset
    other = Life("b", [assigned(5.1, 0), record(5.2, 0, 1), revoked(5.3, 0)])
    assert Story([Life("a", [*first, record(7, 0, 2)]), other]).wrong_starts() != []


def test_reading_below_the_commit_and_skipping_are_found() -> None:
    for offset in (0, 1, 3):
        story = Story([Life("a", FIRST), Life("b", [assigned(6, 0), record(7, 0, offset)])])
        assert len(story.wrong_starts()) == 1, offset


def test_a_commit_without_an_answer_may_have_been_made_or_not() -> None:
    first = [*FIRST[:-1], record(4.5, 0, 2), event(4.6, "committing", commit=2, positions={"0": 3})]
    for offset, faults in ((2, 0), (3, 0), (1, 1), (4, 1)):
        lives = [Life("a", first, killed_at=5), Life("b", [assigned(6, 0), record(7, 0, offset)])]
        assert len(Story(lives).wrong_starts()) == faults, offset


@pytest.mark.parametrize(("answered", "right"), [(5.5, (3,)), (6.5, (2, 3))])
def test_a_commit_that_is_answered_late_may_have_been_made_late(
    answered: float, right: tuple[int, ...]
) -> None:
    asked = [record(4.5, 0, 2), event(4.6, "committing", commit=2, positions={"0": 3})]
    answer = event(answered, "committed", commit=2, positions={"0": 3})
    for offset in range(5):
        lives = [
            Life("a", [*FIRST[:-1], *asked, revoked(5, 0), answer]),
            Life("b", [assigned(6, 0), record(7, 0, offset)]),
        ]
        assert (Story(lives).wrong_starts() == []) == (offset in right), offset


def test_a_gap_and_a_stray_are_found() -> None:
    story = Story([Life("a", [assigned(1, 0), record(2, 0, 0), record(3, 0, 2), record(3, 1, 0)])])
    assert len(story.gaps()) == 1
    assert len(story.strays) == 1


def test_a_stall_counts_from_when_the_record_was_there() -> None:
    life = Life("a", [assigned(0, 0), record(10, 0, 0), record(20, 0, 1), record(25, 0, 2)])
    there = {(0, 0): 1.0, (0, 1): 18.0, (0, 2): 19.0}
    assert Story([life]).longest_stall(there) == (5.0, "a", 0, 25)


def test_what_never_arrived_is_a_stall_too() -> None:
    life = Life("a", [assigned(0, 0), record(10, 0, 0), revoked(30, 0)])
    assert Story([life]).longest_stall({(0, 0): 1.0, (0, 1): 12.0}).seconds == 18.0
    assert Story([life]).longest_stall({(0, 0): 1.0}).seconds == 0.0
    assert Story([Life("a", life.events[:-1])]).longest_stall({(0, 1): 12.0}, until=15.0).seconds == 3.0


def test_a_torn_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    assert journal.refresh() == []
    line = json.dumps({"at": 1.5, "event": "assigned", "partitions": [1]}).encode() + b"\n"
    path.write_bytes(line + line[:10])
    assert journal.refresh() == [Event("assigned", 1.5, {"partitions": [1]})]
    path.write_bytes(line + line)
    assert len(journal.refresh()) == 2
    assert Story([Life("a", journal.events)]).ownerships[0].until == math.inf
