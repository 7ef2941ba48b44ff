"""Looking into a dead-letter topic, and sending what it holds back to where it came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidelog.client.consumer.consumer import Consumer
from tidelog.client.dead_letters import Origin, origin_of, original_headers, redriven_note, redriven_places
from tidelog.client.metadata import TopicPartition
from tidelog.client.producer.delivery import RecordMetadata
from tidelog.client.producer.producer import Producer
from tidelog.records.record import Headers


class DeadLetter(NamedTuple):
    partition: int
    offset: int
    origin: Origin
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The original ones."""
    is_redriven: bool

    @property
    def place(self) -> str:
        return f"{self.partition}:{self.offset}"


class Contents(NamedTuple):
    letters: list[DeadLetter]
    others: int
    """Records that are no dead letters: somebody else writes to this topic, too."""


async def read_dead_letters(bootstrap_servers: str | Iterable[str], topic: str) -> Contents:
    """All of them, in the order of their places."""
    letters: list[DeadLetter] = []
    redriven: set[tuple[int, int]] = set()
    others = 0
    async with Consumer(
        bootstrap_servers, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        tps = [TopicPartition(topic, number) for number in await consumer.partitions_for(topic)]
        ends = await consumer.end_offsets(tps)
        starts = await consumer.beginning_offsets(tps)
        left = {tp for tp in tps if starts[tp] < ends[tp]}
        consumer.assign(left)
        while left:
            for record in await consumer.poll():
                note = redriven_places(record.headers)
                origin = origin_of(record.headers)
                if note is not None:
                    redriven.add(note)
                elif origin is None:
                    others += 1
                else:
                    letters.append(
                        DeadLetter(
                            record.partition, record.offset, origin, record.timestamp_ms, record.key, record.value,
                            original_headers(record.headers), False,
                        )
                    )  # fmt: skip
            for tp in list(left):
                if await consumer.position(tp) >= ends[tp]:
                    left.remove(tp)
                    consumer.pause(tp)
    letters.sort(key=lambda letter: (letter.partition, letter.offset))
    return Contents(
        [each._replace(is_redriven=(each.partition, each.offset) in redriven) for each in letters], others
    )


async def redrive(
    producer: Producer, topic: str, letter: DeadLetter, *, value: bytes | None = None, to: str | None = None
) -> RecordMetadata:
    """Send the original, or a mended `value`, to its topic, and note in the dead-letter topic that it was. A crash in between may send it twice."""
    target = to or letter.origin.topic
    partition = None
    if letter.key is None and target == letter.origin.topic:
        count = len(await producer.partitions_for(target))
        partition = letter.origin.partition if letter.origin.partition < count else None
    place = await producer.send_and_wait(
        target,
        letter.value if value is None else value,
        key=letter.key,
        headers=letter.headers,
        partition=partition,
        timestamp_ms=letter.origin.timestamp_ms if letter.origin.timestamp_ms >= 0 else None,
    )
    await producer.send_and_wait(
        topic, None, headers=redriven_note(letter.partition, letter.offset), partition=letter.partition
    )
    return place
