"""The commands against a broker, as scripts and people use them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidelog.client import Admin
from tidelog.testing import Cluster


def produce(process: Any, topic: str, text: bytes, *options: object) -> tuple[int, bytes, bytes]:
    running = process("produce", topic, *options, stdin=subprocess.PIPE)
    out, err = running.communicate(text, timeout=30)
    return running.returncode, out, err


def consume(on: Any, topic: str, *options: object) -> str:
    result = on("consume", topic, "--exit-at-end", *(options or ("--from-beginning",)))
    assert result.code == 0, result.err
    return str(result.out)


@pytest.fixture
def lines(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "lines"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_a_topics_life(on: Any, topic: str) -> None:
    assert (
        on("topic", "create", topic, "-p", 3, "-r", 1).out
        == f"created topic {topic} (3 partitions, replication factor 1)\n"
    )
    again = on("topic", "create", topic)
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith(f"error: creating topic {topic}: ")
    assert on("topic", "create", topic, "--if-not-exists").out == f"topic {topic} was already there\n"
    assert topic in on("topic", "list").out
    (listed,) = [t for t in json.loads(on("topic", "list", "--json").out) if t["topic"] == topic]
    assert (listed["partitions"], listed["replication_factor"], listed["internal"]) == (3, 1, False)
    described = on("topic", "describe", topic).out.splitlines()
    assert described[0].startswith(f"topic {topic}  id {listed['topic_id']}")
    assert len(described) == 5
    assert on("topic", "delete", topic).out == f"deleted topic {topic}\n"
    missing = on("topic", "delete", topic)
    assert missing.code == 1
    assert f"tidelog topic create {topic}" in missing.err
    assert (
        on("topic", "delete", topic, "--if-exists", "--json").out
        == f'[{{"topic": "{topic}", "deleted": false}}]\n'
    )


def test_json_is_one_document_and_nothing_else(on: Any, topic: str) -> None:
    (created,) = json.loads(on("topic", "create", topic, "-p", 2, "-c", "retention.ms=1000", "--json").out)
    assert (created["topic"], created["created"], created["partitions"]) == (topic, True, 2)
    (described,) = json.loads(on("topic", "describe", topic, "--json").out)
    assert described["configs"] == {"retention.ms": "1000"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1]
    assert [p["end_offset"] for p in described["partitions"]] == [0, 0]
    altered = json.loads(on("topic", "alter", topic, "-p", 4, "--unset", "retention.ms", "--json").out)
    assert altered == {"topic": topic, "partitions": 4, "set": {}, "unset": ["retention.ms"]}
    (entry,) = json.loads(on("config", "describe", "retention.ms", "-t", topic, "--json").out)
    assert (entry["name"], entry["source"]) == ("retention.ms", "DEFAULT_CONFIG")


def test_footguns_are_named_where_they_are_set(on: Any, topic: str) -> None:
    created = on("topic", "create", topic, "-p", 2, "-r", 1, "-c", "retention.ms=60000")
    assert created.err.startswith("warning: retention.ms is 1 min")
    grown = on("topic", "alter", topic, "-p", 3)
    assert f"warning: {topic} grows from 2 to 3 partitions" in grown.err
    refused = on("topic", "alter", topic, "-p", 3)
    assert refused.code == 1
    assert "has 3 partitions already" in refused.err
    assert (
        "warning: min.insync.replicas is 2" in on("config", "set", "min.insync.replicas=2", "-t", topic).err
    )


def test_configs(on: Any, topic: str) -> None:
    on("topic", "create", topic)
    assert (
        on("config", "set", "max.message.bytes=5000", "-t", topic).out
        == f"changed topic {topic}: max.message.bytes=5000\n"
    )
    assert "5000" in on("config", "describe", "-t", topic).out
    bad = on("config", "set", "max.message.bytes=many", "-t", topic)
    assert (bad.code, bad.out) == (1, "")
    assert "max.message.bytes" in bad.err
    assert on("config", "unset", "max.message.bytes", "-t", topic).code == 0
    assert "5000" not in on("config", "describe", "-t", topic).out
    unknown = on("config", "describe", "no.such.setting", "-t", topic)
    assert unknown.code == 1
    assert "no.such.setting" in unknown.err
    names = {e["name"] for e in json.loads(on("config", "describe", "-t", topic, "--all", "--json").out)}
    assert {"retention.ms", "cleanup.policy", "segment.bytes"} <= names


def test_broker_configs(on: Any, topic: str) -> None:
    on("topic", "create", topic)
    (described,) = json.loads(on("topic", "describe", topic, "--json").out)
    broker = described["partitions"][0]["leader"]
    everything = json.loads(on("config", "describe", "--broker", broker, "--all", "--json").out)
    assert "log.retention.hours" in {entry["name"] for entry in everything}
    assert on("config", "set", "log.cleaner.backoff.ms=14000", "--default").code == 0
    assert "14000" in on("config", "describe", "--default").out
    assert on("config", "unset", "log.cleaner.backoff.ms", "--default").code == 0
    absent = on("config", "describe", "--broker", 4711)
    assert absent.code == 1
    assert absent.err.startswith("error: there is no broker 4711 in the cluster; its brokers are ")


def test_lines_in_lines_out(on: Any, topic: str, lines: Any) -> None:
    report = json.loads(on("produce", topic, "-f", lines("one\ntwo\r\n\nfour"), "--json").out)
    assert (report["topic"], report["records"]) == (topic, 4)
    assert report["partitions"] == [{"partition": 0, "records": 4, "first_offset": 0, "last_offset": 3}]
    assert consume(on, topic) == "one\ntwo\n\nfour\n"


def test_keys_headers_and_nulls(on: Any, topic: str, lines: Any) -> None:
    on("topic", "create", topic, "-p", 3)
    path = lines("a=1\nb=2\na=GONE\n")
    assert (
        on("produce", topic, "-f", path, "-K", "=", "-H", "h=x", "-H", "flag", "--null-marker", "GONE").code
        == 0
    )
    records = [json.loads(line) for line in consume(on, topic, "--from-beginning", "--json").splitlines()]
    by_key: dict[str, list[Any]] = {}
    for record in records:
        by_key.setdefault(record["key"], []).append((record["value"], record["partition"]))
        assert record["headers"] == [{"name": "h", "value": "x"}, {"name": "flag", "value": None}]
    # murmur2("a") and murmur2("b") modulo 3, as every Kafka client computes them.
    assert by_key == {"a": [("1", 1), (None, 1)], "b": [("2", 2)]}
    shown = consume(on, topic, "--from-beginning", "-k", "-H", "-p", 1)
    assert shown == "h=x,flag=null\ta\t1\nh=x,flag=null\ta\tnull\n"
    assert consume(on, topic, "--from-beginning", "-p", 2, "-f", "%p:%o:%k") == "2:0:b\n"


def test_a_line_without_key_says_which(on: Any, topic: str, lines: Any) -> None:
    result = on("produce", topic, "-f", lines("a:1\nb\nc:3\n"), "-K", ":")
    assert result.code == 1
    assert result.err.startswith("error: line 2 has no key separator ':'")
    assert consume(on, topic) == "1\n"


@pytest.mark.parametrize(
    ("compression", "acks"), [("none", "0"), ("gzip", "1"), ("snappy", "all"), ("lz4", "0"), ("zstd", "all")]
)
def test_every_compression_and_acks(on: Any, topic: str, lines: Any, compression: str, acks: str) -> None:
    text = "".join(f"line {n} {'x' * (n % 50)}\n" for n in range(2000))
    on("topic", "create", topic)
    assert on("produce", topic, "-f", lines(text), "-z", compression, "--acks", acks).code == 0
    assert on("consume", topic, "--from-beginning", "-n", 2000).out == text


def test_where_to_begin(on: Any, topic: str, lines: Any) -> None:
    on("produce", topic, "-f", lines("".join(f"{n}\n" for n in range(10))))
    assert consume(on, topic, "--offset", 7) == "7\n8\n9\n"
    assert consume(on, topic, "--offset", -2) == "8\n9\n"
    assert consume(on, topic, "--offset", -200, "-n", 2) == "0\n1\n"
    assert consume(on, topic, "--timestamp", "1h") == "".join(f"{n}\n" for n in range(10))
    assert consume(on, topic, "--timestamp", "2100-01-01") == ""
    assert consume(on, topic, "--end") == ""
    beyond = on("consume", topic, "--offset", 99)
    assert beyond.code == 1
    assert "has offsets 0 to 10" in beyond.err


def test_limits(on: Any, topic: str, lines: Any) -> None:
    path = lines("a\nb\nc\nd\n")
    assert json.loads(on("produce", topic, "-f", path, "-n", 3, "--json").out)["records"] == 3
    assert on("consume", topic, "--from-beginning", "-n", 2).out == "a\nb\n"
    assert json.loads(on("produce", topic, "-f", path, "-n", 0, "--json").out)["records"] == 0


def test_partitions_by_hand(on: Any, topic: str, lines: Any) -> None:
    on("topic", "create", topic, "-p", 2)
    assert on("produce", topic, "-f", lines("x\n"), "-p", 1).code == 0
    assert consume(on, topic, "--from-beginning", "-p", 1) == "x\n"
    assert consume(on, topic, "--from-beginning", "-p", 0) == ""
    for wrong in (on("produce", topic, "-f", lines("x\n"), "-p", 2), on("consume", topic, "-p", 2)):
        assert wrong.code == 1
        assert f"topic {topic} has partitions 0 to 1" in wrong.err


def test_a_topic_that_is_not_there(on: Any, topic: str) -> None:
    result = on("consume", topic)
    assert (result.code, result.out) == (1, "")
    assert f"topic {topic}" in result.err
    assert "tidelog topic create" in result.err


def test_stdin_and_bytes_pass_through_untouched(process: Any, topic: str) -> None:
    payload = b"\xff\xfe\x00binary\n" + b"long " * 100_000 + b"\nend"
    code, out, err = produce(process, topic, payload)
    assert (code, out) == (0, b""), err
    running = process("consume", topic, "--from-beginning", "--exit-at-end")
    out, err = running.communicate(timeout=30)
    assert running.returncode == 0, err
    assert out == payload + b"\n"


def test_a_pipe_is_delivered_while_it_stays_open(process: Any, on: Any, topic: str) -> None:
    on("topic", "create", topic)
    writer = process("produce", topic, stdin=subprocess.PIPE)
    reader = process("consume", topic, "--from-beginning", "-n", 2)
    for line in (b"first\n", b"second\n"):
        writer.stdin.write(line)
        writer.stdin.flush()
        assert reader.stdout.readline() == line
    assert reader.wait(timeout=10) == 0
    assert writer.poll() is None
    writer.communicate(timeout=10)
    assert writer.returncode == 0


def test_ctrl_c_is_quiet(process: Any, on: Any, topic: str) -> None:
    on("topic", "create", topic)
    reader = process("consume", topic, "--from-beginning")
    writer = produce(process, topic, b"x\n")
    assert writer[0] == 0
    assert reader.stdout.readline() == b"x\n"
    reader.send_signal(signal.SIGINT)
    out, err = reader.communicate(timeout=10)
    assert (reader.returncode, out, err) == (130, b"", b"")


def test_ctrl_c_ends_a_producer_that_waits_for_input(process: Any, on: Any, topic: str) -> None:
    on("topic", "create", topic)
    writer = process("produce", topic, stdin=subprocess.PIPE)
    writer.stdin.write(b"x\n")
    writer.stdin.flush()
    assert on("consume", topic, "--from-beginning", "-n", 1).out == "x\n"
    writer.send_signal(signal.SIGINT)
    assert writer.wait(timeout=10) == 130
    assert writer.stderr.read() == b""
    writer.stdin.close()


def test_a_closed_pipe_is_quiet(process: Any, on: Any, topic: str, lines: Any) -> None:
    on("produce", topic, "-f", lines("".join(f"{n}\n" for n in range(50_000))))
    reader = process("consume", topic, "--from-beginning", "--exit-at-end")
    assert reader.stdout.readline() == b"0\n"
    reader.stdout.close()
    assert reader.wait(timeout=10) == 141
    assert reader.stderr.read() == b""


def test_bench(on: Any, topic: str) -> None:
    written = json.loads(
        on("bench", "produce", "-t", topic, "-n", 1234, "-s", 50, "-z", "lz4", "-p", 2, "--json").out
    )
    assert (written["records"], written["bytes"]) == (1234, 61_700)
    assert written["p99_ms"] >= written["p50_ms"] > 0
    read = json.loads(on("bench", "consume", "-t", topic, "--json").out)
    assert (read["topic"], read["records"]) == (topic, 1234)
    assert "RECORDS/S" in on("bench", "consume", "-t", topic).out


@pytest.mark.parametrize(
    "command",
    [
        ("produce", "t"),
        ("consume", "t"),
        ("consume", "t", "--group", "g"),
        ("bench", "consume"),
        ("dlq", "list", "t"),
    ],
)
def test_where_nobody_is_there_commands_end_at_once(tidelog: Any, command: tuple[str, ...]) -> None:
    started = time.monotonic()
    result = tidelog(*command, "-b", "127.0.0.1:1")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: cannot connect to 127.0.0.1:1: connection refused")
    assert time.monotonic() - started < 5


def test_lines_that_come_one_by_one_go_to_one_partition_after_the_other(
    process: Any, on: Any, topic: str
) -> None:
    on("topic", "create", topic, "-p", 3)
    writer = process("produce", topic, stdin=subprocess.PIPE)
    reader = process("consume", topic, "--from-beginning", "-n", 4, "-f", "%p:%v")
    seen = []
    for line in (b"a\n", b"b\n", b"c\n", b"d\n"):
        writer.stdin.write(line)
        writer.stdin.flush()
        seen.append(reader.stdout.readline())
    assert seen == [b"0:a\n", b"1:b\n", b"2:c\n", b"0:d\n"]
    reader.communicate(timeout=10)
    writer.communicate(timeout=10)


def test_a_record_that_the_topic_does_not_take_is_one_line_on_stderr(
    process: Any, on: Any, topic: str
) -> None:
    on("topic", "create", topic, "-c", "max.message.bytes=2000")
    code, out, err = produce(process, topic, b"small\n" + b"x" * 5_000 + b"\n")
    assert (code, out) == (1, b"")
    assert err.startswith(b"error: 1 records were not delivered; the first: writing to " + topic.encode())
    assert err.count(b"\n") == 1
    assert consume(on, topic) == "small\n"


def test_how_large_a_record_may_be_is_the_topics_to_say(on: Any, topic: str, lines: Any) -> None:
    on("topic", "create", topic, "-c", "max.message.bytes=8000000")
    assert on("produce", topic, "-f", lines("x" * 6_000_000)).code == 0
    assert len(consume(on, topic)) == 6_000_001


def test_more_lines_than_are_read_ahead(on: Any, topic: str, lines: Any) -> None:
    on("topic", "create", topic, "-p", 2)
    report = json.loads(on("produce", topic, "-f", lines(f"{'x' * 100_000}\n" * 200), "--json").out)
    assert (report["records"], len(report["partitions"])) == (200, 2)
    assert on("consume", topic, "--from-beginning", "--exit-at-end", "-f", "%p").out.count("\n") == 200


def test_batches_of_a_benchmark_that_are_too_large(on: Any, topic: str) -> None:
    on("topic", "create", topic, "-c", "max.message.bytes=2000")
    result = on("bench", "produce", "-t", topic, "-n", 1_000)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: a batch of ") and "--batch-bytes" in result.err
    assert result.err.count("\n") == 1
    assert on("bench", "produce", "-t", topic, "-n", 1_000, "--batch-bytes", 1_500).code == 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog.cli import reading

    monkeypatch.setattr(reading, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(reading, "PATIENCE_MS", 500)


@pytest.mark.parametrize("options", [(), ("--group", "g")])
def test_a_topic_that_is_deleted_ends_whoever_waits_for_its_records(
    on: Any, topic: str, bootstrap: str, impatient: None, options: tuple[str, ...]
) -> None:
    on("topic", "create", topic)

    async def delete() -> None:
        async with Admin(bootstrap) as admin:
            await admin.delete_topics([topic])

    with after(1.0, lambda: asyncio.run(delete())):
        result = on("consume", topic, "--from-beginning", *options)
    assert (result.code, result.out) == (1, "")
    assert f"error: topic {topic}: it does not exist" in result.err


def test_a_cluster_that_went_away_ends_whoever_waits_for_its_records(tidelog: Any, impatient: None) -> None:
    with Cluster(topics=["t"]) as cluster, after(1.0, cluster.stop):
        result = tidelog("consume", "t", "-b", cluster.bootstrap_servers)
    assert (result.code, result.out) == (1, "")
    assert "error: cannot connect to 127.0.0.1:" in result.err


@contextmanager
def after(seconds: float, work: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(seconds, work)
    timer.start()
    try:
        yield
    finally:
        timer.join()
