"""A member of a classic group against a scripted coordinator: every answer that makes it join again, give up, or go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.conftest import HANG_UP
from tests.client.group_script import GroupScript, play
from tidelog.client.errors import BrokerError
from tidelog.client.group_member import GroupMember, MemberSettings, MembershipLostError
from tidelog.client.group_protocol import decode_assignment, encode_assignment, encode_subscription
from tidelog.client.groups import Groups
from tidelog.client.metadata import TopicPartition
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatResponse
from tidelog.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tidelog.wire.messages.leave_group import LeaveGroupResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.wire.messages.sync_group import SyncGroupResponse

T0, T1, T2 = (TopicPartition("t", p) for p in range(3))
QUICK = MemberSettings(heartbeat_interval_ms=5, session_timeout_ms=300, retry_timeout_ms=200)
ID_FIRST = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m")
FOLLOWS = JoinGroupResponse(generation_id=4, protocol_name="range", leader="other", member_id="m")


def leads(*members: tuple[str, list[str]], generation: int = 4) -> JoinGroupResponse:
    told = [
        JoinGroupResponseMember(member_id=m, metadata=encode_subscription(topics)) for m, topics in members
    ]
    return JoinGroupResponse(
        generation_id=generation, protocol_name="range", leader="m", member_id="m", members=told
    )


def got(*partitions: TopicPartition) -> SyncGroupResponse:
    return SyncGroupResponse(assignment=encode_assignment(partitions))


def beats(*errors: ErrorCode) -> list[HeartbeatResponse]:
    return [HeartbeatResponse(error_code=error) for error in errors]


def commit_answer(error: ErrorCode) -> OffsetCommitResponse:
    partition = OffsetCommitResponsePartition(partition_index=0, error_code=error)
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[partition])])


@pytest.fixture
def script() -> GroupScript:
    """A group that takes the member in at once, as a follower with all partitions."""
    script = GroupScript().say(ApiKey.JOIN_GROUP, ID_FIRST, FOLLOWS).say(ApiKey.SYNC_GROUP, got(T0, T1, T2))
    return script.say(ApiKey.HEARTBEAT, *beats(ErrorCode.NONE)).say(ApiKey.LEAVE_GROUP, LeaveGroupResponse())


def member_of(groups: Groups, settings: MemberSettings = QUICK) -> GroupMember:
    return GroupMember(groups, "g", ["t"], settings)


def test_joining_with_an_id_from_the_coordinator(script: GroupScript) -> None:
    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        assert await member.join() == {T0, T1, T2}
        assert (member.member_id, member.generation) == ("m", 4)
        await member.leave()

    play(script, scenario)
    first, second = script.asked[ApiKey.JOIN_GROUP]
    assert (first.member_id, second.member_id) == ("", "m")
    assert (second.protocol_type, second.protocols[0].name) == ("consumer", "range")
    assert second.protocols[0].metadata == encode_subscription(["t"])
    (sync,) = script.asked[ApiKey.SYNC_GROUP]
    assert (sync.member_id, sync.generation_id, sync.assignments) == ("m", 4, [])
    assert (sync.protocol_type, sync.protocol_name) == ("consumer", "range")
    (leave,) = script.asked[ApiKey.LEAVE_GROUP]
    assert [identity.member_id for identity in leave.members] == ["m"]


def test_the_leader_deals_out_for_everybody(script: GroupScript) -> None:
    script.topics = {"t": 3, "u": 2}
    script.say(ApiKey.JOIN_GROUP, leads(("m", ["t"]), ("n", ["t", "u"]), ("o", ["not yet"])))

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        await member.join()
        await member.leave()

    play(script, scenario)
    (sync,) = script.asked[ApiKey.SYNC_GROUP]
    assert {a.member_id: decode_assignment(a.assignment) for a in sync.assignments} == {
        "m": {T0, T1},
        "n": {T2, TopicPartition("u", 0), TopicPartition("u", 1)},
        "o": frozenset(),
    }


def test_a_leader_who_is_told_to_skip_it_deals_out_nothing(script: GroupScript) -> None:
    answer = leads(("m", ["t"]))
    answer.skip_assignment = True
    script.say(ApiKey.JOIN_GROUP, answer)

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        assert await member.join() == {T0, T1, T2}
        await member.leave()

    play(script, scenario)
    assert script.asked[ApiKey.SYNC_GROUP][0].assignments == []


@pytest.mark.parametrize(
    ("error", "keeps_id"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, True),
        (ErrorCode.ILLEGAL_GENERATION, True),
        (ErrorCode.UNKNOWN_MEMBER_ID, False),
    ],
)
def test_a_heartbeat_that_ends_the_generation(script: GroupScript, error: ErrorCode, keeps_id: bool) -> None:
    script.say(ApiKey.HEARTBEAT, *beats(ErrorCode.NONE, error, ErrorCode.NONE))
    script.say(ApiKey.JOIN_GROUP, ID_FIRST, FOLLOWS, FOLLOWS)

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        await member.join()
        await member.rebalance.wait()
        assert member.reason
        await member.join()
        assert not member.rebalance.is_set()
        await member.leave()

    play(script, scenario)
    again = script.asked[ApiKey.JOIN_GROUP][2]
    assert again.member_id == ("m" if keeps_id else "")
    assert again.reason, "the coordinator is told why"


@pytest.mark.parametrize(
    "error", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NOT_COORDINATOR]
)
def test_a_sync_that_comes_too_late_is_a_new_join(script: GroupScript, error: ErrorCode) -> None:
    script.say(ApiKey.SYNC_GROUP, SyncGroupResponse(error_code=error), got(T1))

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        assert await member.join() == {T1}
        await member.leave()

    play(script, scenario)
    assert len(script.asked[ApiKey.JOIN_GROUP]) == 3


def test_a_connection_that_breaks_while_joining_is_made_anew(script: GroupScript) -> None:
    script.say(ApiKey.JOIN_GROUP, ID_FIRST, HANG_UP, FOLLOWS)

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        assert await member.join() == {T0, T1, T2}
        await member.leave()

    play(script, scenario)
    assert [asked.member_id for asked in script.asked[ApiKey.JOIN_GROUP]] == ["", "m", "m"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "share no assignor"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "group.max.size"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, "group.min.session.timeout.ms"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "GROUP_AUTHORIZATION_FAILED"),
    ],
)
def test_a_group_that_does_not_take_us_says_why(script: GroupScript, error: ErrorCode, words: str) -> None:
    script.say(ApiKey.JOIN_GROUP, JoinGroupResponse(error_code=error))

    async def scenario(groups: Groups) -> None:
        with pytest.raises(BrokerError, match=words) as raised:
            await member_of(groups).join()
        assert raised.value.code == error

    play(script, scenario)
    assert len(script.asked[ApiKey.JOIN_GROUP]) == 1


def test_nobody_coordinates(script: GroupScript) -> None:
    script.say(ApiKey.FIND_COORDINATOR, lambda _: script.coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
            await member.join()
        await member.leave()

    play(script, scenario)
    assert script.asked[ApiKey.LEAVE_GROUP] == [], "who was never in it has nothing to leave"


def test_a_coordinator_that_moves_does_not_end_the_generation(script: GroupScript) -> None:
    script.say(
        ApiKey.HEARTBEAT, *beats(ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), HANG_UP,
        *beats(ErrorCode.NONE),
    )  # fmt: skip

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        await member.join()
        while len(script.asked[ApiKey.HEARTBEAT]) < 6:
            await asyncio.sleep(0.005)
        assert not member.rebalance.is_set()
        await member.leave()

    play(script, scenario)


def test_a_coordinator_that_is_silent_for_a_session_ends_it(script: GroupScript) -> None:
    script.say(ApiKey.HEARTBEAT, HANG_UP)

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        await member.join()
        await member.rebalance.wait()
        assert "no answer to heartbeats" in member.reason
        await member.leave()

    play(script, scenario)


def test_a_topic_that_grows_makes_its_leader_call_everybody(script: GroupScript) -> None:
    script.say(ApiKey.JOIN_GROUP, leads(("m", ["t"])), leads(("m", ["t"]), generation=5))
    settings = MemberSettings(heartbeat_interval_ms=5, metadata_max_age_ms=10)

    async def scenario(groups: Groups) -> None:
        member = member_of(groups, settings)
        await member.join()
        await asyncio.sleep(0.05)
        assert not member.rebalance.is_set()
        script.topics["t"] = 4
        await member.rebalance.wait()
        assert member.reason == "the partitions of t have changed"
        await member.join()
        await member.leave()

    play(script, scenario)
    (share,) = script.asked[ApiKey.SYNC_GROUP][1].assignments
    assert len(decode_assignment(share.assignment)) == 4


def test_commits_are_made_in_the_members_name(script: GroupScript) -> None:
    script.say(ApiKey.OFFSET_COMMIT, commit_answer(ErrorCode.NONE))

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        await member.join()
        await member.commit({})
        await member.commit({T0: 12})
        await member.leave()

    play(script, scenario)
    (asked,) = script.asked[ApiKey.OFFSET_COMMIT]
    assert (asked.member_id, asked.generation_id_or_member_epoch) == ("m", 4)


@pytest.mark.parametrize(
    "error", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID]
)
def test_a_commit_that_comes_too_late_ends_the_generation(script: GroupScript, error: ErrorCode) -> None:
    script.say(ApiKey.OFFSET_COMMIT, commit_answer(error))

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        await member.join()
        with pytest.raises(MembershipLostError):
            await member.commit({T0: 12})
        assert member.rebalance.is_set()
        await member.leave()

    play(script, scenario)
    assert len(script.asked[ApiKey.OFFSET_COMMIT]) == 1


def test_a_commit_that_fails_otherwise_is_an_error(script: GroupScript) -> None:
    script.say(ApiKey.OFFSET_COMMIT, commit_answer(ErrorCode.OFFSET_METADATA_TOO_LARGE))

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        await member.join()
        with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
            await member.commit({T0: 12})
        assert not member.rebalance.is_set()
        await member.leave()

    play(script, scenario)


def test_who_is_stopped_while_joining_leaves_all_the_same(script: GroupScript) -> None:
    """The join is never answered: the goodbye must not wait behind it."""
    script.say(ApiKey.JOIN_GROUP, ID_FIRST, None)

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        joining = asyncio.create_task(member.join())
        while len(script.asked[ApiKey.JOIN_GROUP]) < 2:
            await asyncio.sleep(0.005)
        joining.cancel()
        await asyncio.wait({joining})
        await member.leave()

    play(script, scenario)
    (leave,) = script.asked[ApiKey.LEAVE_GROUP]
    assert leave.members[0].member_id == "m"


@pytest.mark.parametrize("answer", [HANG_UP, LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)])
def test_leaving_never_fails(script: GroupScript, answer: Any) -> None:
    script.say(ApiKey.LEAVE_GROUP, answer)

    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        await member.join()
        await member.leave()
        await member.leave()

    play(script, scenario)
    assert len(script.asked[ApiKey.LEAVE_GROUP]) == 1


def test_no_heartbeat_leaves_after_the_member(script: GroupScript) -> None:
    async def scenario(groups: Groups) -> None:
        member = member_of(groups)
        await member.join()
        await member.leave()
        sent = len(script.asked[ApiKey.HEARTBEAT])
        await asyncio.sleep(0.05)
        assert len(script.asked[ApiKey.HEARTBEAT]) == sent

    play(script, scenario)
