"""The parts of Spark's source that need no broker: columns, sizes, settings of Java clients, processes that fork."""

from __future__ import annotations

import os
import pickle

import pyarrow as pa
import pytest

from tidelog.client.consumer.records import Aborted, Chunk
from tidelog.client.metadata import TopicPartition
from tidelog.records.builder import BatchBuilder
from tidelog.records.compression import Codec
from tidelog.records.control import build_end_transaction_marker
from tidelog.spark import columns as columns_module
from tidelog.spark.client_options import FETCH_BYTES, ClientOptionError, client_options
from tidelog.spark.columns import ColumnsOfTask, UnreadableRecordError
from tidelog.spark.sink_options import SinkOptionError, SinkOptions
from tidelog.spark.sizes import mean_bytes
from tidelog.spark.task import TaskPartition
from tidelog.spark.warm import warm_client

TP = TopicPartition("orders", 3)


def batch_of(
    first: int, *values: bytes | None, timestamp_ms: int = 1_700_000_000_000, producer_id: int = -1
) -> bytes:
    is_transactional = producer_id >= 0
    builder = BatchBuilder(
        base_offset=first,
        producer_id=producer_id,
        producer_epoch=0 if is_transactional else -1,
        base_sequence=0 if is_transactional else -1,
        is_transactional=is_transactional,
    )
    for value in values:
        builder.append(timestamp_ms, None, value)
    return builder.build()


def read(
    data: bytes, start: int, end: int, *names: str, aborted: list[Aborted] | None = None
) -> list[pa.RecordBatch]:
    chunk = Chunk(TP, memoryview(data), start, aborted=aborted)
    return list(ColumnsOfTask(names).batches(chunk, end, check_crcs=True))


def found(batches: list[pa.RecordBatch], name: str) -> list[object]:
    return [value for each in batches for value in each.column(name).to_pylist()]


def test_only_offsets_of_the_range_and_no_markers() -> None:
    marker = build_end_transaction_marker(
        commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=5
    )
    data = batch_of(0, *[b"%d" % n for n in range(5)], producer_id=7) + marker + batch_of(6, b"6", b"7")
    assert found(read(data, 2, 7, "offset", "value"), "offset") == [2, 3, 4, 6]
    assert read(data, 5, 6, "value") == []  # a marker and nothing else


def test_aborted_records_are_not_shown_to_readers_of_committed_data() -> None:
    ends = [
        build_end_transaction_marker(
            commit=commit,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=offset,
        )
        for commit, producer, offset in ((False, 7, 4), (True, 8, 5))
    ]
    data = (
        batch_of(0, b"a", b"b", producer_id=7)
        + batch_of(2, b"c", b"d", producer_id=8)
        + ends[0]
        + ends[1]
        + batch_of(6, b"e", producer_id=7)
    )
    assert found(read(data, 0, 9, "value", aborted=[Aborted(7, 0)]), "value") == [b"c", b"d", b"e"]
    assert found(read(data, 0, 9, "value"), "value") == [b"a", b"b", b"c", b"d", b"e"]


def test_columns_that_are_the_same_for_all_rows() -> None:
    batches = read(batch_of(0, *[b"x"] * 3000), 0, 3000, "topic", "partition")
    assert found(batches, "topic") == ["orders"] * 3000 and found(batches, "partition") == [3] * 3000


def test_no_batch_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "BYTES_MAX", 10_000)
    batches = read(batch_of(0, *[b"x" * 100] * 1000), 0, 1000, "offset", "value")
    assert len(batches) > 8 and max(each.nbytes for each in batches) <= 12_000
    assert found(batches, "offset") == list(range(1000))
    assert all(pickle.loads(pickle.dumps(each)) == each for each in batches)  # slices are what they seem


def test_what_is_highly_compressed_is_decoded_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "STORED_BYTES_FIRST", 300)
    monkeypatch.setattr(columns_module, "DECODED_BYTES_MAX", 100_000)
    data = b""
    for number in range(20):
        builder = BatchBuilder(base_offset=10 * number, codec=Codec.ZSTD)
        for _ in range(10):
            builder.append(0, None, b"x" * 5000)
        data += builder.build()
    batches = read(data, 3, 195, "offset", "value")
    assert found(batches, "offset") == list(range(3, 195))
    assert len(batches) > 5 and max(each.nbytes for each in batches) < 150_000


def test_damage_is_named_with_the_way_around_it() -> None:
    good, bad = batch_of(0, b"fine"), bytearray(batch_of(1, b"broken", b"too"))
    bad[-1] ^= 1
    with pytest.raises(UnreadableRecordError, match=r"orders-3: batch at offset 1 .*CRC.*start at offset 3"):
        read(good + bytes(bad) + batch_of(3, b"fine"), 0, 10, "value")


def test_times_that_spark_cannot_hold() -> None:
    data = batch_of(0, b"x", timestamp_ms=1 << 60)
    with pytest.raises(
        UnreadableRecordError, match="1152921504606846976 ms, which is more than Spark's timestamps hold"
    ):
        read(data, 0, 1, "timestamp")
    assert found(read(data, 0, 1, "value"), "value") == [b"x"]
    assert (
        found(read(batch_of(0, b"x", timestamp_ms=-1), 0, 1, "timestamp"), "timestamp")[0].timestamp()
        == -0.001
    )  # type: ignore[attr-defined]


def test_bytes_of_an_offset_are_measured_on_headers() -> None:
    one, two = batch_of(10, *[b"x" * 90] * 10), batch_of(30, *[b"x" * 390] * 10)
    both = memoryview(one + two)
    assert mean_bytes(both, 10) == pytest.approx((len(one) + len(two)) / 30)
    assert mean_bytes(both[: len(one) + 70], 10) == pytest.approx(
        (len(one) + len(two)) / 30
    )  # cut off behind a header
    assert mean_bytes(both, 15) == pytest.approx((len(one) / 2 + len(two)) / 25)  # half of the first one
    assert mean_bytes(memoryview(b""), 10) is None


def test_settings_of_a_java_client() -> None:
    given = {
        "bootstrap.servers": "x:1",
        "group.id": "team",
        "max.poll.records": "5000",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
        "isolation.level": "read_committed",
        "socket.connection.setup.timeout.ms": "5000",
        "security.protocol": "plaintext",
    }
    options = client_options(given, label="team")
    assert options.settings == {
        "client.id": "team",
        "max.partition.fetch.bytes": str(FETCH_BYTES),
        "isolation.level": "read_committed",
        "connect.timeout.ms": "5000",
    }
    assert options.ignored == ("max.poll.records", "partition.assignment.strategy")
    for name, value in (
        ("security.protocol", "SASL_SSL"),
        ("sasl.jaas.config", "x"),
        ("ssl.truststore.location", "x"),
    ):
        with pytest.raises(ClientOptionError, match=rf"kafka\.{name} cannot be honoured") as refused:
            client_options({name: value}, label="x")
        servers = {"kafka.bootstrap.servers": "x:1"}
        with pytest.raises(SinkOptionError) as by_the_sink:
            SinkOptions.parse({**servers, f"kafka.{name}": value})
        assert str(by_the_sink.value) == str(refused.value), (
            "source and sink refuse the same, in the same words"
        )
    with pytest.raises(ClientOptionError, match=r"isolation\.level is one of"):
        client_options({"isolation.level": "read_all"}, label="x")


def test_clients_are_kept_in_a_process_and_not_across_a_fork() -> None:
    settings = {"client.id": "kept"}
    client = warm_client("localhost:1", settings)
    assert warm_client("localhost:1", dict(settings)) is client
    assert warm_client("localhost:2", settings) is not client
    child = os.fork()
    if child == 0:
        os._exit(0 if warm_client("localhost:1", settings) is not client else 1)
    assert os.waitpid(child, 0)[1] == 0
    for port in range(10, 20):
        warm_client(f"localhost:{port}", settings)
    assert warm_client("localhost:1", settings) is not client  # only a few are kept


def test_a_task_says_what_it_reads() -> None:
    assert repr(TaskPartition([])) == "TaskPartition()"
