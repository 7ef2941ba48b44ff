"""Many records at a time: a slow one holds up its key and nothing else, nothing is committed past what is done, what fails is put aside."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise

import pytest

from tests.client.consumer.test_consumer import new_group
from tests.client.producer.test_producer import make_topic
from tidelog.client import Consumer, ConsumerRecord, Producer, TopicPartition
from tidelog.client.dead_letters import Origin, origin_of, original_headers


async def fill(bootstrap: str, topic: str, keys: list[bytes | None]) -> None:
    await make_topic(bootstrap, topic)
    async with Producer(bootstrap) as producer:
        for n, key in enumerate(keys):
            await producer.send(topic, b"%d" % n, key=key, headers=(("trace", b"%d" % n),))


async def run_until(consumer: Consumer, done: asyncio.Event, **parallel: object) -> None:
    running = asyncio.create_task(consumer.parallel(**parallel))  # type: ignore[arg-type]
    waiting = asyncio.create_task(done.wait())
    async with asyncio.timeout(30):
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
        await running
    running.cancel()
    await asyncio.wait({running})


async def test_a_slow_record_does_not_stop_its_partition(bootstrap: str, topic_name: str) -> None:
    keys = [b"slow" if n in (3, 50) else b"k%d" % (n % 10) for n in range(200)]
    await fill(bootstrap, topic_name, keys)
    tp, done, seen, is_held = TopicPartition(topic_name, 0), asyncio.Event(), list[int](), asyncio.Event()
    in_work: dict[bytes | None, int] = {}

    async def handle(record: ConsumerRecord) -> None:
        assert in_work.setdefault(record.key, 0) == 0, "records of a key one after the other"
        in_work[record.key] = 1
        if record.offset == 3:
            await is_held.wait()
        else:
            await asyncio.sleep(0)
        in_work[record.key] = 0
        seen.append(record.offset)
        if len(seen) == 198:
            done.set()  # all but the slow one and the one of its key behind it

    group = new_group()
    async with Consumer(
        bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe([topic_name])
        running = asyncio.create_task(consumer.parallel(handle, workers=8, commit_interval_ms=50))
        async with asyncio.timeout(20):
            await done.wait()
            assert 3 not in seen and 50 not in seen
            await asyncio.sleep(0.4)
            assert (await consumer.committed([tp]))[tp].offset == 3, "nothing past what is done"  # type: ignore[union-attr]
            is_held.set()
            while len(seen) < 200:
                await asyncio.sleep(0.01)
            while (await consumer.committed([tp]))[tp].offset < 200:  # type: ignore[union-attr]
                await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.wait({running})
    for key in set(keys):
        mine = [n for n in range(200) if keys[n] == key]
        assert [n for n in seen if keys[n] == key] == mine, "order per key"


async def test_a_poison_record_goes_to_the_dead_letters_and_the_rest_goes_on(
    bootstrap: str, topic_name: str
) -> None:
    await fill(bootstrap, topic_name, [b"k%d" % (n % 3) for n in range(20)])
    await make_topic(bootstrap, topic_name + ".dlq")
    done, seen, attempts = asyncio.Event(), list[int](), 0

    def handle(record: ConsumerRecord) -> None:
        nonlocal attempts
        if record.offset == 5:
            attempts += 1
            raise ValueError("cannot cook this")
        seen.append(record.offset)
        if len(seen) == 19:
            loop.call_soon_threadsafe(done.set)

    loop = asyncio.get_running_loop()
    group = new_group()
    async with Consumer(bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic_name])
        await run_until(
            consumer, done, handler=handle, attempts=2, backoff_ms=10, dead_letter_topic=topic_name + ".dlq"
        )
        tp = TopicPartition(topic_name, 0)
        assert (await consumer.committed([tp]))[tp].offset == 20  # type: ignore[union-attr]
    assert attempts == 2 and sorted(seen) == [n for n in range(20) if n != 5]
    async with Consumer(bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition(topic_name + ".dlq", 0)])
        (letter,) = await reader.poll(timeout_ms=5_000)
    assert (letter.key, letter.value) == (b"k2", b"5") and original_headers(letter.headers) == (
        ("trace", b"5"),
    )
    origin = origin_of(letter.headers)
    assert origin is not None
    assert origin[:3] == (topic_name, 0, 5) and origin.reason == "ValueError: cannot cook this"
    assert (origin.attempts, origin.group, origin.timestamp_ms) == (2, group, letter.timestamp_ms)


async def test_a_retry_topic_gives_a_record_more_rounds(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, [b"k"])
    for suffix in (".retry", ".dlq"):
        await make_topic(bootstrap, topic_name + suffix)
    done, tried = asyncio.Event(), list[tuple[str, float]]()

    async def handle(record: ConsumerRecord) -> None:
        tried.append((record.topic, time.monotonic()))
        if len(tried) == 3:
            done.set()
            return
        raise RuntimeError("not yet")

    async with Consumer(
        bootstrap, group_id=new_group(), auto_offset_reset="earliest", heartbeat_interval_ms=200
    ) as consumer:
        consumer.subscribe([topic_name, topic_name + ".retry"])
        await run_until(
            consumer, done, handler=handle, attempts=1, retry_topic=topic_name + ".retry", retry_delay_ms=300,
            dead_letter_topic=topic_name + ".dlq",
        )  # fmt: skip
    assert [topic for topic, _ in tried] == [topic_name, topic_name + ".retry", topic_name + ".retry"]
    assert all(after - before > 0.25 for (_, before), (_, after) in pairwise(tried))


async def test_without_a_place_to_put_it_the_error_ends_everything_and_nothing_is_lost(
    bootstrap: str, topic_name: str
) -> None:
    await fill(bootstrap, topic_name, [None] * 10)

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 4:
            raise ValueError("poison")

    group, tp = new_group(), TopicPartition(topic_name, 0)
    async with Consumer(bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic_name])
        with pytest.raises(ValueError, match="poison") as raised:
            async with asyncio.timeout(20):
                await consumer.parallel(handle, attempts=1)
        assert any("offset 4" in note for note in raised.value.__notes__)
        assert (await consumer.committed([tp]))[tp].offset == 4  # type: ignore[union-attr]


async def test_records_in_work_have_a_bound(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, [None] * 300)
    started, most, go = 0, 0, asyncio.Event()
    done = asyncio.Event()

    async def handle(record: ConsumerRecord) -> None:
        nonlocal started, most
        started += 1
        most = max(most, started)
        await go.wait()
        started -= 1
        if record.offset == 299:
            done.set()

    async with Consumer(
        bootstrap, group_id=new_group(), auto_offset_reset="earliest", max_poll_records=20
    ) as consumer:
        consumer.subscribe([topic_name])
        asyncio.get_running_loop().call_later(1.0, go.set)
        await run_until(consumer, done, handler=handle, workers=5, pending_max=40, order_by=None)
        assert most == 5 and not consumer.paused()


async def test_plain_functions_have_as_many_threads_as_there_are_workers(
    bootstrap: str, topic_name: str
) -> None:
    await fill(bootstrap, topic_name, [None] * 40)
    done, loop = asyncio.Event(), asyncio.get_running_loop()
    together = threading.Barrier(40, timeout=10)

    def handle(record: ConsumerRecord) -> None:
        together.wait()
        loop.call_soon_threadsafe(done.set)

    async with Consumer(bootstrap, group_id=new_group(), auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic_name])
        await run_until(consumer, done, handler=handle, workers=40, order_by=None)
    assert not together.broken


def test_dead_letters_say_where_they_come_from() -> None:
    from tidelog.client.dead_letters import dead_letter_headers, redriven_note, redriven_places

    origin = Origin("orders", 3, 77, 1_700_000_000_000, "ValueError: é", 4, "kitchen", 5)
    headers = dead_letter_headers((("trace", b"1"),), origin)
    assert origin_of(headers) == origin and original_headers(headers) == (("trace", b"1"),)
    again = dead_letter_headers(headers, origin._replace(attempts=8))
    assert origin_of(again) == origin._replace(attempts=8) and len(again) == len(headers)
    assert origin_of((("trace", b"1"),)) is None
    assert redriven_places(redriven_note(2, 9)) == (2, 9) and redriven_places((("x", b"1"),)) is None


async def test_a_position_that_goes_back_is_worked_on_again(bootstrap: str, topic_name: str) -> None:
    """As after a seek, or when a log was cut: what is still in work of before does not count for what comes again."""
    await fill(bootstrap, topic_name, [None] * 10)
    tp, seen, again, done = TopicPartition(topic_name, 0), list[int](), asyncio.Event(), asyncio.Event()

    async def handle(record: ConsumerRecord) -> None:
        seen.append(record.offset)
        if len(seen) == 10:
            consumer.seek(tp, 4)
        if record.offset == 6 and not again.is_set():
            await again.wait()
        elif record.offset == 6:
            done.set()
            await asyncio.Event().wait()  # never done
        elif seen.count(9) == 2:
            again.set()

    group = new_group()
    async with Consumer(
        bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe([topic_name])
        await run_until(consumer, done, handler=handle, workers=20, drain_ms=100, commit_interval_ms=10)
        assert sorted(seen) == sorted([*range(10), *range(4, 10)])
        committed = (await consumer.committed([tp]))[tp]
        assert committed is not None and committed.offset == 6
