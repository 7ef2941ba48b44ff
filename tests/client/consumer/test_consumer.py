"""The consumer against a broker: ours in-process, or any Kafka named by TIDELOG_TEST_BOOTSTRAP."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Collection

import pytest

from tests.client.producer.test_producer import make_topic
from tidelog.client import Committed, Consumer, Producer, TopicPartition
from tidelog.client.errors import CommitFailedError, NoOffsetError, RecordError, SettingsError
from tidelog.client.serialization import from_json, from_utf8

GROUPS = ["classic", "consumer"]


async def fill(bootstrap: str, topic: str, count: int, *, partitions: int = 1, **options: object) -> None:
    await make_topic(bootstrap, topic, partitions)
    async with Producer(bootstrap, **options) as producer:
        for n in range(count):
            await producer.send(
                topic, b"%d" % n, partition=n % partitions, timestamp_ms=1_700_000_000_000 + n
            )


def new_group() -> str:
    return f"g-{uuid.uuid4().hex[:10]}"


async def take(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += [record.value for record in await consumer.poll()]
    return found


# ---- alone


async def test_assigned_partitions_are_read_in_order_from_the_beginning(
    bootstrap: str, topic_name: str
) -> None:
    await fill(bootstrap, topic_name, 1_000, partitions=2)
    async with Consumer(bootstrap, auto_offset_reset="earliest", max_poll_records=37) as consumer:
        consumer.assign([TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)])
        seen: dict[int, list[int]] = {0: [], 1: []}
        async for record in consumer:
            seen[record.partition].append(int(record.value or b""))
            if sum(map(len, seen.values())) == 1_000:
                break
        assert seen == {0: list(range(0, 1_000, 2)), 1: list(range(1, 1_000, 2))}
        assert await consumer.position(TopicPartition(topic_name, 0)) == 500
        assert consumer.lag(TopicPartition(topic_name, 1)) == 0


async def test_where_reading_begins(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 10)
    tp = TopicPartition(topic_name, 0)
    async with Consumer(bootstrap) as consumer:
        consumer.assign([tp])
        assert await consumer.position(tp) == 10  # latest
        consumer.seek(tp, 4)
        assert (await take(consumer, 6))[0] == b"4"
        consumer.seek_to_beginning([tp])
        assert (await take(consumer, 10))[0] == b"0"
        consumer.seek_to_time(1_700_000_000_000 + 7)
        assert await take(consumer, 3) == [b"7", b"8", b"9"]
        consumer.seek_to_time({tp: 1_900_000_000_000})
        assert await consumer.position(tp) == 10
        consumer.seek_to_end()
        assert await consumer.poll(timeout_ms=50) == []
        assert await consumer.beginning_offsets([tp]) == {tp: 0}
        assert await consumer.end_offsets([tp]) == {tp: 10}
        found = await consumer.offsets_for_times({tp: 1_700_000_000_005})
        assert found[tp] is not None and found[tp].offset == 5
    with pytest.raises(ValueError, match="is not assigned"):
        consumer.seek(TopicPartition("other", 0), 1)


async def test_by_duration_and_none(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 10)
    tp = TopicPartition(topic_name, 0)
    days = int((time.time() - 1_700_000_000) / 86_400) + 1
    async with Consumer(bootstrap, auto_offset_reset=f"by_duration:P{days}D") as consumer:
        consumer.assign([tp])
        assert await consumer.position(tp) == 0
    async with Consumer(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        with pytest.raises(NoOffsetError, match=r"auto\.offset\.reset=none"):
            await consumer.poll()
        consumer.seek(tp, 3)
        assert (await take(consumer, 7))[0] == b"3"
        consumer.seek(tp, 99)
        with pytest.raises(NoOffsetError, match="offset 99"):
            await consumer.poll(timeout_ms=5_000)


async def test_an_offset_that_is_gone_goes_on_by_the_reset(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 10)
    tp = TopicPartition(topic_name, 0)
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 1_000)
        assert (await take(consumer, 10))[0] == b"0"


async def test_paused_partitions_wait(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 20, partitions=2)
    tps = [TopicPartition(topic_name, p) for p in (0, 1)]
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(tps)
        consumer.pause(tps[0])
        assert sorted(await take(consumer, 10)) == sorted(b"%d" % n for n in range(1, 20, 2))
        assert await consumer.poll(timeout_ms=100) == [] and consumer.paused() == {tps[0]}
        consumer.resume(tps[0])
        assert await take(consumer, 10) == [b"%d" % n for n in range(0, 20, 2)]


async def test_a_record_that_cannot_be_deserialized_is_named_and_can_be_passed(
    bootstrap: str, topic_name: str
) -> None:
    await make_topic(bootstrap, topic_name)
    async with Producer(bootstrap) as producer:
        for value in (b'{"n":1}', b"no json", b'{"n":3}'):
            await producer.send(topic_name, value, key=b"k")
    tp = TopicPartition(topic_name, 0)
    async with Consumer(
        bootstrap, auto_offset_reset="earliest", key_deserializer=from_utf8, value_deserializer=from_json
    ) as consumer:
        consumer.assign([tp])
        (first,) = await consumer.poll(timeout_ms=5_000)
        assert first.value == {"n": 1}, "what comes before it is not lost"
        for _ in range(2):  # and again: nothing is skipped in silence
            with pytest.raises(RecordError, match=r"offset 1 of .* cannot be deserialized.*seek to offset 2"):
                await consumer.poll(timeout_ms=5_000)
        consumer.seek(tp, 2)
        (record,) = await consumer.poll(timeout_ms=5_000)
        assert (record.key, record.value) == ("k", {"n": 3})


def test_what_cannot_be_done_is_refused() -> None:
    consumer = Consumer("127.0.0.1:1")
    with pytest.raises(SettingsError, match=r"group\.id"):
        consumer.subscribe(["t"])
    with_group = Consumer("127.0.0.1:1", group_id="g")
    with pytest.raises(ValueError, match="either topics or a pattern"):
        with_group.subscribe()
    with pytest.raises(SettingsError, match=r"heartbeat\.interval\.ms"):
        Consumer("127.0.0.1:1", session_timeout_ms=1_000)


# ---- in a group


@pytest.mark.parametrize("protocol", GROUPS)
async def test_a_group_goes_on_where_it_was(bootstrap: str, topic_name: str, protocol: str) -> None:
    await fill(bootstrap, topic_name, 100, partitions=2)
    group, got = new_group(), list[bytes | None]()
    for _ in range(2):
        async with Consumer(
            bootstrap,
            group_id=group,
            group_protocol=protocol,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=50,
        ) as consumer:
            consumer.subscribe([topic_name])
            got += await take(consumer, 50)
            await consumer.commit()
            committed = await consumer.committed(TopicPartition(topic_name, p) for p in (0, 1))
        assert sum(each.offset for each in committed.values() if each) == len(got)
    assert sorted(got) == sorted(b"%d" % n for n in range(100))


@pytest.mark.parametrize("protocol", GROUPS)
async def test_a_second_member_takes_a_share_and_gives_it_back(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    await fill(bootstrap, topic_name, 4, partitions=4)
    group = new_group()
    options = {
        "group_id": group,
        "group_protocol": protocol,
        "heartbeat_interval_ms": 300,
        "session_timeout_ms": 6_000,
    }

    async def drive(consumer: Consumer) -> None:
        while True:
            await consumer.poll(timeout_ms=100)

    async def until(done: object) -> None:
        async with asyncio.timeout(20):
            while not done():  # type: ignore[operator]
                await asyncio.sleep(0.02)

    async with Consumer(bootstrap, **options) as first:
        first.subscribe([topic_name])
        driving = asyncio.create_task(drive(first))
        await until(lambda: len(first.assignment()) == 4)
        async with Consumer(bootstrap, **options) as second:
            second.subscribe([topic_name])
            other = asyncio.create_task(drive(second))
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
            assert not first.assignment() & second.assignment()
            other.cancel()
            await asyncio.wait({other})
        await until(lambda: len(first.assignment()) == 4)
        driving.cancel()
        await asyncio.wait({driving})


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_listeners_hear_what_comes_and_goes(bootstrap: str, topic_name: str, assignor: str) -> None:
    await fill(bootstrap, topic_name, 4, partitions=4)
    heard: list[tuple[str, int]] = []

    class Listener:
        async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            heard.append(("assigned", len(partitions)))

        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            heard.append(("revoked", len(partitions)))

        def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
            heard.append(("lost", len(partitions)))

    options = {
        "group_id": new_group(),
        "partition_assignment_strategy": (assignor,),
        "heartbeat_interval_ms": 200,
    }
    async with Consumer(bootstrap, **options) as first, Consumer(bootstrap, **options) as second:
        first.subscribe([topic_name], listener=Listener())
        async with asyncio.timeout(20):
            while len(first.assignment()) < 4:
                await first.poll(timeout_ms=100)
            second.subscribe([topic_name])
            while not len(first.assignment()) == len(second.assignment()) == 2:
                await asyncio.gather(first.poll(timeout_ms=50), second.poll(timeout_ms=50))
    if assignor == "cooperative-sticky":
        assert heard == [("assigned", 4), ("revoked", 2), ("assigned", 0), ("assigned", 0), ("revoked", 2)]
    else:
        assert heard == [("assigned", 4), ("revoked", 4), ("assigned", 2), ("revoked", 2)]


@pytest.mark.parametrize("protocol", GROUPS)
async def test_patterns_find_topics_also_new_ones(bootstrap: str, topic_name: str, protocol: str) -> None:
    await fill(bootstrap, topic_name + "-a", 1)
    async with Consumer(
        bootstrap,
        group_id=new_group(),
        group_protocol=protocol,
        auto_offset_reset="earliest",
        metadata_max_age_ms=300,
    ) as consumer:
        consumer.subscribe(pattern=re.compile(re.escape(topic_name) + "-.*"))
        assert await take(consumer, 1) == [b"0"]
        await fill(bootstrap, topic_name + "-b", 1)
        assert await take(consumer, 1) == [b"0"]
        assert consumer.subscription() == {topic_name + "-a", topic_name + "-b"}


async def test_a_pattern_is_looked_up_when_it_is_given_not_after_five_minutes(
    bootstrap: str, topic_name: str
) -> None:
    await fill(bootstrap, topic_name, 1)
    async with Consumer(bootstrap, group_id=new_group(), auto_offset_reset="earliest") as consumer:
        await consumer.topics()
        consumer.subscribe(pattern=topic_name)
        assert await take(consumer, 1) == [b"0"]


async def test_the_server_can_match_patterns(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name + "-a", 1)
    async with Consumer(
        bootstrap, group_id=new_group(), group_protocol="consumer", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(pattern=topic_name + "-[a-c]")
        assert await take(consumer, 1) == [b"0"]


async def test_auto_commit_covers_what_was_dealt_with_and_no_more(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 10)
    group, tp = new_group(), TopicPartition(topic_name, 0)
    async with Consumer(
        bootstrap, group_id=group, auto_offset_reset="earliest", auto_commit_interval_ms=50
    ) as consumer:
        consumer.subscribe([topic_name])
        async for record in consumer:
            if record.offset == 6:
                await asyncio.sleep(0.5)  # at work on it
                assert (await consumer.committed([tp]))[tp] == Committed(6, 0, "")
                break
    async with Consumer(bootstrap, group_id=group) as again:
        assert (await again.committed([tp]))[tp] == Committed(7, 0, ""), (
            "closing: the record counts as dealt with"
        )


async def test_commits_by_hand(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 10)
    group, tp = new_group(), TopicPartition(topic_name, 0)
    async with Consumer(
        bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic_name])
        await take(consumer, 10)
        await consumer.commit({tp: Committed(3, 0, "why")})
        assert (await consumer.committed([tp]))[tp] == Committed(3, 0, "why")
        heard: list[object] = []
        await consumer.commit_async({tp: 5}, lambda offsets, error: heard.append((offsets[tp].offset, error)))
        assert heard == [(5, None)]
        await consumer.commit()
        assert (await consumer.committed([tp]))[tp] == Committed(10, 0, "")
    assert (await Consumer(bootstrap, group_id=group).committed([tp]))[tp] == Committed(10, 0, "")


async def test_who_polls_too_seldom_is_told_when_it_commits(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 10)
    async with Consumer(
        bootstrap,
        group_id=new_group(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_interval_ms=500,
        heartbeat_interval_ms=100,
        session_timeout_ms=6_000,
    ) as consumer:
        consumer.subscribe([topic_name])
        await take(consumer, 10)
        await asyncio.sleep(1.0)
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms=500"):
            await consumer.commit()
        assert len(await take(consumer, 10)) == 10, "it joins again, and reads again what was not committed"
        await consumer.commit()


async def test_a_record_that_takes_long_is_no_stall_while_records_are_iterated(
    bootstrap: str, topic_name: str
) -> None:
    """Each record that is asked for is a sign of life, not each poll of five hundred."""
    await fill(bootstrap, topic_name, 10)
    async with Consumer(
        bootstrap,
        group_id=new_group(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_interval_ms=600,
        heartbeat_interval_ms=100,
        session_timeout_ms=6_000,
    ) as consumer:
        consumer.subscribe([topic_name])
        seen = 0
        async for _ in consumer:
            await asyncio.sleep(0.15)
            seen += 1
            if seen == 10:
                break
        await consumer.commit()
