"""Spark's source against Apache Kafka: transactions of every outcome, compaction, logs that are cut and topics that are made anew. Readers are driven as Spark drives them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.interop.test_own_client_transactions import Ledger, interleave
from tests.spark.driving import Query, batch, numbered, send, values
from tidelog.client import NewTopic
from tidelog.client.blocking import Admin, Producer
from tidelog.spark.loss import DataLossError
from tools.peers.kafka import KafkaPeer
from tools.peers.process import Peer

_numbers = itertools.count()
QUIET_LOOKS = 4
"""So often a compacted topic has to be found as it was before: two seconds, many times the cleaner's pause."""


@pytest.fixture(scope="module")
def kafka(kafka_version: str) -> Iterator[Peer]:
    overrides = {
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.min.cleanable.ratio": "0.01",
    }
    with KafkaPeer(overrides=overrides) as peer:
        yield peer


@pytest.fixture
def ledger(kafka: Peer) -> Iterator[Ledger]:
    with ExitStack() as stack:
        yield Ledger(kafka, stack)


def by_partition(rows: list[dict[str, object]]) -> dict[int, list[object]]:
    found: dict[int, list[object]] = {}
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):  # type: ignore[arg-type, return-value]
        found.setdefault(int(row["partition"]), []).append(row["value"])  # type: ignore[call-overload]
    return found


def settle(ledger: Ledger) -> None:
    """Markers are written a moment after a commit has returned."""
    latest = Query(ledger.bootstrap, subscribe=ledger.topic, kafka__isolation__level="read_committed").reader
    ends = {str(tp.partition): end for tp, end in ledger.ends.items()}
    deadline = time.monotonic() + 30
    while latest.initialOffset()[ledger.topic] != ends:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def in_order_of_writing(ledger: Ledger) -> dict[int, list[object]]:
    """What was committed, by offset: the ledger has it in the order of commits."""
    return {
        tp.partition: [value for value in ledger.written[tp] if value in committed]
        for tp, committed in ledger.committed.items()
        if committed
    }


@pytest.mark.parametrize("more", [{}, {"minPartitions": "12"}, {"kafka__max__partition__fetch__bytes": "1"}])
def test_transactions(ledger: Ledger, more: dict[str, str]) -> None:
    """Whatever is asked for at once: a range may begin or end between a record and the marker that decides about it."""
    interleave(ledger)
    settle(ledger)
    committed = in_order_of_writing(ledger)
    written = {tp.partition: values for tp, values in ledger.written.items() if values}
    level = {"kafka__isolation__level": "read_committed"}
    assert by_partition(batch(ledger.bootstrap, subscribe=ledger.topic, **level, **more)) == committed
    assert by_partition(batch(ledger.bootstrap, subscribe=ledger.topic, **more)) == written


def test_a_stream_of_committed_records_ends_where_a_transaction_is_open(ledger: Ledger) -> None:
    interleave(ledger)
    settle(ledger)
    query = Query(
        ledger.bootstrap,
        subscribe=ledger.topic,
        startingOffsets="earliest",
        kafka__isolation__level="read_committed",
    )
    assert by_partition(query.trigger()) == in_order_of_writing(ledger)
    ends = {str(tp.partition): end for tp, end in ledger.ends.items()}
    assert query.checkpoint[-1][ledger.topic] == ends  # markers count
    pending = ledger.begin().send(b"pending", partition=0)
    ledger.plain(b"behind", 0)
    assert query.trigger() == []
    uncommitted = query.restarted(kafka__isolation__level="read_uncommitted")
    uncommitted.checkpoint = list(query.checkpoint)
    assert values(uncommitted.trigger()) == [b"pending", b"behind"]
    back = uncommitted.restarted(kafka__isolation__level="read_committed")
    assert back.trigger() == []  # the last stable offset is before what was read; nothing is lost
    pending.commit()
    settle(ledger)
    assert values(query.trigger()) == [b"pending", b"behind"]


def test_a_compacted_topic(kafka: Peer) -> None:
    name = f"compacted-{next(_numbers)}"
    configs = {"cleanup.policy": "compact", "segment.bytes": "1048576", "max.compaction.lag.ms": "100"}
    with Admin(kafka.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1, configs)])
    with Producer(kafka.bootstrap) as producer:
        for number in range(6000):
            producer.send(name, b"%d" % number + b"." * 1000, key=b"k%d" % (number % 10))
        producer.flush()
    deadline = time.monotonic() + 90
    rows, quiet = batch(kafka.bootstrap, subscribe=name), 0
    while (len(rows) > 4000 or quiet < QUIET_LOOKS) and time.monotonic() < deadline:
        time.sleep(0.5)
        before, rows = rows, batch(kafka.bootstrap, subscribe=name)
        quiet = quiet + 1 if rows == before else 0  # the cleaner may come back for what has become old enough
    offsets = [row["offset"] for row in rows]
    assert len(offsets) <= 4000 and offsets == sorted(set(offsets)) and offsets[-1] == 5999
    hole = next((a + 1, b) for a, b in itertools.pairwise([-1, *offsets]) if b > a + 1)
    inside = f'{{"{name}": {{"0": %d}}}}'
    assert (
        batch(
            kafka.bootstrap, subscribe=name, startingOffsets=inside % hole[0], endingOffsets=inside % hole[1]
        )
        == []
    )
    query = Query(kafka.bootstrap, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="700")
    assert [row["offset"] for found in query.all_now() for row in found] == offsets


def test_a_topic_that_is_made_anew(kafka: Peer) -> None:
    name = f"anew-{next(_numbers)}"
    with Admin(kafka.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1)])
        send(kafka.bootstrap, name, numbered(0, 5))
        query = Query(
            kafka.bootstrap, subscribe=name, startingOffsets="earliest", commitGroup="spark-interop"
        )
        assert values(query.trigger()) == numbered(0, 5)
        assert query.trigger() == []
        admin.delete_topics([name])
        time.sleep(2)
        admin.create_topics([NewTopic(name, 1, 1)])
        send(kafka.bootstrap, name, numbered(50, 80))
    with pytest.raises(DataLossError, match="deleted and made anew"):
        query.trigger()
    assert values(query.restarted(failOnDataLoss="false").trigger()) == numbered(50, 80)


def test_bytes_and_times(kafka: Peer) -> None:
    name = f"limits-{next(_numbers)}"
    with Admin(kafka.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1)])
    now_ms = int(time.time() * 1000)  # older ones would be deleted at once
    for number in range(5):
        send(kafka.bootstrap, name, [b"%d" % number * 1000] * 20, timestamp_ms=now_ms + number)
    query = Query(kafka.bootstrap, subscribe=name, startingOffsets="earliest", maxBytesPerTrigger="25000")
    counts = [len(found) for found in query.all_now()]
    assert sum(counts) == 100 and all(15 <= count <= 25 for count in counts[:-1])
    late = batch(kafka.bootstrap, subscribe=name, startingTimestamp=str(now_ms + 3))
    assert {row["value"][:1] for row in late} == {b"3", b"4"}


def test_a_log_that_was_cut_under_records_that_were_read(kafka: Peer) -> None:
    """The leader of another epoch has other records from offset 5 on; that its log is longer than what was read hides nothing."""
    name = f"cut-{next(_numbers)}"
    with Admin(kafka.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1)])
    send(kafka.bootstrap, name, numbered(0, 5))
    query = Query(
        kafka.bootstrap, subscribe=name, startingOffsets="earliest", kafka__default__api__timeout__ms="60000"
    )
    assert values(query.trigger()) == numbered(0, 5)
    read = query.checkpoint[-1]
    kafka.terminate()
    kafka.launch()
    send(kafka.bootstrap, name, numbered(105, 112))
    assert values(query.trigger()) == numbered(105, 112)  # nothing was lost by that
    assert query.checkpoint[-1]["#"]["epochs"][name]["0"] > read["#"]["epochs"][name]["0"]
    read[name]["0"] = 8  # three records more, of the old leader, that the new one does not have
    stale = Query(kafka.bootstrap, [read], subscribe=name)
    with pytest.raises(DataLossError, match=f"{name}-0: the log was cut at offset 5, and 8 was read already"):
        stale.trigger()
    assert values(stale.restarted(failOnDataLoss="false").trigger()) == numbered(105, 112)
