"""The other ways to read in a group: many records at a time, by columns, without an event loop. Members come and go, and nothing is lost.

Against a broker: ours in-process, or any Kafka named by TIDELOG_TEST_BOOTSTRAP.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Collection

import pytest

from tests.client.consumer.members import IMPATIENT, SHORT_SESSION_MS, until
from tests.client.consumer.test_consumer import GROUPS, fill, new_group
from tests.client.wire import CLIENT_ID, Wire
from tidelog.client import Consumer, ConsumerRecord, TopicPartition
from tidelog.client.admin import Admin
from tidelog.client.blocking import Consumer as BlockingConsumer

COUNT = 200


async def ends(bootstrap: str, group: str, topic: str) -> int:
    async with Admin(bootstrap) as admin:
        found = await admin.group_offsets(group)
    return sum(each.offset for tp, each in found.items() if tp.topic == topic)


@pytest.mark.parametrize("protocol", GROUPS)
async def test_members_that_work_in_parallel_come_and_go(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    await fill(bootstrap, topic_name, COUNT, partitions=4)
    group, done = new_group(), Counter[bytes | None]()

    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(0.02)
        done[record.value] += 1

    async def work() -> asyncio.Task[None]:
        consumer = Consumer(bootstrap, group_id=group, group_protocol=protocol, **IMPATIENT)
        await consumer.start()
        consumer.subscribe([topic_name])

        async def run() -> None:
            async with consumer:
                await consumer.parallel(handle, order_by=None, workers=4, commit_interval_ms=50)

        return asyncio.create_task(run())

    members = [await work()]
    await until(lambda: len(done) > 20)
    members.append(await work())
    await until(lambda: len(done) > 60)
    members.append(await work())
    await until(lambda: len(done) > 100)
    members.pop(0).cancel()
    await until(lambda: len(done) == COUNT)
    for member in members:
        member.cancel()
    await asyncio.gather(*members, return_exceptions=True)
    assert await ends(bootstrap, group, topic_name) == COUNT
    assert set(done.values()) == {1}, "what runs is finished before its partition goes: nothing is done twice"


async def test_records_in_work_of_a_member_that_is_cut_off_are_another_ones(
    bootstrap: str, topic_name: str, wire: Wire
) -> None:
    """Its handlers are cancelled when it hears that it has lost them."""
    await fill(bootstrap, topic_name, 10)
    group, tp = new_group(), TopicPartition(topic_name, 0)
    begun, cancelled = list[int](), list[int]()

    async def hang(record: ConsumerRecord) -> None:
        begun.append(record.offset)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(record.offset)
            raise

    options = {**IMPATIENT, "group_id": group, "session_timeout_ms": SHORT_SESSION_MS}
    async with (
        Consumer(bootstrap, **options, client_id=CLIENT_ID) as cut_off,
        Consumer(bootstrap, **options) as other,
    ):
        cut_off.subscribe([topic_name])
        working = asyncio.create_task(cut_off.parallel(hang, order_by=None, workers=10))
        await until(lambda: len(begun) == 10)
        wire.cut()
        other.subscribe([topic_name])
        got: list[int] = []
        async with asyncio.timeout(20):
            while len(got) < 10:
                got += [record.offset for record in await other.poll(timeout_ms=200)]
        assert got == list(range(10))
        await other.commit()
        wire.mend()
        polling = asyncio.create_task(keep_polling(other))
        await until(lambda: len(cancelled) == 10)
        assert (await other.committed([tp]))[tp].offset == 10  # type: ignore[union-attr]
        for task in (working, polling):
            task.cancel()
        await asyncio.wait({working, polling})


async def keep_polling(consumer: Consumer) -> None:
    while True:
        await consumer.poll(timeout_ms=100)


@pytest.mark.parametrize("protocol", GROUPS)
async def test_columns_in_a_group_are_committed_and_shared(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    await fill(bootstrap, topic_name, COUNT, partitions=4, batch_size=100)
    group, options = new_group(), {"group_protocol": protocol, "max_partition_fetch_bytes": 1_000}
    seen: list[bytes] = []

    async def read(consumer: Consumer, upto: int) -> None:
        while len(seen) < upto:
            seen.extend((await consumer.poll_arrow(timeout_ms=100, columns=("value",)))["value"].to_pylist())

    async with (
        asyncio.timeout(20),
        Consumer(bootstrap, group_id=group, **{**IMPATIENT, "enable_auto_commit": True}, **options) as first,
    ):
        first.subscribe([topic_name])
        await read(first, 50)
        async with Consumer(
            bootstrap, group_id=group, **{**IMPATIENT, "enable_auto_commit": True}, **options
        ) as second:
            second.subscribe([topic_name])
            await asyncio.gather(read(first, COUNT), read(second, COUNT))
    assert sorted(map(int, seen)) == list(range(COUNT)), "each once: partitions are committed before they go"
    assert await ends(bootstrap, group, topic_name) == COUNT


def test_threads_with_a_consumer_each_share_a_group(bootstrap: str, topic_name: str) -> None:
    asyncio.run(fill(bootstrap, topic_name, COUNT, partitions=4))
    group, stop = new_group(), threading.Event()
    seen: list[bytes | None] = []
    heard: list[str] = []

    class Listener:
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            heard.append("assigned")

        async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            heard.append("revoked")

    def work() -> None:
        with BlockingConsumer(
            bootstrap, group_id=group, **{**IMPATIENT, "enable_auto_commit": True}, max_poll_records=10
        ) as consumer:
            consumer.subscribe([topic_name], listener=Listener())
            while not stop.is_set():
                seen.extend(record.value for record in consumer.poll(timeout_ms=100))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.15)
    deadline = time.monotonic() + 20
    while len(seen) < COUNT and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join()
    assert sorted(int(value or b"") for value in seen) == list(range(COUNT))
    assert heard.count("assigned") >= 3 and heard.count("revoked") >= 3
    assert asyncio.run(ends(bootstrap, group, topic_name)) == COUNT
