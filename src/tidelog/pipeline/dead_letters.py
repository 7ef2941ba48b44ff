"""Records that a job cannot decode, sent to a dead-letter topic: original bytes, where they were and why, in the client's own format (`tidelog dlq` shows them and sends them back).

They are sent before the batch's table commit, so that no crash loses one. A batch that is done again after a crash would send them again: before the first attempt the end of the
dead-letter topic is noted in the flow's state, and a second attempt looks behind it for what has been sent already. What stays possible is a letter of an attempt that is still on its way
when the next one looks; readers that must not see it twice go by its origin (topic, partition, offset).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.dead_letters import Origin, dead_letter_headers, origin_of
from tidelog.client.metadata import TopicPartition
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.decoding import PROBLEM, write_atomically
from tidelog.pipeline.decoding_options import FromValues
from tidelog.pipeline.options import OptionsError, Problem

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidelog.client.blocking import Consumer

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""
Explain = Callable[[bytes | None, str], str]

SOURCE_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
LETTER: Final = "key binary, value binary, headers array<struct<key:string,value:binary>>"
READ_RECORDS_MAX: Final = 10_000


class DeadLetters:
    def __init__(self, context: JobContext, topic: str) -> None:
        self.topic = topic
        self._context = context
        self._note = os.path.join(context.state, "dead-letters.json")

    def create_topic(self) -> None:
        """With the broker's defaults, if there is none."""
        from tidelog.client.admin_values import NewTopic
        from tidelog.client.blocking import Admin
        from tidelog.client.cluster import TopicMissingError

        with Admin(self._context.brokers) as admin:
            try:
                admin.describe_topics([self.topic])
            except TopicMissingError:
                admin.create_topics([NewTopic(self.topic)])

    def send(self, marked: DataFrame, explain: Explain, *, query: str, batch: int) -> None:
        """All rows of a decoded frame that have a problem, except those that an earlier attempt at this batch has sent."""
        sent = self._sent_before(query, batch)
        bad = marked.where(marked[PROBLEM].isNotNull()).select(*SOURCE_COLUMNS, PROBLEM)
        letters = bad.mapInArrow(
            functools.partial(to_letters, explain, self._context.name, frozenset(sent)), LETTER
        )
        letters.write.format("tidelog").options(**self._context.kafka_options(), topic=self.topic).mode(
            "append"
        ).save()

    def _sent_before(self, query: str, batch: int) -> set[Place]:
        with self._consumer() as consumer:
            tps = [TopicPartition(self.topic, number) for number in consumer.partitions_for(self.topic)]
            ends = consumer.end_offsets(tps)
            noted = self._read_note()
            if noted is not None and (noted["query"], noted["batch"]) == (query, batch):
                starts = {tp: int(noted["ends"].get(str(tp.partition), 0)) for tp in tps}
                return set(self._places(consumer, starts, ends))
            text = {
                "query": query,
                "batch": batch,
                "ends": {str(tp.partition): end for tp, end in ends.items()},
            }
            write_atomically(self._note, json.dumps(text))
            return set()

    def _places(
        self, consumer: Consumer, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> Iterator[Place]:
        first = consumer.beginning_offsets(list(starts))
        left = {tp for tp in starts if max(starts[tp], first[tp]) < ends[tp]}
        consumer.assign(left)
        for tp in left:
            consumer.seek(tp, max(starts[tp], first[tp]))
        while left:
            for record in consumer.poll(max_records=READ_RECORDS_MAX):
                origin = origin_of(record.headers)
                if origin is not None and origin.group == self._context.name:
                    yield origin.topic, origin.partition, origin.offset
            for tp in list(left):
                if consumer.position(tp) >= ends[tp]:
                    left.remove(tp)
                    consumer.pause(tp)

    def _read_note(self) -> Any:
        try:
            with open(self._note) as file:
                return json.load(file)
        except FileNotFoundError:
            return None

    def _consumer(self) -> Consumer:
        from tidelog.client.blocking import Consumer
        from tidelog.client.settings import ConsumerSettings

        known = {each.name.replace("_", ".") for each in fields(ConsumerSettings)}
        chosen = {name: value for name, value in self._context.client.items() if name in known}
        own = {"bootstrap.servers": self._context.brokers, "enable.auto.commit": "false"}
        return Consumer.configured({**chosen, **own, "auto.offset.reset": "earliest"})


def open_dead_letters(context: JobContext, options: FromValues) -> DeadLetters | None:
    """With its topic made, if there is none. None: nothing is to be sent there."""
    if options.on_undecodable != "dead-letter":
        return None
    topic = options.dead_letter_topic or f"{context.name}.dlq"
    if options.reads_topic(topic):
        raise OptionsError([Problem("dead_letter_topic", f"the flow reads {topic}, too: name another one")])
    letters = DeadLetters(context, topic)
    letters.create_topic()
    return letters


def to_letters(
    explain: Explain, flow: str, sent: frozenset[Place], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On executors: rows of the source with a problem as rows for the sink."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    letter = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("headers", ArrayType(header)),
        ]
    )
    schema = to_arrow_schema(letter)
    for batch in batches:
        rows = [
            _letter(row, explain, flow)
            for row in batch.to_pylist()
            if (row["topic"], row["partition"], row["offset"]) not in sent
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _letter(row: dict[str, Any], explain: Explain, flow: str) -> dict[str, Any]:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    origin = Origin(
        row["topic"],
        row["partition"],
        row["offset"],
        round(row["timestamp"].timestamp() * 1000),
        explain(row["value"], row[PROBLEM]),
        1,
        flow,
    )
    made = [{"key": name, "value": content} for name, content in dead_letter_headers(headers, origin)]
    return {"key": row["key"], "value": row["value"], "headers": made}
