"""180,000 hostile frames and batches against everything that reads them, in this process: refused or read, nothing else (I53).

Requests as the dispatcher reads them, answers as a client does, record batches as a broker validates and a consumer reads them. No
exception but the three that mean "refused", no frame that takes long, no allocation out of proportion. `make fuzz` runs more
seeds of the same.
"""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from tests.fuzz import batches
from tests.fuzz.contents import Contents
from tests.fuzz.effort import seeds
from tests.fuzz.frames import Frame, Frames, served
from tests.fuzz.readers import (
    REFUSALS,
    RULES,
    find_time,
    read_batch,
    read_records,
    read_request,
    read_response,
)
from tests.fuzz.shapes import write
from tests.fuzz.watch import Watch
from tidelog.errors import CorruptDataError, ProtocolError, RequestError
from tidelog.wire.api import spec
from tidelog.wire.codec import decode

SHARDS = 12
REQUESTS, RESPONSES, BATCHES = 9_000, 3_500, 2_500
WEIGHED = 25  # one in so many is run once more with every allocation counted
CHECKED = 8  # one in so many is written and read again
COLUMNAR = 4  # one in so many is also read by the columnar reader
BOMB_BYTES = 16 << 20
"""What a bomb of a MiB may cost on top: the output, once more as a value, and the compressor's room."""

Report = Callable[[str], None]


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """The columnar reader compiles itself at its first batch, once per machine: not on the time of a hostile one."""
    with contextlib.suppress(CorruptDataError):
        read_records(batches.sound(Random(0)), columnar=True)


@pytest.mark.parametrize("seed", seeds(SHARDS))
def test_hostile_frames_are_read_or_refused(seed: int, tally: Callable[[dict[str, float]], None]) -> None:
    began = time.perf_counter()
    frames = Frames(seed)
    watch = Watch(*REFUSALS)
    for number, frame in zip(range(REQUESTS), frames.requests(), strict=False):
        _look(watch, seed, number, frame, partial(read_request, frame.data))
    for number, frame in zip(range(RESPONSES), frames.responses(), strict=False):
        _look(watch, seed, number, frame, partial(read_response, frame.api_key, frame.version, frame.data))
    rng = Random(seed)
    for number in range(BATCHES):
        how, data = batches.hostile(rng)
        frame = Frame(0, 0, f"batch with wrong {how}", data)
        _look(watch, seed, number, frame, partial(_read_batch, data, number))
    total = REQUESTS + RESPONSES + BATCHES
    assert sum(watch.outcomes.values()) >= total
    assert watch.outcomes["read"] > total // 5, (
        "hardly anything was read: the fuzzer does not get past the first check"
    )
    refused = total - watch.outcomes["read"]
    assert refused > total // 5, "hardly anything was refused: the fuzzer spoils nothing"
    tally({"frames": total, "seconds": time.perf_counter() - began, **watch.numbers()})


def _look(watch: Watch, seed: int, number: int, frame: Frame, read: Callable[..., None]) -> None:
    describe = partial(frame.describe, seed, number)
    watch.run(partial(read, checked=number % CHECKED == 0), describe)
    if number % WEIGHED == 0:
        tracemalloc.start()
        try:
            extra = BOMB_BYTES if frame.how.startswith("batch") else 0
            watch.run_weighed(partial(read, checked=False), describe, len(frame.data), extra)
        finally:
            tracemalloc.stop()


def _read_batch(data: bytes, number: int, *, checked: bool) -> None:
    """All readers of a batch in turn; what the broker's validation says is the outcome."""
    with contextlib.suppress(CorruptDataError):
        read_records(data, columnar=number % COLUMNAR == 0)
    with contextlib.suppress(CorruptDataError):
        find_time(data, (0, batches.NOW_MS, -1, batches.INT64_MAX)[number % 4])
    read_batch(data, RULES[number % len(RULES)], produce_version=3 + number % 11)


def test_the_same_seed_gives_the_same_frames() -> None:
    def drawn(seed: int) -> list[Frame]:
        frames = Frames(seed)
        return [frame for _, frame in zip(range(500), frames.requests(), strict=False)] + [
            frame for _, frame in zip(range(500), frames.responses(), strict=False)
        ]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


@pytest.mark.parametrize(("key", "version"), served())
def test_the_fuzzers_own_writer_writes_what_the_codec_reads(key: int, version: int) -> None:
    """Without mutations every message is valid: otherwise the fuzzer would fuzz the first check only."""
    contents = Contents(Random(key * 100 + version))
    for cls in (spec(key).request_class, spec(key).response_class):
        for _ in range(20):
            shape = write(cls, version, contents)
            decode(cls, version, shape.data)
            assert all(0 <= mark.start <= mark.end <= len(shape.data) for mark in shape.marks)


def test_every_prefix_of_every_request_is_refused_or_read(report: Report) -> None:
    """Truncation at every byte, header and all."""
    watch = Watch(ProtocolError)
    count = 0
    for key, version in served():
        frames = Frames(key, apis=[(key, version)])
        shape = next(frame for frame in frames.requests() if frame.how == "keep" and len(frame.data) < 600)
        for end in range(len(shape.data)):
            watch.run(partial(read_request, shape.data[:end]), partial(shape.describe, key, end))
            count += 1
    report(f"prefixes: {count} of {len(served())} requests: {watch.summary()}")


def test_every_wrong_batch_is_known_by_its_name(report: Report) -> None:
    """Each way to be wrong, against each set of rules: which are refused, and nothing else happens."""
    rng = Random(1)
    accepted: dict[str, int] = {}
    for way, spoil in batches.WRONG.items():
        for _ in range(40):
            data = spoil(batches.sound(rng), rng)
            for rules in RULES:
                try:
                    read_batch(data, rules)
                except (RequestError, CorruptDataError):
                    continue
                accepted[way] = accepted.get(way, 0) + 1
    assert "magic" not in accepted and "crc" not in accepted and "control bit" not in accepted
    assert "count and no records" not in accepted
    report(
        "batches accepted although wrong by name (a value may be harmless): "
        + ", ".join(f"{way} {n}" for way, n in accepted.items())
    )


def test_the_watch_notices_what_it_should() -> None:
    """The harness itself: a wrong exception, a slow reader and a greedy one are caught."""

    def wrong() -> None:
        raise KeyError("x")

    with pytest.raises(AssertionError, match="KeyError"):
        Watch(ProtocolError).run(wrong, str)
    with pytest.raises(AssertionError, match="took"):
        Watch(ProtocolError).run(lambda: sum(range(10_000_000)), str)
    tracemalloc.start()
    try:
        with pytest.raises(AssertionError, match="allocated"):
            Watch(ProtocolError).run_weighed(lambda: bytearray(2_000_000), str, 10)
    finally:
        tracemalloc.stop()
