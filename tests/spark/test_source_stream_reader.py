"""A stream from brokers, driven as Spark drives it: where batches end, what is new, and what is lost."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from tests.spark.driving import Query, numbered, send, values
from tidelog.client import TopicPartition
from tidelog.client.blocking import Admin
from tidelog.client.errors import ClientError
from tidelog.spark import fetch as fetch_module
from tidelog.spark.fetch_requests import fetch
from tidelog.spark.fetch_sizes import SPARE_BYTES
from tidelog.spark.loss import DataLossError
from tidelog.spark.options import OptionError
from tidelog.spark.source import TidelogDataSource
from tidelog.testing import Cluster

_numbers = itertools.count()


@pytest.fixture
def servers(cluster: Cluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture
def topic(cluster: Cluster) -> Iterator[str]:
    name = cluster.create_topic(f"stream-{next(_numbers)}")
    yield name
    with Admin(cluster.bootstrap_servers) as admin:
        if name in admin.list_topics().topics:
            admin.delete_topics([name])


def earliest(servers: str, **more: str) -> Query:
    return Query(servers, startingOffsets="earliest", **more)


def test_a_stream_begins_at_the_end_and_goes_on_where_it_was(servers: str, topic: str) -> None:
    send(servers, topic, numbered(0, 5))
    query = Query(servers, subscribe=topic)
    assert query.trigger() == []
    send(servers, topic, numbered(5, 8))
    assert values(query.trigger()) == numbered(5, 8)
    assert query.trigger() == []
    send(servers, topic, numbered(8, 9))
    again = query.restarted(startingOffsets="earliest")  # only counts for a new query
    assert values(again.trigger()) == numbered(8, 9)
    assert values(again.run(2)) == numbered(5, 8)


def test_a_first_batch_that_fails_is_the_same_when_it_is_run_again(servers: str, topic: str) -> None:
    """Spark asks for the initial offsets anew then, and "latest" is another one by that time."""
    send(servers, topic, numbered(0, 5))
    query = Query(servers, subscribe=topic)
    assert query.plan()  # nothing to read yet, and that is kept
    send(servers, topic, numbered(5, 8))
    again = query.restarted()
    again.checkpoint[0] = again.reader.initialOffset()
    assert again.run(1) == []
    assert values(again.trigger()) == numbered(5, 8)
    begun = earliest(servers, subscribe=topic)
    assert begun.plan()
    with Admin(servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 2})
    again = begun.restarted()
    again.checkpoint[0] = again.reader.initialOffset()
    with pytest.raises(DataLossError, match="offsets 0 to 2 were deleted"):
        again.run(1)


def test_offsets_look_like_those_of_sparks_own_source(servers: str, topic: str) -> None:
    send(servers, topic, numbered(0, 5))
    query = earliest(servers, subscribe=topic)
    query.trigger()
    end = query.checkpoint[-1]
    assert end.pop("#")["ids"].keys() == {topic}
    assert end == {topic: {"0": 5}}
    latest = query.reader.reportLatestOffset()
    assert latest[topic] == {"0": 5}


def test_limits(cluster: Cluster, servers: str) -> None:
    name = cluster.create_topic(f"limits-{next(_numbers)}", 3)
    for partition in range(3):
        send(servers, name, numbered(0, 100), partition=partition)
    limited = earliest(servers, subscribe=name, maxOffsetsPerTrigger="100")
    assert limited.limit == ReadMaxRows(100)
    assert [len(batch) for batch in limited.all_now()] == [99, 99, 99, 3]
    everything = earliest(servers, subscribe=name, maxOffsetsPerTrigger="100")
    everything.limit = ReadAllAvailable()  # Trigger.Once
    assert len(everything.trigger()) == 300


def test_limits_by_bytes(cluster: Cluster, servers: str) -> None:
    """Measured where the next batch begins: two topics with records of other sizes, each taken in proportion."""
    small, large = (cluster.create_topic(f"bytes-{each}-{next(_numbers)}") for each in ("small", "large"))
    send(servers, small, [b"s" * 100] * 1000, batch_size=4000)
    send(servers, large, [b"l" * 10_000] * 100, batch_size=20_000)
    query = earliest(servers, subscribe=f"{small},{large}", maxBytesPerTrigger="200000")
    assert query.limit == ReadMaxBytes(200_000)
    batches = query.all_now()
    sizes = [sum(len(value) for value in values(batch)) for batch in batches]
    assert all(150_000 < size < 210_000 for size in sizes[:-1]) and len(batches) in (6, 7)
    assert sum(map(len, batches)) == 1100


def test_small_batches_wait_for_more(servers: str, topic: str) -> None:
    send(servers, topic, numbered(0, 3))
    query = earliest(servers, subscribe=topic, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    hasty = earliest(servers, subscribe=topic, minOffsetsPerTrigger="10", maxTriggerDelay="400ms")
    assert query.limit == hasty.limit == ReadMinRows(10)
    assert len(query.trigger()) == len(hasty.trigger()) == 3  # the first one does not
    began = time.monotonic()
    send(servers, topic, numbered(3, 5))
    assert query.trigger() == []
    while not (found := hasty.trigger()):
        assert time.monotonic() < began + 60
        time.sleep(0.05)
    assert values(found) == numbered(3, 5)
    send(servers, topic, numbered(5, 20))
    assert values(query.trigger()) == numbered(3, 20)
    send(servers, topic, numbered(20, 21))
    assert [values(batch) for batch in query.all_now()] == [
        numbered(20, 21)
    ]  # nobody waits with AvailableNow


def test_available_now_ends_at_what_was_there(servers: str, topic: str) -> None:
    send(servers, topic, numbered(0, 6))
    query = earliest(servers, subscribe=topic, maxOffsetsPerTrigger="4")
    query.reader.prepareForTriggerAvailableNow()
    assert query.plan()
    send(servers, topic, numbered(6, 30))
    assert values(query.run()) == numbered(0, 4)
    assert values(query.trigger()) == numbered(4, 6)
    assert not query.plan()
    assert values(query.restarted().all_now()[0]) == numbered(6, 10)


def test_new_partitions_and_topics_are_read_from_their_beginning(cluster: Cluster, servers: str) -> None:
    first = cluster.create_topic(f"grows-{next(_numbers)}")
    query = Query(servers, subscribePattern="grows-.*")
    assert query.trigger() == []
    with Admin(servers) as admin:
        admin.create_partitions(first, 2)
    send(servers, first, numbered(0, 3), partition=1)
    assert values(query.trigger()) == numbered(0, 3)
    second = cluster.create_topic(f"grows-{next(_numbers)}")
    send(servers, second, numbered(3, 5))
    assert query.plan()
    send(servers, second, numbered(5, 9))
    assert values(query.run()) == numbered(3, 5)
    with Admin(servers) as admin:
        admin.delete_records({TopicPartition(second, 0): 1})
    with pytest.raises(
        DataLossError, match="offsets 0 to 1 were deleted"
    ):  # the batch is the same batch when it is run again
        query.run()


def test_the_group_shows_how_far_it_is(servers: str, topic: str) -> None:
    send(servers, topic, numbered(0, 5))
    query = earliest(servers, subscribe=topic, commitGroup="spark-job", kafka__group__id="a-label")
    query.trigger()
    with Admin(servers) as admin:
        assert admin.group_offsets("spark-job")[TopicPartition(topic, 0)].offset == 0
        query.plan()  # the batch before is done when Spark asks for another
        assert admin.group_offsets("spark-job")[TopicPartition(topic, 0)].offset == 5
        send(servers, topic, numbered(5, 7))
        query.trigger()
        query.reader.commit(query.checkpoint[-1])
        assert admin.group_offsets("spark-job")[TopicPartition(topic, 0)].offset == 7
        assert "a-label" not in {group.group_id for group in admin.list_groups()}


# -- losses -------------------------------------------------------------------------------------------------------------


def made_anew(cluster: Cluster, topic: str, count: int) -> None:
    cluster.delete_topic(topic)
    cluster.create_topic(topic)
    send(cluster.bootstrap_servers, topic, numbered(1000, 1000 + count))


@pytest.mark.parametrize("count", [2, 5, 30])
def test_a_topic_that_is_made_anew_is_noticed_whatever_it_holds(
    cluster: Cluster, servers: str, topic: str, count: int
) -> None:
    """With fewer records than were read, as many, and more: Spark's own source only sees the first, and reads none of its records ever."""
    send(servers, topic, numbered(0, 5))
    strict = earliest(servers, subscribe=topic)
    strict.trigger()
    made_anew(cluster, topic, count)
    with pytest.raises(DataLossError, match=f"topic {topic} was deleted and made anew") as caught:
        strict.trigger()
    assert "failOnDataLoss" in str(caught.value) and "another checkpoint" in str(caught.value)
    lax = strict.restarted(failOnDataLoss="false")
    assert values(lax.trigger()) == numbered(1000, 1000 + count)
    assert values(lax.run()) == numbered(1000, 1000 + count)
    assert lax.trigger() == []
    send(servers, topic, [b"more"])
    assert values(lax.restarted(failOnDataLoss="true").trigger()) == [b"more"]


def test_a_topic_that_is_deleted(cluster: Cluster, servers: str, topic: str) -> None:
    other = cluster.create_topic(f"stays-{next(_numbers)}")
    send(servers, topic, numbered(0, 5))
    query = earliest(servers, subscribe=f"{topic},{other}")
    query.trigger()
    cluster.delete_topic(topic)
    with pytest.raises(DataLossError, match=f"{topic}-0 is not there any more.*read up to offset 5"):
        query.trigger()
    lax = query.restarted(failOnDataLoss="false")
    send(servers, other, [b"other"])
    assert values(lax.trigger()) == [b"other"]
    cluster.create_topic(topic)
    send(servers, topic, [b"back"])
    assert values(lax.trigger()) == [b"back"]


def test_retention_that_overtakes_a_stopped_stream(servers: str, topic: str) -> None:
    send(servers, topic, numbered(0, 5))
    query = earliest(servers, subscribe=topic)
    query.trigger()
    send(servers, topic, numbered(5, 20))
    with Admin(servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 12})
    with pytest.raises(DataLossError, match="offsets 5 to 12 were deleted before they were read"):
        query.restarted().trigger()
    assert values(query.restarted(failOnDataLoss="false").trigger()) == numbered(12, 20)


def test_offsets_that_were_never_there(servers: str, topic: str) -> None:
    send(servers, topic, numbered(0, 5))
    start = json.dumps({topic: {"0": 500}})
    with pytest.raises(
        OptionError, match=f"startingOffsets says 500 for {topic}-0, which has offsets 0 to 5"
    ):
        Query(servers, subscribe=topic, startingOffsets=start).plan()
    lax = Query(servers, subscribe=topic, startingOffsets=start, failOnDataLoss="false")
    assert lax.trigger() == []
    send(servers, topic, numbered(5, 6))
    assert values(lax.trigger()) == numbered(5, 6)
    cut: list[dict[str, Any]] = [{topic: {"0": 50}}]
    with pytest.raises(DataLossError, match=f"{topic}-0 ends at offset 6, and 50 was read already"):
        Query(servers, cut, subscribe=topic).plan()


def test_a_checkpoint_of_sparks_own_source_gets_ids_at_once(
    cluster: Cluster, servers: str, topic: str
) -> None:
    send(servers, topic, numbered(0, 5))
    theirs: list[dict[str, Any]] = [{topic: {"0": 3}}]
    query = Query(servers, theirs, subscribe=topic)
    assert values(query.trigger()) == numbered(3, 5)
    idle = Query(servers, [{topic: {"0": 5}}], subscribe=topic)
    assert idle.plan() and idle.run() == []
    assert topic in idle.checkpoint[-1]["#"]["ids"] and not idle.plan()
    made_anew(cluster, topic, 20)
    with pytest.raises(DataLossError, match="made anew"):
        idle.trigger()


def test_a_planned_batch_of_sparks_own_source_begins_new_partitions_where_they_begin(
    cluster: Cluster, servers: str
) -> None:
    name = cluster.create_topic(f"theirs-{next(_numbers)}", 2)
    for partition in range(2):
        send(servers, name, numbered(0, 10), partition=partition)
    with Admin(servers) as admin:
        admin.delete_records({TopicPartition(name, 1): 4})
    planned: list[dict[str, Any]] = [{name: {"0": 8}}, {name: {"0": 9, "1": 6}}]
    query = Query(servers, planned, subscribe=name)
    assert values(query.run()) == [b"8", b"4", b"5"]


def test_a_broker_that_restarts_is_waited_for(servers: str) -> None:
    with Cluster(topics=["calm"]) as own:
        send(own.bootstrap_servers, "calm", numbered(0, 5))
        query = Query(own.bootstrap_servers, startingOffsets="earliest", subscribe="calm")
        assert len(query.trigger()) == 5
        send(own.bootstrap_servers, "calm", numbered(5, 8))
        assert query.plan()
        own.restart()
        assert values(query.run()) == numbered(5, 8)
        own.restart()
        assert query.trigger() == []
        own.stop()
        with pytest.raises(ClientError, match="connection refused"):
            query.trigger()
        own.start()
        send(own.bootstrap_servers, "calm", numbered(8, 9))
        assert values(query.trigger()) == numbered(8, 9)


def test_what_makes_no_sense(servers: str) -> None:
    with pytest.raises(OptionError, match="subscribe names absent, which does not exist"):
        Query(servers, subscribe="absent").plan()
    files = TidelogDataSource({"path": "data", "subscribe": "x"})
    with pytest.raises(OptionError, match="are read as a batch"):
        files.streamReader(files.schema())


def test_a_small_batch_fetches_little_more_than_its_records(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind the end of a micro-batch is not fetched for nothing, however much there is."""
    fetched: list[int] = []

    async def counted(*arguments: Any, **more: Any) -> Any:
        answers = await fetch(*arguments, **more)
        fetched.append(sum(len(data.records or b"") for _, data in answers))
        return answers

    monkeypatch.setattr(fetch_module, "fetch", counted)
    send(servers, topic, [b"%4d" % number * 256 for number in range(8000)])  # 1 KiB each
    query = earliest(servers, subscribe=topic, maxOffsetsPerTrigger="500")
    query.trigger()  # from here on it is known how large they are
    fetched.clear()
    assert len(query.trigger()) == 500
    assert sum(fetched) <= 500 * 1024 * 1.2 + SPARE_BYTES, fetched


def test_records_that_grow_are_all_read_though_less_was_expected(servers: str, topic: str) -> None:
    written = [b"x"] * 3000 + [b"%06d" % number * 4000 for number in range(100)] + [b"y"] * 50
    send(servers, topic, written)
    query = earliest(servers, subscribe=topic, maxOffsetsPerTrigger="3000")
    rows = [row for batch in query.all_now() for row in batch]
    assert values(rows) == written
    assert [row["offset"] for row in rows] == list(range(len(written)))
