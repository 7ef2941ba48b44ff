"""Groups as nobody should have them: ten thousand members, ten megabytes of metadata, requests that make no sense.

Every error is the one that Apache Kafka 4.3.1 gives, and afterwards the broker is alive, the group is what it was and no
commit is lost.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.groups.conftest import new_broker
from tests.groups.crew import Crew
from tests.groups.multitude import ConsumerMember, Multitude, allow_descriptors, beat_once, short
from tests.groups.wire import RawMember, Wire, code, gather
from tidelog.wire.messages import (
    consumer_group_describe,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    offset_commit,
)
from tools.peers.process import Peer

MEMBERS = int(os.environ.get("TIDELOG_TEST_MEMBERS", "10000"))
METADATA_BYTES = 10_000_000
PARTITIONS = 100
MakeCrew = Callable[[str, int], Crew]


@pytest.fixture(scope="module")
def great_broker() -> Iterator[Peer]:
    """A broker for this module alone: what it goes through must not be felt by other tests."""
    if os.environ.get("TIDELOG_TEST_BOOTSTRAP"):
        pytest.skip("ten thousand connections are for a broker of one's own")
    with new_broker(
        group_initial_rebalance_delay_ms="3000", group_consumer_session_timeout_ms="45000"
    ) as peer:
        yield peer


@pytest.fixture
def bystander(great_broker: Peer, make_crew: MakeCrew) -> Iterator[Crew]:
    """A group with a commit, which is still there after the test."""
    crew = make_crew(great_broker.bootstrap, 1)
    with Wire(crew.bootstrap) as wire:
        wire.wait_for_coordinator(crew.group)
        assert wire.commit(crew.group, crew.topic, 4711) == "NONE"
    yield crew
    assert great_broker.is_running
    with Wire(crew.bootstrap) as wire:
        assert wire.committed(crew.group, crew.topic) == 4711


# ---- ten thousand


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_ten_thousand_members_of_a_classic_group(
    great_broker: Peer, bystander: Crew, report: Callable[[str], None]
) -> None:
    if not allow_descriptors(MEMBERS):
        pytest.skip(f"the limit of open files allows no {MEMBERS} connections")
    group = f"{bystander.group}-many"
    with Wire(great_broker.bootstrap) as wire:
        wire.wait_for_coordinator(group)
    multitude = Multitude(group, MEMBERS)

    async def live() -> tuple[float, float]:
        try:
            await multitude.open(great_broker.bootstrap)
            began = time.monotonic()
            await multitude.gather()
            settled = time.monotonic()
            check(multitude)
            beats = await asyncio.gather(*(member.heartbeat() for member in multitude.members))
            assert set(beats) == {"NONE"}
            beaten = time.monotonic()
            first = multitude.members[0]
            left = await first.leave(multitude.members)
            assert {code(left), *map(code, left.members)} == {"NONE"}
            return settled - began, beaten - settled
        finally:
            multitude.close()

    def check(multitude: Multitude) -> None:
        for member in multitude.members:
            assert member.assignment == short(member.member_id)
        with Wire(great_broker.bootstrap) as wire:
            (described,) = wire.ask(describe_groups.DescribeGroupsRequest(groups=[group])).groups
            assert (described.group_state, len(described.members)) == ("Stable", MEMBERS)

    join_seconds, beat_seconds = asyncio.run(live())
    with Wire(great_broker.bootstrap) as wire:
        (described,) = wire.ask(describe_groups.DescribeGroupsRequest(groups=[group])).groups
        assert (described.group_state, described.members) == ("Empty", [])
    report(
        f"{MEMBERS} classic members in one generation after {join_seconds:.1f} s "
        f"(generation {multitude.members[0].generation}), a heartbeat of each in {beat_seconds:.1f} s; "
        f"{great_broker.rss_peak_bytes() / 1e6:.0f} MB at most"
    )


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_ten_thousand_members_of_a_consumer_group(
    great_broker: Peer, bystander: Crew, make_crew: MakeCrew, report: Callable[[str], None]
) -> None:
    """And no partition is given to one of them while another has it."""
    crew = make_crew(great_broker.bootstrap, PARTITIONS)
    members = [ConsumerMember(crew.group, crew.topic) for _ in range(MEMBERS)]
    owners: dict[int, str] = {}
    with Wire(great_broker.bootstrap) as wire:
        wire.wait_for_coordinator(crew.group)
        began = time.monotonic()
        rounds = 1
        while beat_once(wire, members, owners) or len(owners) < PARTITIONS:
            rounds += 1
            assert time.monotonic() - began < 300, f"after {rounds} rounds {len(owners)} partitions are owned"
        seconds = time.monotonic() - began
        asked = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[crew.group])
        (described,) = wire.ask(asked).groups
        assert (described.group_state, len(described.members)) == ("Stable", MEMBERS)
    report(f"{MEMBERS} consumer members settled after {rounds} heartbeats of each, {seconds:.1f} s")


# ---- ten megabytes


@pytest.mark.timeout(120)
def test_ten_megabytes_of_metadata(great_broker: Peer, bystander: Crew) -> None:
    """They are taken into memory; the group's record would be larger than a batch may be, so the sync fails."""
    group = f"{bystander.group}-heavy"
    heavy = RawMember(great_broker.bootstrap, group, "range", metadata=bytes(METADATA_BYTES))
    heavy.send_join()
    assert heavy.receive_join() == "NONE"
    assert code(heavy.sync({heavy.member_id: b"all"})) == "UNKNOWN_SERVER_ERROR"
    heavy.metadata = b"light"
    gather(heavy)
    answer = heavy.sync({heavy.member_id: b"all"})
    assert (code(answer), answer.assignment) == ("NONE", b"all")
    heavy.close()


# ---- no sense


@pytest.fixture
def member(great_broker: Peer, bystander: Crew) -> Iterator[RawMember]:
    """The only member of a group, with an assignment and a commit."""
    member = RawMember(great_broker.bootstrap, f"{bystander.group}-sense", "range")
    gather(member)
    assert member.sync({member.member_id: b"mine"}).error_code == 0
    yield member
    member.close()


@pytest.mark.timeout(120)
def test_requests_that_make_no_sense_change_nothing(
    great_broker: Peer, bystander: Crew, member: RawMember
) -> None:
    topic, generation, own = bystander.topic, member.generation, member.member_id
    mine: dict[str, Any] = {"generation": generation, "member_id": own}
    foreign = "by-hand-00000000-0000-0000-0000-000000000000"
    with Wire(great_broker.bootstrap) as wire:

        def commit(topic: str = topic, offset: int = 1, **fields: Any) -> str:
            return wire.commit(member.group, topic, offset, **fields)

        assert commit(offset=17, **mine) == "NONE"
        # another protocol, another kind of it, none at all, somebody else's id
        assert join(wire, member.group, "unknown") == "INCONSISTENT_GROUP_PROTOCOL"
        assert join(wire, member.group, "range", protocol_type="connect") == "INCONSISTENT_GROUP_PROTOCOL"
        assert join(wire, member.group) == "INCONSISTENT_GROUP_PROTOCOL"
        assert join(wire, member.group, "range", protocol_type="") == "INCONSISTENT_GROUP_PROTOCOL"
        assert join(wire, member.group, "range", member_id=foreign) == "UNKNOWN_MEMBER_ID"
        # the wrong generation, the wrong member, neither
        assert code(member.sync(generation_id=generation + 1)) == "ILLEGAL_GENERATION"
        assert code(member.sync(member_id=foreign)) == "UNKNOWN_MEMBER_ID"
        assert code(member.sync(protocol_name="unknown")) == "INCONSISTENT_GROUP_PROTOCOL"
        assert beat(wire, member.group, generation + 1, own) == "ILLEGAL_GENERATION"
        assert beat(wire, member.group, generation - 1, own) == "ILLEGAL_GENERATION"
        assert beat(wire, member.group, generation, foreign) == "UNKNOWN_MEMBER_ID"
        assert leave(wire, member.group, foreign) == "UNKNOWN_MEMBER_ID"
        assert commit(generation=generation + 1, member_id=own) == "ILLEGAL_GENERATION"
        assert commit(generation=generation, member_id=foreign) == "UNKNOWN_MEMBER_ID"
        assert commit() == "UNKNOWN_MEMBER_ID"
        # what does not exist, and groups that do not
        assert commit("no-such-topic", **mine) == "UNKNOWN_TOPIC_OR_PARTITION"
        assert commit(partition=1, **mine) == "UNKNOWN_TOPIC_OR_PARTITION"
        assert beat(wire, f"{member.group}-no", 1, foreign) == "UNKNOWN_MEMBER_ID"
        assert commit_by_id(wire, member) == "UNKNOWN_TOPIC_ID"

        assert beat(wire, member.group, generation, own) == "NONE"
        assert wire.committed(member.group, topic) == 17
        answer = member.sync()
        assert (code(answer), answer.assignment) == ("NONE", b"mine")


def join(wire: Wire, group: str, *names: str, protocol_type: str = "consumer", member_id: str = "") -> str:
    request = join_group.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type=protocol_type,
        protocols=[join_group.JoinGroupRequestProtocol(name=name) for name in names],
    )
    return code(wire.ask(request))


def beat(wire: Wire, group: str, generation: int, member_id: str) -> str:
    request = heartbeat.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
    return code(wire.ask(request))


def leave(wire: Wire, group: str, member_id: str) -> str:
    request = leave_group.LeaveGroupRequest(
        group_id=group, members=[leave_group.MemberIdentity(member_id=member_id)]
    )
    return code(wire.ask(request).members[0])


def commit_by_id(wire: Wire, member: RawMember) -> str:
    """Version 10 names topics by their ids; this one nobody has."""
    where = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = offset_commit.OffsetCommitRequest(
        group_id=member.group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        topics=[offset_commit.OffsetCommitRequestTopic(topic_id=b"nobody has this!", partitions=[where])],
    )
    return code(wire.ask(request, version=10).topics[0].partitions[0])
