"""A member of a classic group against a scripted coordinator: every answer that makes it join again, give up, or go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.conftest import HANG_UP
from tests.client.group_script import GroupScript, play
from tidelog.client.consumer.classic_member import ClassicMember
from tidelog.client.consumer.member import Callback, Change, MemberSettings
from tidelog.client.consumer.member_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.client.consumer.membership import GroupMembership
from tidelog.client.errors import BrokerError, CommitFailedError
from tidelog.client.groups import Committed, Groups
from tidelog.client.metadata import TopicPartition
from tidelog.client.settings import ConsumerSettings
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

T0, T1, T2 = ALL = tuple(TopicPartition("t", p) for p in range(3))
ID_FIRST = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m")
FOLLOWS = JoinGroupResponse(generation_id=4, protocol_name="range", leader="other", member_id="m")


def leads(*members: tuple[str, list[str]], generation: int = 4) -> JoinGroupResponse:
    told = [
        JoinGroupResponseMember(member_id=m, metadata=encode_subscription(topics, assignor="range"))
        for m, topics in members
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
    script = GroupScript().say(ApiKey.JOIN_GROUP, ID_FIRST, FOLLOWS).say(ApiKey.SYNC_GROUP, got(*ALL))
    return script.say(ApiKey.HEARTBEAT, *beats(ErrorCode.NONE)).say(ApiKey.LEAVE_GROUP, LeaveGroupResponse())


class Driven:
    """A membership of topic t with somebody who asks for records all the time, and does at once what is pending."""

    def __init__(self, groups: Groups) -> None:
        self.heard: list[Callback] = []
        self.cluster = groups.cluster
        self.member = ClassicMember(
            MemberSettings(group_id="g", heartbeat_interval_ms=5, retry_backoff_ms=1), ("range",)
        )
        settings = ConsumerSettings(group_id="g", retry_backoff_ms=1)
        self.membership = GroupMembership(groups.cluster, groups, settings, self.member, changed=lambda: None)
        self.membership.subscribe(frozenset({"t"}))

    async def settled(self) -> frozenset[TopicPartition]:
        """What it has, when it is in its group."""
        while not self.member.is_settled:
            await self.poll()
        return self.member.owned

    async def poll(self) -> None:
        self.membership.polling(True)
        while (pending := self.member.pending) is not None:
            self.heard.append(pending)
            self.membership.done()
        if self.member.failure is not None:
            raise self.member.failure
        await asyncio.sleep(0.001)
        self.membership.polling(False)

    async def until_over(self) -> None:
        """Until this generation is."""
        while self.member.is_settled:
            await self.poll()


def test_joining_with_an_id_from_the_coordinator(script: GroupScript) -> None:
    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        assert await driven.settled() == set(ALL)
        assert driven.heard == [Callback(Change.TAKE, frozenset(ALL))]
        assert driven.membership.name == ("m", 4, None)
        await driven.membership.leave()

    play(script, scenario)
    first, second = script.asked[ApiKey.JOIN_GROUP]
    assert (first.member_id, second.member_id) == ("", "m")
    assert (second.protocol_type, second.protocols[0].name) == ("consumer", "range")
    assert decode_subscription("m", None, second.protocols[0].metadata).topics == {"t"}
    (sync,) = script.asked[ApiKey.SYNC_GROUP]
    assert (sync.member_id, sync.generation_id, sync.assignments) == ("m", 4, [])
    assert (sync.protocol_type, sync.protocol_name) == ("consumer", "range")
    (leave,) = script.asked[ApiKey.LEAVE_GROUP]
    assert [identity.member_id for identity in leave.members] == ["m"]


def test_the_leader_deals_out_for_everybody(script: GroupScript) -> None:
    script.topics = {"t": 3, "u": 2}
    script.say(ApiKey.JOIN_GROUP, leads(("m", ["t"]), ("n", ["t", "u"]), ("o", ["not yet"])))

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        await driven.settled()
        await driven.membership.leave()

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
        driven = Driven(groups)
        assert await driven.settled() == set(ALL)
        await driven.membership.leave()

    play(script, scenario)
    assert script.asked[ApiKey.SYNC_GROUP][0].assignments == []


@pytest.mark.parametrize(
    ("error", "change", "keeps_id"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, Change.REVOKE, True),
        (ErrorCode.ILLEGAL_GENERATION, Change.LOSE, True),
        (ErrorCode.UNKNOWN_MEMBER_ID, Change.LOSE, False),
    ],
)
def test_a_heartbeat_that_ends_the_generation(
    script: GroupScript, error: ErrorCode, change: Change, keeps_id: bool
) -> None:
    script.say(ApiKey.HEARTBEAT, *beats(ErrorCode.NONE, error, ErrorCode.NONE))
    script.say(ApiKey.JOIN_GROUP, ID_FIRST, FOLLOWS, FOLLOWS)

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        await driven.settled()
        await driven.until_over()
        await driven.settled()
        assert [each.change for each in driven.heard] == [Change.TAKE, change, Change.TAKE]
        await driven.membership.leave()

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
        driven = Driven(groups)
        assert await driven.settled() == {T1}
        await driven.membership.leave()

    play(script, scenario)
    assert len(script.asked[ApiKey.JOIN_GROUP]) == 3


def test_a_connection_that_breaks_while_joining_is_made_anew(script: GroupScript) -> None:
    script.say(ApiKey.JOIN_GROUP, ID_FIRST, HANG_UP, FOLLOWS)

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        assert await driven.settled() == set(ALL)
        await driven.membership.leave()

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
        driven = Driven(groups)
        with pytest.raises(BrokerError, match=words) as raised:
            await driven.settled()
        assert raised.value.code == error
        await driven.membership.leave()

    play(script, scenario)
    assert len(script.asked[ApiKey.JOIN_GROUP]) == 1
    assert script.asked[ApiKey.LEAVE_GROUP] == [], "who was never in it has nothing to leave"


def test_a_coordinator_that_moves_does_not_end_the_generation(script: GroupScript) -> None:
    script.say(
        ApiKey.HEARTBEAT, *beats(ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), HANG_UP,
        *beats(ErrorCode.NONE),
    )  # fmt: skip

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        await driven.settled()
        while len(script.asked[ApiKey.HEARTBEAT]) < 6:
            await driven.poll()
        assert driven.heard == [Callback(Change.TAKE, frozenset(ALL))]
        await driven.membership.leave()

    play(script, scenario)


def test_a_topic_that_grows_makes_its_leader_call_everybody(script: GroupScript) -> None:
    script.say(ApiKey.JOIN_GROUP, leads(("m", ["t"])), leads(("m", ["t"]), generation=5))

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        await driven.settled()
        for partitions in (3, 4):
            script.topics["t"] = partitions
            await driven.cluster.refresh_metadata(["t"])
            driven.membership.metadata_changed()
            assert driven.member.is_settled is (partitions == 3)
        await driven.settled()
        await driven.membership.leave()

    play(script, scenario)
    (share,) = script.asked[ApiKey.SYNC_GROUP][1].assignments
    assert len(decode_assignment(share.assignment)) == 4


def test_commits_are_made_in_the_members_name(script: GroupScript) -> None:
    script.say(ApiKey.OFFSET_COMMIT, commit_answer(ErrorCode.NONE))

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        await driven.settled()
        await driven.membership.commit({})
        await driven.membership.commit({T0: Committed(12)})
        await driven.membership.leave()

    play(script, scenario)
    (asked,) = script.asked[ApiKey.OFFSET_COMMIT]
    assert (asked.member_id, asked.generation_id_or_member_epoch) == ("m", 4)


@pytest.mark.parametrize(
    "error", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID]
)
def test_a_commit_that_comes_too_late_says_so(script: GroupScript, error: ErrorCode) -> None:
    script.say(ApiKey.OFFSET_COMMIT, commit_answer(error))

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        await driven.settled()
        with pytest.raises(CommitFailedError, match="group g"):
            await driven.membership.commit({T0: Committed(12)})
        await driven.membership.leave()

    play(script, scenario)
    assert len(script.asked[ApiKey.OFFSET_COMMIT]) == 1


def test_a_commit_that_fails_otherwise_is_an_error_of_its_own(script: GroupScript) -> None:
    script.say(ApiKey.OFFSET_COMMIT, commit_answer(ErrorCode.OFFSET_METADATA_TOO_LARGE))

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        await driven.settled()
        with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
            await driven.membership.commit({T0: Committed(12)})
        assert driven.member.is_settled
        await driven.membership.leave()

    play(script, scenario)


def test_who_is_stopped_while_joining_leaves_all_the_same(script: GroupScript) -> None:
    """The join is never answered: the goodbye must not wait behind it."""
    script.say(ApiKey.JOIN_GROUP, ID_FIRST, None)

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        while len(script.asked[ApiKey.JOIN_GROUP]) < 2:
            await driven.poll()
        await driven.membership.leave()

    play(script, scenario)
    (leave,) = script.asked[ApiKey.LEAVE_GROUP]
    assert leave.members[0].member_id == "m"


@pytest.mark.parametrize("answer", [HANG_UP, LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)])
def test_leaving_never_fails(script: GroupScript, answer: Any) -> None:
    script.say(ApiKey.LEAVE_GROUP, answer)

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        await driven.settled()
        await driven.membership.leave()
        await driven.membership.leave()

    play(script, scenario)
    assert len(script.asked[ApiKey.LEAVE_GROUP]) == 1


def test_no_heartbeat_leaves_after_the_member(script: GroupScript) -> None:
    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        await driven.settled()
        await driven.membership.leave()
        sent = len(script.asked[ApiKey.HEARTBEAT])
        await asyncio.sleep(0.05)
        assert len(script.asked[ApiKey.HEARTBEAT]) == sent

    play(script, scenario)
