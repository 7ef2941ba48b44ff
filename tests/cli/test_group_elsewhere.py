"""`tidelog group` and `tidelog explain` where the broker is not Tidelog: Kafka's protocol is all there is."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.conftest import HANG_UP, FakeBroker
from tests.client.group_script import GroupScript
from tidelog.client.consumer.member_protocol import encode_assignment, encode_subscription
from tidelog.client.metadata import TopicPartition
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import consumer_group_describe, describe_groups, offset_fetch
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)


def offsets(body: Any) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=p.partition_index, offset=50)
                    for p in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )


def committed() -> offset_fetch.OffsetFetchResponse:
    def topic(name: str, **partitions: int) -> offset_fetch.OffsetFetchResponseTopics:
        return offset_fetch.OffsetFetchResponseTopics(
            name=name,
            partitions=[
                offset_fetch.OffsetFetchResponsePartitions(
                    partition_index=int(p[1:]), committed_offset=offset
                )
                for p, offset in partitions.items()
            ],
        )

    found = [topic("t", p0=40, p1=60), topic("deleted", p0=7)]
    return offset_fetch.OffsetFetchResponse(
        groups=[offset_fetch.OffsetFetchResponseGroup(group_id="g", topics=found)]
    )


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupScript]:
    """A scripted Kafka on a loop in a thread: group g reads topic t, and has a commit of a topic that is gone."""
    script = GroupScript()
    member = describe_groups.DescribedGroupMember(
        member_id="m-1",
        client_id="worker",
        client_host="/10.0.0.3",
        member_metadata=encode_subscription(["t"], assignor="range"),
        member_assignment=encode_assignment([TopicPartition("t", 0), TopicPartition("t", 2)]),
    )
    described = describe_groups.DescribedGroup(
        group_id="g", group_state="Stable", protocol_type="consumer", protocol_data="range", members=[member]
    )
    script.say(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        consumer_group_describe.ConsumerGroupDescribeResponse(
            groups=[
                consumer_group_describe.DescribedGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND)
            ]
        ),
    )
    script.say(ApiKey.DESCRIBE_GROUPS, describe_groups.DescribeGroupsResponse(groups=[described]))
    script.say(ApiKey.OFFSET_FETCH, committed()).say(ApiKey.LIST_OFFSETS, offsets)
    script.say(ApiKey.EXPLAIN_GROUP, HANG_UP).say(ApiKey.EXPLAIN_TOPIC, HANG_UP)
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        server = await asyncio.start_server(FakeBroker(script).serve, "127.0.0.1", 0)
        script.port = server.sockets[0].getsockname()[1]
        loops.append(asyncio.get_running_loop())
        ready.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    monkeypatch.setenv("TIDELOG_BOOTSTRAP_SERVERS", f"127.0.0.1:{script.port}")
    yield script
    loops[0].call_soon_threadsafe(stop.set)
    thread.join()


def test_without_a_history_the_description_is_shown(tidelog: Any, elsewhere: GroupScript) -> None:
    result = tidelog("explain", "group", "g")
    assert result.code == 0
    assert "this broker keeps no history of its groups" in result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("group g  classic  Stable  protocol range  1 member")
    assert lines[3].split() == ["t", "0", "40", "50", "10", "m-1", "10.0.0.3", "worker"]
    document = json.loads(tidelog("explain", "group", "g", "--json").out)
    assert (document["history"], document["rebalances"], document["entries"]) == (False, [], [])
    assert document["description"]["members"][0]["client_id"] == "worker"


def test_partitions_without_commit_member_or_topic(tidelog: Any, elsewhere: GroupScript) -> None:
    result = tidelog("group", "describe", "g")
    rows = [line.split() for line in result.out.splitlines()[2:]]
    assert rows == [
        ["deleted", "0", "7", "-", "-", "-", "-", "-"],
        ["t", "0", "40", "50", "10", "m-1", "10.0.0.3", "worker"],
        ["t", "1", "60", "50", "-10", "-", "-", "-"],
        ["t", "2", "-", "50", "-", "m-1", "10.0.0.3", "worker"],
    ]
    assert "warning: group g has committed 60 in t-1, which ends at 50" in result.err


def test_a_reset_is_refused_while_somebody_reads(tidelog: Any, elsewhere: GroupScript) -> None:
    result = tidelog("group", "reset", "g", "--all-topics", "--to-latest", "--execute")
    assert (result.code, result.out) == (1, "")
    assert "error: group g is in use by worker (10.0.0.3)" in result.err


def test_offsets_that_outlived_their_topic_are_left_out_of_a_reset(
    tidelog: Any, elsewhere: GroupScript
) -> None:
    empty = describe_groups.DescribedGroup(group_id="g", group_state="Empty", protocol_type="consumer")
    elsewhere.say(ApiKey.DESCRIBE_GROUPS, describe_groups.DescribeGroupsResponse(groups=[empty]))
    result = tidelog("group", "reset", "g", "--all-topics", "--to-current")
    assert result.code == 0, result.err
    assert "left out, because they do not exist any more: deleted-0" in result.err
    assert [line.split()[:4] for line in result.out.splitlines()[1:3]] == [
        ["t", "0", "40", "50"],
        ["t", "1", "60", "50"],
    ]


def test_segments_are_told_by_tidelog_only(tidelog: Any, elsewhere: GroupScript) -> None:
    result = tidelog("explain", "topic", "t")
    assert result.code == 1 and result.out == ""
    assert "only Tidelog does; `tidelog topic describe t` shows offsets and sizes" in result.err
    assert [asked.partition for asked in elsewhere.asked[ApiKey.EXPLAIN_TOPIC]] == [0]
