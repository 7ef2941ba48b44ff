"""The replay of system calls, and the verdict on what a crash left: each rule on a trace or a history of a few lines, without strace."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tidelog.testing.sim.inodes import Fate, Inode
from tidelog.testing.syscalls import strace
from tidelog.testing.syscalls.conversations import Exchange
from tidelog.testing.syscalls.crash_states import LOSSES, Recording, crash_states
from tidelog.testing.syscalls.filesystem import TracedFiles, walk
from tidelog.testing.syscalls.history import History, body_of
from tidelog.testing.syscalls.strace import TraceError
from tidelog.testing.syscalls.verdict import Shown, ShownBatch, ShownPartition, ShownTopic, violations
from tidelog.wire.api import ApiKey
from tidelog.wire.headers import RequestHeader, encode_request, encode_response
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from tidelog.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tools.peers.raw import build_batch

ROOT = "/data/log"


def quoted(data: str | bytes) -> str:
    raw = os.fsencode(data)
    return '"' + "".join(f"\\x{byte:02x}" for byte in raw) + '"'


def line(text: str, thread: int = 7) -> str:
    return f"{thread} 1794805821.950374 {text}\n"


def opened(path: str, descriptor: int, *, flags: str = "O_RDWR|O_CREAT|O_CLOEXEC", thread: int = 7) -> str:
    return line(f"openat(AT_FDCWD, {quoted(path)}, {flags}, 0644) = {descriptor}", thread)


def written(descriptor: int, data: bytes, position: int) -> str:
    vector = f"[{{iov_base={quoted(data)}, iov_len={len(data)}}}]"
    return line(f"pwritev2({descriptor}, {vector}, 1, {position}, 0) = {len(data)}")


BEGINNING = [
    line(f"mkdir({quoted(ROOT)}, 0777) = 0"),
    opened("/data", 3, flags="O_RDONLY|O_DIRECTORY"),
    line("fsync(3)        = 0"),
    line("close(3)        = 0"),
    opened(ROOT, 3, flags="O_RDONLY|O_DIRECTORY"),
]


def replayed(*lines: str, ended: bool = False, real: Path | None = None) -> TracedFiles:
    files = TracedFiles(ROOT)
    for event in strace.parse([*BEGINNING, *lines]):
        (files.end if event.ended else files.begin)(event.call)
    if ended:
        files.process_ended(real)
    return files


def left(files: TracedFiles, loss: str = "all is lost") -> dict[str, bytes]:
    """The files below the root after a power loss."""
    ((_, machine),) = crash_states(files.machine, [loss], 0, Random(0))
    return {
        path[len(ROOT) + 1 :]: bytes(node.live)
        for path, node in walk(machine.root)
        if path.startswith(ROOT + "/") and isinstance(node, Inode)
    }


# ---- reading a trace


@pytest.mark.parametrize("text", ["???( <unfinished ...>", "???()           = ?", "<... ??? resumed>) = ?"])
def test_a_thread_killed_at_the_door_of_a_call_has_done_nothing(text: str) -> None:
    assert strace.parse([line(text, 2)]) == []


def test_calls_of_two_threads_overlap() -> None:
    events = strace.parse(
        [
            line("fdatasync(5 <unfinished ...>", 1),
            line("recvfrom(9,  <unfinished ...>", 2),
            line("<... fdatasync resumed>)          = 0", 1),
            line(f"<... recvfrom resumed>{quoted(b'ab')}, 4096, 0, NULL, NULL) = 2", 2),
            line("+++ exited with 0 +++", 1),
        ]
    )
    assert [(event.call.name, event.ended) for event in events] == [
        ("fdatasync", False),
        ("recvfrom", False),
        ("fdatasync", True),
        ("recvfrom", True),
    ]
    received = events[1].call
    assert (received.descriptor(), received.strings(), received.result) == (9, [b"ab"], 2)


@pytest.mark.parametrize(
    "lines",
    [
        ["fsync(5 <unfinished ...>"],
        ["fsync(5 <detached ...>"],
        ["fsync(5)     = ?"],
        ["fsync(5)     = ? <unavailable>"],
        ["fsync(5 <unfinished ...>", "<... fsync resumed>)  = ?"],
        ["fsync(5 <unfinished ...>", "<... fsync resumed> <unfinished ...>) = ?"],
        ["fsync(5 <unfinished ...>", "<... fsync resumed> <detached ...>"],
    ],
)
def test_a_call_that_never_returned_has_begun_only(lines: list[str]) -> None:
    """All the ways in which strace says that the process was killed within it."""
    events = strace.parse([*map(line, lines), line("+++ killed by SIGKILL +++")])
    assert [(event.call.name, event.ended) for event in events] == [("fsync", False)]
    assert (events[0].call.descriptor(), events[0].call.result) == (5, None)


def test_a_string_that_strace_cut_is_no_string() -> None:
    (event, _) = strace.parse([line(f"sendto(4, {quoted(b'abc')}..., 9, 0, NULL, 0) = 9")])
    with pytest.raises(TraceError, match="cut"):
        event.call.strings()


def test_a_line_of_no_known_form_is_not_passed_over() -> None:
    with pytest.raises(TraceError, match="no known form"):
        strace.parse([line("something else")])


@pytest.fixture
def only_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory as the only place where programs are."""
    monkeypatch.setenv("PATH", str(tmp_path))
    strace.unavailable.cache_clear()
    yield tmp_path
    strace.unavailable.cache_clear()


def test_a_machine_without_strace_is_told_what_to_install(only_path: Path) -> None:
    assert "apt install strace" in (strace.unavailable() or "")


def test_a_machine_that_forbids_tracing_is_told_so(only_path: Path) -> None:
    program = only_path / "strace"
    program.write_text("#!/bin/sh\necho 'PTRACE_TRACEME: Operation not permitted' >&2\nexit 1\n")
    program.chmod(0o755)
    reason = strace.unavailable() or ""
    assert "SYS_PTRACE" in reason and reason.endswith("PTRACE_TRACEME: Operation not permitted")


# ---- what is durable when


def test_bytes_need_a_sync_and_names_need_one_of_their_own() -> None:
    create = [opened(f"{ROOT}/a", 4), written(4, b"one", 0)]
    assert left(replayed(*create)) == {}
    synced = [*create, line("fdatasync(4)    = 0")]
    assert left(replayed(*synced)) == {}, "the bytes are there, but they have no name"
    assert left(replayed(*synced), "bytes are lost, names kept") == {"a": b"one"}
    assert left(replayed(*create, line("fsync(3) = 0"))) == {"a": b""}, "a name without its bytes"
    assert left(replayed(*synced, line("fsync(3) = 0"))) == {"a": b"one"}


def test_a_sync_covers_what_ended_before_it_began() -> None:
    trace = [
        opened(f"{ROOT}/a", 4),
        line("fsync(3) = 0"),
        written(4, b"one", 0),
        line("fdatasync(4 <unfinished ...>", 2),
        written(4, b"two", 3),
    ]
    assert left(replayed(*trace)) == {"a": b""}, "begun is not done"
    assert left(replayed(*trace, line("<... fdatasync resumed>) = 0", 2))) == {"a": b"one"}


def test_a_rename_is_durable_with_its_directory() -> None:
    trace = [
        opened(f"{ROOT}/a", 4),
        written(4, b"old", 0),
        line("fdatasync(4) = 0"),
        opened(f"{ROOT}/b", 5),
        written(5, b"new", 0),
        line("fdatasync(5) = 0"),
        line("fsync(3) = 0"),
        line(f"rename({quoted(ROOT + '/b')}, {quoted(ROOT + '/a')}) = 0"),
    ]
    assert left(replayed(*trace)) == {"a": b"old", "b": b"new"}
    assert left(replayed(*trace), "all is kept") == {"a": b"new"}
    assert left(replayed(*trace, line("fsync(3) = 0"))) == {"a": b"new"}


def test_names_in_a_directory_that_is_open() -> None:
    """As removing a tree does it."""
    trace = [
        line(f"mkdir({quoted(ROOT + '/d')}, 0777) = 0"),
        opened(f"{ROOT}/d/a", 4),
        opened(f"{ROOT}/d", 5, flags="O_RDONLY|O_DIRECTORY"),
        line(f"unlinkat(5, {quoted('a')}, 0) = 0"),
        line(f"rmdir({quoted(ROOT + '/d')}) = 0"),
    ]
    assert [path for path, _ in walk(replayed(*trace[:3]).machine.root)][-1] == f"{ROOT}/d/a"
    assert [path for path, _ in walk(replayed(*trace).machine.root)][-1] == ROOT


def test_what_the_process_died_within_may_have_happened_and_is_not_durable() -> None:
    trace = [
        opened(f"{ROOT}/a", 4),
        line("fsync(3) = 0"),
        line(f"pwrite64(4, {quoted(b'one')}, 3, 0 <unfinished ...>"),
        line("fdatasync(4 <unfinished ...>", 2),
    ]
    files = replayed(*trace, ended=True)
    assert left(files) == {"a": b""}
    assert left(files, "all is kept") == {"a": b"one"}


@pytest.mark.parametrize("happened", [True, False])
def test_the_directory_tells_what_the_process_died_within(tmp_path: Path, happened: bool) -> None:
    trace = [
        opened(f"{ROOT}/old", 4),
        opened(f"{ROOT}/gone", 5),
        opened(f"{ROOT}/cut", 6),
        line(f"pwrite64(6, {quoted(b'xyz')}, 3, 0) = 3"),
        line(f"pwrite64(4, {quoted(b'one')}, 3, 0 <unfinished ...>", 1),
        line(f"rename({quoted(ROOT + '/old')}, {quoted(ROOT + '/new')} <unfinished ...>", 2),
        line(f"unlink({quoted(ROOT + '/gone')} <unfinished ...>", 3),
        line("ftruncate(6, 1 <unfinished ...>", 4),
        line(f"mkdir({quoted(ROOT + '/made')}, 0777 <unfinished ...>", 5),
        line(f"openat(AT_FDCWD, {quoted(ROOT + '/opened')}, O_RDWR|O_CREAT, 0644 <unfinished ...>", 6),
    ]
    if happened:
        real: dict[str, bytes] = {
            "new": b"on",
            "cut": b"x",
            "opened": b"",
        }  # and two of three bytes were written
        (tmp_path / "made").mkdir()
    else:
        real = {"old": b"", "gone": b"", "cut": b"xyz"}
    for name, data in real.items():
        (tmp_path / name).write_bytes(data)
    files = replayed(*trace, ended=True, real=tmp_path)
    assert left(files, "all is kept") == real
    assert (files.machine.find(f"{ROOT}/made") is not None) == happened
    assert left(files) == {}


def test_calls_that_failed_change_nothing() -> None:
    trace = [
        opened(f"{ROOT}/a", 4),
        line(f"unlink({quoted(ROOT + '/a')}) = -1 EACCES (Permission denied)"),
        line("fsync(3) = -1 EIO (Input/output error)"),
    ]
    files = replayed(*trace)
    assert left(files, "all is kept") == {"a": b""}
    assert left(files) == {}, "a failed sync makes nothing durable"


@pytest.mark.parametrize(
    "call",
    [
        f"write(4, {quoted(b'one')}, 3) = 3",
        "fallocate(4, FALLOC_FL_PUNCH_HOLE|FALLOC_FL_KEEP_SIZE, 0, 1) = 0",
        "sync() = 0",
        f"link({quoted(ROOT + '/a')}, {quoted(ROOT + '/b')}) = 0",
        f"rename({quoted(ROOT + '/unheard-of')}, {quoted(ROOT + '/b')}) = 0",
    ],
)
def test_a_change_of_unknown_kind_is_not_passed_over(call: str) -> None:
    with pytest.raises(TraceError):
        replayed(opened(f"{ROOT}/a", 4), line(call))


def test_a_write_can_be_torn() -> None:
    files = replayed(opened(f"{ROOT}/a", 4), line("fsync(3) = 0"), written(4, b"x" * 1024, 0))
    torn = files.machine.after_power_loss([Fate.sectors((False, True), 512)])
    (node,) = [node for path, node in walk(torn.root) if path == f"{ROOT}/a"]
    assert isinstance(node, Inode) and bytes(node.live) == bytes(512) + b"x" * 512


# ---- what was said when


def test_an_answer_counts_when_the_send_of_its_last_byte_begins(tmp_path: Path) -> None:
    header = RequestHeader(ApiKey.INIT_PRODUCER_ID, 4, 12, "c")
    request = encode_request(header, InitProducerIdRequest(transactional_id=None))
    parts = encode_response(header.api_key, 4, 12, InitProducerIdResponse(producer_id=5))
    answer = b"".join(part for part in parts if isinstance(part, bytes))
    trace = tmp_path / "trace"
    trace.write_text(
        line("accept4(6, NULL, NULL, SOCK_CLOEXEC) = 8")
        + line(f"recvfrom(8, {quoted(request[:5])}, 99, 0, NULL, NULL) = 5")
        + line(f"recvfrom(8, {quoted(request[5:])}, 99, 0, NULL, NULL) = {len(request) - 5}")
        + line(f"sendto(8, {quoted(answer)}, {len(answer)}, 0, NULL, 0) = 7")
        + line(f"sendto(8, {quoted(answer[7:])}, {len(answer) - 7}, 0, NULL, 0 <unfinished ...>")
    )
    recording = Recording(ROOT, [trace])
    (exchange,) = recording.exchanges
    assert (exchange.asked_at, exchange.answered_at) == (5, 8), "the kill after that may have come too late"
    (given,) = recording.history.producer_ids
    assert given.value == 5 and given.is_promised(8) and not given.is_promised(7)


def test_an_answer_to_nothing_is_not_passed_over(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text(
        line("accept4(6, NULL, NULL, SOCK_CLOEXEC) = 8")
        + line(f"sendto(8, {quoted(bytes(4))}, 4, 0, NULL, 0) = 4")
    )
    with pytest.raises(TraceError, match="does not show"):
        Recording(ROOT, [trace])


# ---- the verdict

TOPIC_ID = b"t" * 16
PRODUCER_ID = 40


def batch(number: int) -> bytes:
    values = [b"value %d" % number] * 2
    return build_batch(
        values, timestamp_ms=1000, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=2 * number
    )


def a_history() -> History:
    """t is created and gets batches at 0, 2 and 4 (the last without an answer); records below 2 are deleted; `gone` is."""
    config = CreatableTopicConfig("retention.ms", "77")
    exchanges = [
        Exchange(
            ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic(name, 1, 1, configs=[config]) for name in ("t", "gone")]), 1,
            CreateTopicsResponse(topics=[CreatableTopicResult("t", TOPIC_ID), CreatableTopicResult("gone", b"g" * 16)]), 2,
        ),
        Exchange(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(), 3, InitProducerIdResponse(producer_id=PRODUCER_ID), 4),
        produced(0, 5, 10),
        produced(1, 11, 20),
        Exchange(
            ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 2)])]), 21,
            DeleteRecordsResponse(topics=[DeleteRecordsTopicResult("t", [DeleteRecordsPartitionResult(0, 2)])]), 30,
        ),
        Exchange(
            ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=-1)])]), 31,
            ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [ListOffsetsPartitionResponse(0, offset=4)])]), 32,
        ),
        Exchange(
            ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=[DeleteTopicState("gone")]), 33,
            DeleteTopicsResponse(responses=[DeletableTopicResult("gone")]), 40,
        ),
        produced(2, 41, None),
    ]  # fmt: skip
    return History(exchanges)


def produced(number: int, asked_at: int, answered_at: int | None) -> Exchange:
    request = ProduceRequest(
        acks=-1, topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData(0, batch(number))])]
    )
    answer = PartitionProduceResponse(0, base_offset=2 * number)
    response = ProduceResponse([TopicProduceResponse("t", partition_responses=[answer])])
    return Exchange(
        ApiKey.PRODUCE, 9, request, asked_at, None if answered_at is None else response, answered_at
    )


def stored(*numbers: int) -> tuple[ShownBatch, ...]:
    return tuple(ShownBatch(2 * number, 2 * number + 2, body_of(batch(number))) for number in numbers)


PARTITION = ShownPartition(2, 4, stored(1), {(PRODUCER_ID, 2): 2})
TOPIC = ShownTopic(TOPIC_ID, {"retention.ms": "77"}, {0: PARTITION})
GOOD = Shown({"t": TOPIC}, PRODUCER_ID + 1)
END = 50


def with_partition(**changes: object) -> Shown:
    partition = dataclasses.replace(PARTITION, **changes)  # type: ignore[arg-type]
    return Shown({"t": dataclasses.replace(TOPIC, partitions={0: partition})}, PRODUCER_ID + 1)


def with_topic(**changes: object) -> Shown:
    return Shown({"t": dataclasses.replace(TOPIC, **changes)}, PRODUCER_ID + 1)  # type: ignore[arg-type]


def test_all_kept_is_no_violation() -> None:
    assert violations(a_history(), END, GOOD) == []


def test_what_was_only_asked_may_be_there() -> None:
    more = with_partition(high_watermark=6, batches=stored(1, 2))
    assert violations(a_history(), END, more) == []
    assert violations(a_history(), 40, more) == ["t-0: nobody sent the records at offset 4"]


def test_before_an_answer_nothing_is_promised() -> None:
    history = a_history()
    assert violations(history, 0, Shown()) == []
    assert violations(history, 1, Shown()) == []
    assert violations(history, 2, Shown()) == ["topic t is gone", "topic gone is gone"]
    assert violations(history, 33, GOOD) == [], "the deletion was asked for: it may have happened"
    assert violations(history, 32, GOOD) == ["topic gone is gone"]


@pytest.mark.parametrize(
    ("shown", "complaint"),
    [
        (with_partition(batches=(), high_watermark=2, retries={}), "records 2 to 3 were acknowledged, and they are not there"),
        (with_partition(batches=(ShownBatch(2, 4, body_of(batch(2))),)), "other records stand there"),
        (with_partition(batches=(*stored(1), ShownBatch(4, 6, body_of(batch(1)))), high_watermark=6), "stand at 2 already"),
        (with_partition(batches=(*stored(1), ShownBatch(5, 7, body_of(batch(2)))), high_watermark=7), "offset 5 follows on 3"),
        (with_partition(batches=stored(1), high_watermark=6), "can be read up to 4, and the high watermark is 6"),
        (with_partition(high_watermark=3), "the high watermark is 3, and clients were told 4"),
        (with_partition(log_start_offset=0, batches=stored(0, 1)), "were deleted and are back"),
        (with_partition(log_start_offset=4, batches=()), "nobody deleted records beyond 2"),
        (with_partition(retries={(PRODUCER_ID, 2): 4}), "sent again, gives 4"),
        (with_partition(retries={(PRODUCER_ID, 2): "OUT_OF_ORDER_SEQUENCE_NUMBER"}), "sent again, gives OUT_OF_ORDER"),
        (with_topic(settings={}), "retention.ms of t is None, not 77"),
        (with_topic(partitions={}), "topic t has 0 partitions, not 1"),
        (with_topic(topic_id=b"u" * 16), "has an id that nobody was told"),
        (with_topic(partitions={0: "KAFKA_STORAGE_ERROR"}), "t-0 cannot be read: KAFKA_STORAGE_ERROR"),
        (Shown({}, PRODUCER_ID + 1), "topic t is gone"),
        (Shown({"t": TOPIC, "gone": TOPIC}, PRODUCER_ID + 1), "topic gone is back"),
        (Shown({"t": TOPIC, "odd": TOPIC}, PRODUCER_ID + 1), "topic odd is there, and nobody created it"),
        (Shown({"t": TOPIC}, PRODUCER_ID), "producer id 40 is given out a second time"),
        (Shown(failure="no"), "the broker does not start: no"),
    ],
)  # fmt: skip
def test_every_broken_promise_is_named(shown: Shown, complaint: str) -> None:
    assert any(complaint in problem for problem in violations(a_history(), END, shown))


def test_every_loss_has_a_fate_for_every_operation() -> None:
    files = replayed(opened(f"{ROOT}/a", 4), written(4, b"one", 0), written(4, b"two", 3))
    ops = files.machine.pending_ops()
    assert len(ops) == 3
    losses: list[Callable[..., list[Fate]]] = list(LOSSES.values())
    assert all(len(loss(ops)) == 3 for loss in losses)
