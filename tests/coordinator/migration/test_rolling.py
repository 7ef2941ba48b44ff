"""A deployment that moves a live group to the consumer protocol, one process after the other, and back again: nobody stops reading for long, no
partition is read twice, and offsets stay."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer.clients import Consumer, Library
from tests.coordinator.migration.clients import Classic, Kind, Member, reads, settle
from tests.coordinator.migration.world import World
from tidelog.coordinator.group.history import Event
from tidelog.wire.error_codes import ErrorCode as E

PARTITIONS = 7
KINDS = pytest.mark.parametrize("kind", list(Kind))
LIBRARIES = pytest.mark.parametrize("library", list(Library))


def modern(world: World, name: str, library: Library, instance: str | None = None) -> Consumer:
    topics = frozenset({"orders"})
    return Consumer(world, name, library, instance_id=instance, topics=topics)  # type: ignore[arg-type]


def commit_all(world: World, members: list[Member], offset: int) -> None:
    for member in members:
        generation = member.generation if isinstance(member, Classic) else member.epoch
        for place in reads(world, member):
            assert world.commit(member.member_id, generation, place, offset) == E.NONE


def assert_committed(world: World, offset: int) -> None:
    assert {world.committed(("orders", index)) for index in range(PARTITIONS)} == {offset}


@KINDS
@LIBRARIES
@pytest.mark.parametrize("first_the_new_one", [True, False], ids=["scale up, then down", "restart"])
def test_there_and_back(kind: Kind, library: Library, first_the_new_one: bool) -> None:
    world = World(orders=PARTITIONS)
    members: list[Member] = [Classic(world, f"classic-{n}", "orders", kind=kind) for n in range(3)]
    settle(world, *members)
    offset = 0
    for round_, is_modern in enumerate((True, False, True)):
        for number in range(3):
            name = f"round-{round_}-{number}"
            new: Member = (
                modern(world, name, library) if is_modern else Classic(world, name, "orders", kind=kind)
            )
            if first_the_new_one:
                settle(world, *members, new)
            members.pop(0).leave()
            if first_the_new_one:
                settle(world, *members)
            members.append(new)
            settle(world, *members)
            assert_committed(world, offset or -1)
            offset += 1
            commit_all(world, members, offset)
            assert_committed(world, offset)
        assert world.state() == ("consumer Stable" if is_modern else "classic Stable")
    assert len(world.events(Event.MIGRATED)) >= 3


@KINDS
@LIBRARIES
def test_static_members_there_and_back(kind: Kind, library: Library) -> None:
    world = World(orders=PARTITIONS)
    members: list[Member] = [
        Classic(world, f"classic-{n}", "orders", kind=kind, instance=f"i{n}") for n in range(3)
    ]
    settle(world, *members)
    shares = [reads(world, member) for member in members]
    for round_, is_modern in enumerate((True, False)):
        for number in range(3):
            name, instance = f"round-{round_}-{number}", f"i{number}"
            old = members[number]
            if isinstance(old, Classic):
                old.leave()
            else:
                old.leave(for_now=True)
            members[number] = (
                modern(world, name, library, instance)
                if is_modern
                else Classic(world, name, "orders", kind=kind, instance=instance)
            )
            settle(world, *members)
            assert [reads(world, member) for member in members] == shares, "a restart moves nothing"
        assert world.state() == ("consumer Stable" if is_modern else "classic Stable")


@KINDS
def test_the_coordinator_moves_after_every_step(kind: Kind) -> None:
    world = World(orders=PARTITIONS)
    members: list[Member] = [Classic(world, f"classic-{n}", "orders", kind=kind) for n in range(2)]
    settle(world, *members)
    for round_, is_modern in enumerate((True, False)):
        for number in range(2):
            name = f"round-{round_}-{number}"
            members.pop(0).leave()
            world.fail_over()
            members.append(
                modern(world, name, Library.JAVA) if is_modern else Classic(world, name, "orders", kind=kind)
            )
            if isinstance(members[-1], Consumer):
                members[-1].heartbeat()
            else:
                members[-1].step()
            world.fail_over()
            settle(world, *members)
        assert world.state() == ("consumer Stable" if is_modern else "classic Stable")
