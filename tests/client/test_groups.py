"""Groups as an administrator sees them: who is asked, what is retried, and what each answer means."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.conftest import HANG_UP
from tests.client.group_script import GroupScript, play
from tidelog.client.consumer.commits import Commits
from tidelog.client.consumer.member_protocol import encode_assignment, encode_subscription
from tidelog.client.consumer.positions import Spot
from tidelog.client.errors import BrokerError, ConnectionLostError, UnsupportedRequestError
from tidelog.client.group_history import HistoryEntry, ask_history
from tidelog.client.groups import Committed, GroupMissingError, Groups, ListedGroup, Membership
from tidelog.client.metadata import TopicPartition
from tidelog.wire.api import TIDELOG_APIS, ApiKey, spec
from tidelog.wire.codec import decode, encode
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import APIS, consumer_group_describe, describe_groups, offset_fetch
from tidelog.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from tidelog.wire.messages.list_groups import ListedGroup as WireListedGroup
from tidelog.wire.messages.list_groups import ListGroupsResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tidelog.wire.tidelog_api import ExplainedEvent, ExplainGroupRequest, ExplainGroupResponse

TP = TopicPartition("t", 0)
NOT_CONSUMER = consumer_group_describe.ConsumerGroupDescribeResponse(
    groups=[consumer_group_describe.DescribedGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND)]
)


def classic(**fields: Any) -> describe_groups.DescribeGroupsResponse:
    return describe_groups.DescribeGroupsResponse(
        groups=[describe_groups.DescribedGroup(group_id="g", **fields)]
    )


def committed(offset: int, error: ErrorCode = ErrorCode.NONE) -> offset_fetch.OffsetFetchResponse:
    partition = offset_fetch.OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=offset, committed_leader_epoch=2, error_code=error
    )
    topic = offset_fetch.OffsetFetchResponseTopics(name="t", partitions=[partition])
    return offset_fetch.OffsetFetchResponse(
        groups=[offset_fetch.OffsetFetchResponseGroup(group_id="g", topics=[topic])]
    )


def commit_answer(error: ErrorCode) -> OffsetCommitResponse:
    partition = OffsetCommitResponsePartition(partition_index=0, error_code=error)
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[partition])])


# -- coordinators ---------------------------------------------------------------------------------------------------


def test_a_coordinator_that_is_not_there_yet_is_asked_for_again() -> None:
    script = GroupScript()
    script.say(
        ApiKey.FIND_COORDINATOR,
        lambda _: script.coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        lambda _: script.coordinator(),
    )
    script.say(ApiKey.OFFSET_FETCH, committed(5))

    async def scenario(groups: Groups) -> None:
        assert await groups.offsets("g") == {TP: Committed(5, 2)}
        assert await groups.offsets("g") == {TP: Committed(5, 2)}

    play(script, scenario)
    assert len(script.asked[ApiKey.FIND_COORDINATOR]) == 2, "found once, then remembered"


@pytest.mark.parametrize(
    "error",
    [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
)
def test_a_coordinator_that_moves_or_loads_is_looked_for_anew(error: ErrorCode) -> None:
    script = GroupScript().say(ApiKey.OFFSET_COMMIT, commit_answer(error), commit_answer(ErrorCode.NONE))

    async def scenario(groups: Groups) -> None:
        await groups.commit("g", {TP: 7})

    play(script, scenario)
    assert len(script.asked[ApiKey.FIND_COORDINATOR]) == 2
    assert len(script.asked[ApiKey.OFFSET_COMMIT]) == 2


def test_a_cluster_without_coordinators_is_an_error_in_the_end() -> None:
    script = GroupScript()
    script.say(ApiKey.FIND_COORDINATOR, lambda _: script.coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    async def nobody(node: int) -> None:
        raise AssertionError(f"node {node} coordinates nothing")

    async def scenario(groups: Groups) -> None:
        with pytest.raises(BrokerError, match="coordinator of group g") as raised:
            await groups.at_coordinator("g", nobody, timeout_ms=50)
        assert raised.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    play(script, scenario)


# -- list and describe ----------------------------------------------------------------------------------------------


def test_groups_are_listed_by_name() -> None:
    found = [
        WireListedGroup(group_id="b", protocol_type="consumer", group_state="Stable", group_type="Classic"),
        WireListedGroup(group_id="a", protocol_type="", group_state="Empty", group_type="consumer"),
    ]
    script = GroupScript().say(ApiKey.LIST_GROUPS, ListGroupsResponse(groups=found))

    async def scenario(groups: Groups) -> None:
        assert await groups.list_groups(states=["Stable"], types=["classic"]) == [
            ListedGroup("a", "consumer", "Empty", ""),
            ListedGroup("b", "classic", "Stable", "consumer"),
        ]

    play(script, scenario)
    (asked,) = script.asked[ApiKey.LIST_GROUPS]
    assert (asked.states_filter, asked.types_filter) == (["Stable"], ["classic"])


def test_a_broker_that_cannot_choose_is_not_believed_to_have_chosen() -> None:
    script = GroupScript(LIST_GROUPS=(0, 3)).say(ApiKey.LIST_GROUPS, ListGroupsResponse())

    async def scenario(groups: Groups) -> None:
        assert await groups.list_groups() == []
        with pytest.raises(UnsupportedRequestError, match="cannot choose groups"):
            await groups.list_groups(states=["Stable"])

    play(script, scenario)


@pytest.mark.parametrize("knows_consumer_groups", [True, False])
def test_a_classic_group(knows_consumer_groups: bool) -> None:
    members = [
        describe_groups.DescribedGroupMember(
            member_id="m2", group_instance_id="i", client_id="c", client_host="/10.0.0.3",
            member_metadata=encode_subscription(["t"], assignor="range"), member_assignment=encode_assignment([TP]),
        ),
        describe_groups.DescribedGroupMember(member_id="m1", client_id="c", member_metadata=b"\xffodd"),
    ]  # fmt: skip
    script = GroupScript() if knows_consumer_groups else GroupScript(CONSUMER_GROUP_DESCRIBE=None)
    script.say(ApiKey.CONSUMER_GROUP_DESCRIBE, NOT_CONSUMER)
    script.say(
        ApiKey.DESCRIBE_GROUPS,
        classic(group_state="Stable", protocol_type="consumer", protocol_data="range", members=members),
    )

    async def scenario(groups: Groups) -> None:
        found = await groups.describe("g")
        assert (found.type, found.state, found.protocol, found.epoch) == ("classic", "Stable", "range", None)
        odd, plain = found.members
        assert (odd.member_id, odd.topics, odd.partitions) == ("m1", None, frozenset())
        assert (plain.member_id, plain.instance_id, plain.host) == ("m2", "i", "10.0.0.3")
        assert (plain.topics, plain.partitions) == ({"t"}, {TP})

    play(script, scenario)


def test_a_consumer_group() -> None:
    assigned = consumer_group_describe.Assignment(
        topic_partitions=[consumer_group_describe.TopicPartitions(topic_name="t", partitions=[0])]
    )
    member = consumer_group_describe.Member(
        member_id="m", member_epoch=4, client_id="c", client_host="/::1", assignment=assigned
    )
    described = consumer_group_describe.DescribedGroup(
        group_id="g", group_state="Reconciling", group_epoch=5, assignor_name="uniform", members=[member]
    )
    script = GroupScript().say(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        consumer_group_describe.ConsumerGroupDescribeResponse(groups=[described]),
    )

    async def scenario(groups: Groups) -> None:
        found = await groups.describe("g")
        assert (found.type, found.state, found.protocol, found.epoch) == (
            "consumer", "Reconciling", "uniform", 5
        )  # fmt: skip
        (only,) = found.members
        assert (only.host, only.epoch, only.partitions, only.target) == ("::1", 4, {TP}, frozenset())

    play(script, scenario)


@pytest.mark.parametrize(
    "answer", [classic(error_code=ErrorCode.GROUP_ID_NOT_FOUND), classic(group_state="Dead")]
)
def test_a_group_that_does_not_exist(answer: Any) -> None:
    script = GroupScript().say(ApiKey.CONSUMER_GROUP_DESCRIBE, NOT_CONSUMER)
    script.say(ApiKey.DESCRIBE_GROUPS, answer)

    async def scenario(groups: Groups) -> None:
        with pytest.raises(GroupMissingError, match="group g: it does not exist"):
            await groups.describe("g")

    play(script, scenario)


# -- delete ---------------------------------------------------------------------------------------------------------


def test_deleting_what_is_in_use_or_not_there() -> None:
    def answer(error: ErrorCode) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=error)])

    script = GroupScript().say(
        ApiKey.DELETE_GROUPS,
        answer(ErrorCode.NONE),
        answer(ErrorCode.NON_EMPTY_GROUP),
        answer(ErrorCode.GROUP_ID_NOT_FOUND),
    )

    async def scenario(groups: Groups) -> None:
        await groups.delete("g")
        with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
            await groups.delete("g")
        with pytest.raises(GroupMissingError):
            await groups.delete("g")

    play(script, scenario)


def test_a_deletion_of_unknown_outcome_is_not_tried_twice() -> None:
    script = GroupScript().say(ApiKey.DELETE_GROUPS, HANG_UP)

    async def scenario(groups: Groups) -> None:
        with pytest.raises(ConnectionLostError) as raised:
            await groups.delete("g")
        assert "may or may not" in raised.value.__notes__[0]

    play(script, scenario)
    assert len(script.asked[ApiKey.DELETE_GROUPS]) == 1


# -- offsets --------------------------------------------------------------------------------------------------------


def test_offsets_are_asked_for_by_name() -> None:
    script = GroupScript().say(ApiKey.OFFSET_FETCH, committed(5), committed(-1))

    async def scenario(groups: Groups) -> None:
        assert await groups.offsets("g", [TP], require_stable=True) == {TP: Committed(5, 2)}
        assert await groups.offsets("g") == {}, "-1 is nothing committed"

    play(script, scenario)
    assert script.used[ApiKey.OFFSET_FETCH] == 9
    some, all_ = script.asked[ApiKey.OFFSET_FETCH]
    assert some.require_stable
    assert [(t.name, t.partition_indexes) for t in some.groups[0].topics] == [("t", [0])]
    assert all_.groups[0].topics is None


def test_offsets_of_a_broker_that_knows_one_group_at_a_time() -> None:
    partition = offset_fetch.OffsetFetchResponsePartition(partition_index=0, committed_offset=5)
    topic = offset_fetch.OffsetFetchResponseTopic(name="t", partitions=[partition])
    script = GroupScript(OFFSET_FETCH=(1, 7)).say(
        ApiKey.OFFSET_FETCH, offset_fetch.OffsetFetchResponse(topics=[topic])
    )

    async def scenario(groups: Groups) -> None:
        assert await groups.offsets("g", [TP]) == {TP: Committed(5)}

    play(script, scenario)
    (asked,) = script.asked[ApiKey.OFFSET_FETCH]
    assert (asked.group_id, asked.topics[0].name) == ("g", "t")


def test_open_transactions_are_waited_for() -> None:
    script = GroupScript().say(
        ApiKey.OFFSET_FETCH, committed(-1, ErrorCode.UNSTABLE_OFFSET_COMMIT), committed(8)
    )

    async def scenario(groups: Groups) -> None:
        assert await groups.offsets("g", [TP], require_stable=True) == {TP: Committed(8, 2)}

    play(script, scenario)


def test_a_consumer_asks_for_offsets_that_will_stay() -> None:
    """Whether it begins there or is asked by its application, and whatever its isolation level: so does Java's (KIP-447)."""
    script = GroupScript().say(
        ApiKey.OFFSET_FETCH, committed(-1, ErrorCode.UNSTABLE_OFFSET_COMMIT), committed(8), committed(8)
    )

    async def scenario(groups: Groups) -> None:
        commits = Commits(groups, "g", timeout_ms=1_000, membership=lambda: None)
        assert (await commits.committed([TP]))[TP] == Committed(8, 2)
        assert await commits.find([TP]) == {TP: Spot(8, 2)}

    play(script, scenario)
    assert [body.require_stable for body in script.asked[ApiKey.OFFSET_FETCH]] == [True] * 3


def test_commits_say_in_whose_name() -> None:
    script = GroupScript().say(ApiKey.OFFSET_COMMIT, commit_answer(ErrorCode.NONE))

    async def scenario(groups: Groups) -> None:
        await groups.commit("g", {TP: 7})
        await groups.commit("g", {TP: 8}, member=Membership("m", 3))

    play(script, scenario)
    admin, member = script.asked[ApiKey.OFFSET_COMMIT]
    assert (admin.member_id, admin.generation_id_or_member_epoch) == ("", -1)
    assert (member.member_id, member.generation_id_or_member_epoch) == ("m", 3)
    assert member.topics[0].partitions[0].committed_offset == 8
    assert script.used[ApiKey.OFFSET_COMMIT] == 9


def test_a_commit_that_is_refused_names_the_partition() -> None:
    script = GroupScript().say(ApiKey.OFFSET_COMMIT, commit_answer(ErrorCode.UNKNOWN_MEMBER_ID))

    async def scenario(groups: Groups) -> None:
        with pytest.raises(BrokerError, match="committing for t-0 in group g: UNKNOWN_MEMBER_ID"):
            await groups.commit("g", {TP: 7})

    play(script, scenario)


def test_offsets_of_a_topic_that_is_read_are_not_deleted() -> None:
    def answer(error: ErrorCode) -> OffsetDeleteResponse:
        partition = OffsetDeleteResponsePartition(partition_index=0, error_code=error)
        return OffsetDeleteResponse(topics=[OffsetDeleteResponseTopic(name="t", partitions=[partition])])

    script = GroupScript().say(
        ApiKey.OFFSET_DELETE,
        answer(ErrorCode.NONE),
        answer(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
        OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND),
    )

    async def scenario(groups: Groups) -> None:
        await groups.delete_offsets("g", [TP])
        with pytest.raises(BrokerError, match="t-0: GROUP_SUBSCRIBED_TO_TOPIC"):
            await groups.delete_offsets("g", [TP])
        with pytest.raises(GroupMissingError):
            await groups.delete_offsets("g", [TP])

    play(script, scenario)


# -- history --------------------------------------------------------------------------------------------------------


def test_a_history_is_told_in_order() -> None:
    events = [
        ExplainedEvent(wall_ms=5, event="joined", generation=1, member_id="m", client="c (/h)", detail="d"),
        ExplainedEvent(wall_ms=6, event="rebalance began", generation=1),
    ]
    script = GroupScript().say(
        ApiKey.EXPLAIN_GROUP,
        ExplainGroupResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ExplainGroupResponse(entries=events, group_type="classic", state="Stable", protocol="range"),
    )

    async def scenario(groups: Groups) -> None:
        told = await ask_history(groups, "g")
        assert told is not None
        assert told.entries == (
            HistoryEntry(5, "joined", 1, "m", "c (h)", "d"),
            HistoryEntry(6, "rebalance began", 1),
        )
        assert (told.group_type, told.state, told.protocol) == ("classic", "Stable", "range")

    play(script, scenario)
    assert [asked.group_id for asked in script.asked[ApiKey.EXPLAIN_GROUP]] == ["g", "g"]


def test_a_broker_that_keeps_no_history_hangs_up_on_nobody_else() -> None:
    script = GroupScript().say(ApiKey.EXPLAIN_GROUP, HANG_UP).say(ApiKey.OFFSET_FETCH, committed(5))

    async def scenario(groups: Groups) -> None:
        assert await ask_history(groups, "g") is None
        assert await groups.offsets("g") == {TP: Committed(5, 2)}

    broker = play(script, scenario)
    assert len(script.asked[ApiKey.EXPLAIN_GROUP]) == 1
    assert len([header for header in broker.seen if header.api_key == ApiKey.API_VERSIONS]) == 2


def test_a_history_of_nothing() -> None:
    answer = ExplainGroupResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    script = GroupScript().say(ApiKey.EXPLAIN_GROUP, answer)

    async def scenario(groups: Groups) -> None:
        with pytest.raises(GroupMissingError):
            await ask_history(groups, "g")

    play(script, scenario)


def test_tidelogs_own_apis_are_none_of_kafkas() -> None:
    assert not TIDELOG_APIS.keys() & APIS.keys()
    assert min(TIDELOG_APIS) > 20_000 > max(APIS)
    for key, (_, name, lowest, highest, flexible) in TIDELOG_APIS.items():
        api = spec(key)
        assert ApiKey(key).name.replace("_", "").lower() == name.lower()
        assert (api.min_version, api.max_version, api.first_flexible) == (lowest, highest, flexible)
        for cls, kind in ((api.request_class, "Request"), (api.response_class, "Response")):
            assert cls.__name__ == name + kind
            assert cls.SCHEMA.versions == (lowest, highest)
    assert encode(ExplainGroupRequest(group_id="g"), 0) == b"\x02g\0"
    answer = ExplainGroupResponse(entries=[ExplainedEvent(event="joined")], state="Stable")
    assert decode(ExplainGroupResponse, 0, encode(answer, 0)) == answer
