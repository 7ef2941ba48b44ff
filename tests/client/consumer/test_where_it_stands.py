"""What a consumer tells of itself: its positions, and the name in which it commits; and listeners that decide where it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from tests.client.consumer.test_consumer import fill, new_group, take
from tidelog.client import Consumer, TopicPartition, blocking
from tidelog.client.groups import NOBODY


async def test_positions_are_behind_what_was_given_out(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 20, partitions=2)
    first, second = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        assert consumer.positions() == {}
        consumer.assign([first, second])
        consumer.seek(first, 7)
        consumer.pause(second)
        assert consumer.positions() == {first: 7}, "nobody knows yet where the other one begins"
        async for record in consumer:
            assert record.offset == 7
            break
        assert await consumer.position(second) == 0
        assert consumer.positions() == {first: 8, second: 0}


async def test_a_consumer_commits_in_the_name_of_its_member(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 1)
    async with Consumer(bootstrap, group_id=new_group(), auto_offset_reset="earliest") as consumer:
        assert consumer.group_metadata() == NOBODY
        consumer.subscribe([topic_name])
        await take(consumer, 1)
        name = consumer.group_metadata()
        assert name.member_id and (name.generation, name.instance_id) == (1, None)


async def test_a_listener_takes_its_time_to_say_where_to_begin(bootstrap: str, topic_name: str) -> None:
    """Nothing is committed and nothing is reset: whoever seeks meanwhile hears of neither."""
    await fill(bootstrap, topic_name, 10)
    async with Consumer(
        bootstrap, group_id=new_group(), auto_offset_reset="none", enable_auto_commit=False
    ) as consumer:

        class Listener:
            async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
                await asyncio.sleep(0.3)  # looking it up somewhere
                for tp in partitions:
                    consumer.seek(tp, 8)

        consumer.subscribe([topic_name], listener=Listener())  # type: ignore[arg-type]
        assert await take(consumer, 2) == [b"8", b"9"]


def test_the_blocking_twin_tells_the_same(bootstrap: str, topic_name: str) -> None:
    with blocking.Producer(bootstrap) as producer:
        producer.send(topic_name, b"x", partition=0)
    with blocking.Consumer(bootstrap, group_id=new_group(), auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic_name])
        assert next(consumer).value == b"x"
        assert consumer.positions() == {TopicPartition(topic_name, 0): 1}
        assert consumer.group_metadata().generation == 1
