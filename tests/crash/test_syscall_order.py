"""What a power loss may leave of a real broker, told from its own system calls: no promise is broken (I1, I2, I3, I39, I49, M26, M33).

kill -9 loses no page cache and cannot show a missing fsync. Here the broker runs under strace; every write, rename and sync is replayed on
a model that knows what was durable when; power is cut at answers, syncs and renames; and a broker that starts on what is left must show
everything that had been answered by then. Brokers that answer too early or forget a sync must be caught by the same.

`TIDELOG_TEST_EFFORT` multiplies the losses tried. A failure names its seed and its traces: `TIDELOG_CRASH_SEED` and `TIDELOG_CRASH_TRACES` (the
directory they are in) try the same again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import EFFORT
from tests.crash.mutants import MUTANTS
from tests.crash.traced import TracedBroker
from tests.crash.traced_load import SETTINGS, Told, one_of_each, whole_life
from tidelog.storage.posix_disk import PosixDisk
from tidelog.testing.sim.disk import SimDisk, SimFile
from tidelog.testing.sim.inodes import Machine
from tidelog.testing.syscalls import strace
from tidelog.testing.syscalls.crash_states import LOSSES, Moment, Recording, crash_states
from tidelog.testing.syscalls.filesystem import differences, write_out
from tidelog.testing.syscalls.recovery import as_disk, recover, show
from tidelog.testing.syscalls.verdict import Shown, violations
from tidelog.wire.api import ApiKey
from tools.peers.tidelog import TidelogPeer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 60 * EFFORT)]

ALL_IS_LOST = "all is lost"
OTHER_LOSSES = [label for label in LOSSES if label != ALL_IS_LOST]
CHANCE_OF_A_LOSS = min(1.0, 0.06 * EFFORT)
DRAWS = 0.05 * EFFORT
"""Losses drawn at random per moment."""
SECOND_CRASHES = 20 * EFFORT
REAL_DIRECTORIES = 4 * EFFORT
REAL_PROCESSES = 1 + EFFORT


@dataclass
class Traced:
    recording: Recording
    told: Told
    log_dir: Path
    chance: random.Random


@pytest.fixture(scope="module", autouse=True)
def can_trace() -> None:
    reason = strace.unavailable()
    if reason is not None:
        warnings.warn(f"power losses of a real broker are not tested: {reason}", stacklevel=1)
        pytest.skip(reason)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Hundreds of recoveries have much to say, and all of it is checked here."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    if "TIDELOG_CRASH_TRACES" in os.environ:
        place = Path(os.environ["TIDELOG_CRASH_TRACES"])
        traces = sorted(path for path in place.glob("trace-*") if path.is_file())
        assert traces, f"{place} holds no traces"
        return Traced(Recording(str(place / "data"), traces), Told(), place / "data", random.Random())
    broker = TracedBroker(tmp_path_factory.mktemp("traced"), settings=SETTINGS)
    try:
        told = whole_life(broker)
    finally:
        broker.kill()
    return Traced(broker.recording(), told, broker.log_dir, random.Random())


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    if "traced" in request.fixturenames:
        seed = int(os.environ.get("TIDELOG_CRASH_SEED", random.randrange(1 << 32)))
        print(f"TIDELOG_CRASH_SEED={seed}")
        request.getfixturevalue("traced").chance.seed(seed)


def test_the_trace_tells_the_whole_story(traced: Traced) -> None:
    """Replayed, it ends in the very files on disk; the answers in it are those that the clients got; and much has happened."""
    recording = traced.recording
    assert differences(recording.final_state(), str(traced.log_dir)) == []
    answered = {
        (life.name, index, batch.base_offset + number)
        for lives in recording.history.topics.values()
        for life in lives
        for index, partition in life.partitions.items()
        for batch in partition.batches
        if batch.answered_at is not None
        for number in range(batch.records)
    }
    assert traced.told.delivered.keys() <= answered, "a client was told of more than the broker said"
    answers = Counter(exchange.key for exchange in recording.exchanges if exchange.answered_at is not None)
    for key in (
        ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS,
        ApiKey.CREATE_PARTITIONS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.INIT_PRODUCER_ID,
    ):  # fmt: skip
        assert answers[key] > 0, f"nothing was promised by {key.name}"
    segments = list(traced.log_dir.glob("orders-*/*.log"))
    assert len(segments) > 8, "hardly any segment was rolled"
    moments = Counter(moment.why for moment, _ in recording.moments())
    assert moments["unlink"] > 5, "retention removed next to nothing"
    assert moments["rename"] > 20 and moments["fdatasync done"] > 100


def test_no_power_loss_breaks_a_promise(traced: Traced) -> None:
    recording, chance = traced.recording, traced.chance
    shown: dict[int, Shown] = {}
    losses = retries = 0
    for moment, machine in recording.moments():
        labels = [ALL_IS_LOST, *(label for label in OTHER_LOSSES if chance.random() < CHANCE_OF_A_LOSS)]
        draws = int(DRAWS) + (chance.random() < DRAWS % 1)
        for label, left in crash_states(machine, labels, draws, chance):
            losses += 1
            mark = left.fingerprint()
            if mark not in shown:
                shown[mark] = recover(as_disk(left), recording.root, recording.history)
                retries += count_retries(shown[mark])
            check(recording, moment, label, shown[mark])
    print(f"{losses} power losses, {len(shown)} different disks, {retries} batches sent again")
    assert len(shown) > 250 and retries > 1000, "hardly anything was tried"


def test_a_second_loss_right_after_the_start_changes_nothing(traced: Traced) -> None:
    """What a broker shows after a kill or a loss is durable: it came from the page cache, and nobody else will sync it (I49)."""
    recording, chance = traced.recording, traced.chance
    for moment, machine in sampled(traced, SECOND_CRASHES):
        label, disk = "killed", as_disk(machine.copy())
        if chance.random() < 0.5:
            ((label, left),) = crash_states(machine, [chance.choice(OTHER_LOSSES)], 0, chance)
            disk = as_disk(left)
        first, second = started_twice(recording, disk)
        check(recording, moment, label, first)
        check(recording, moment, f"{label}, started, then power was lost", second)
        assert second.topics == first.topics, (
            f"at {moment}, {label}: what was shown is gone after the next loss"
        )
        assert second.new_producer_id > first.new_producer_id


def test_a_start_that_syncs_nothing_is_caught(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "sync", lambda self: None)
    for moment, machine in traced.recording.moments():
        if moment.why == "fdatasync begun":
            first, second = started_twice(traced.recording, as_disk(machine.copy()))
            if second.topics != first.topics:
                return
    pytest.fail("nobody saw it")


def test_real_files_show_the_same(traced: Traced, tmp_path: Path) -> None:
    recording = traced.recording
    for number, (moment, machine) in enumerate(sampled(traced, REAL_DIRECTORIES)):
        ((label, left),) = (
            crash_states(machine, [], 1, traced.chance) if machine.pending_ops() else [("", machine.copy())]
        )
        target = tmp_path / str(number)
        write_out(left, recording.root, target)
        simulated = recover(as_disk(left), recording.root, recording.history)
        real = recover(PosixDisk(), str(target), recording.history)
        check(recording, moment, label, real)
        assert real == simulated, f"at {moment}, {label}"


def test_a_real_process_starts_on_it(traced: Traced, tmp_path: Path) -> None:
    recording = traced.recording
    for number, (moment, machine) in enumerate(sampled(traced, REAL_PROCESSES)):
        ((label, left),) = crash_states(machine, [ALL_IS_LOST], 0, traced.chance)
        broker = TidelogPeer(data_dir=tmp_path / str(number))
        write_out(left, recording.root, broker.log_dir)
        try:
            broker.start()
            shown = asyncio.run(show(broker.port, recording.history))
        finally:
            broker.kill()
        check(recording, moment, label, shown)


FAULTS = {
    "answer_before_fdatasync": "were acknowledged, and they are not there",
    "records_before_fdatasync": "were acknowledged, and they are not there",
    "metadata_before_fdatasync": "topic kept is gone",
    "roll_without_directory_sync": "were acknowledged, and they are not there",
    "checkpoint_without_directory_sync": "were deleted and are back",
    "checkpoint_renamed_before_its_sync": "were deleted and are back",
}


def test_a_sound_broker_passes_where_mutants_are_caught(tmp_path: Path) -> None:
    broker = record_one_of_each(tmp_path, None)
    assert list(faults_found(broker.recording())) == []


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(tmp_path: Path, mutant: str) -> None:
    recording = record_one_of_each(tmp_path, mutant).recording()
    assert any(FAULTS[mutant] in fault for fault in faults_found(recording)), "the fault was not seen"


# ---- helpers


def started_twice(recording: Recording, disk: SimDisk) -> tuple[Shown, Shown]:
    """What a broker shows that starts here, and the next one after everything unsynced was lost. Nothing is sent to them: that would sync."""
    first = recover(disk, recording.root, recording.history, retry=False)
    return first, recover(disk.crash("lose_unsynced"), recording.root, recording.history, retry=False)


def check(recording: Recording, moment: Moment, label: str, shown: Shown) -> None:
    broken = violations(recording.history, moment.place, shown)
    assert not broken, f"power lost after {moment.why} (event {moment.place}), {label}: " + "; ".join(
        broken[:5]
    )


def count_retries(shown: Shown) -> int:
    return sum(
        0 if isinstance(partition, str) else len(partition.retries)
        for topic in shown.topics.values()
        for partition in topic.partitions.values()
    )


def sampled(traced: Traced, count: int) -> Iterator[tuple[Moment, Machine]]:
    """So many moments of the recording, drawn by chance."""
    places = [moment.place for moment, _ in traced.recording.moments()]
    chosen = set(traced.chance.sample(places, min(count, len(places))))
    return ((moment, machine) for moment, machine in traced.recording.moments() if moment.place in chosen)


def record_one_of_each(tmp_path: Path, mutant: str | None) -> TracedBroker:
    broker = TracedBroker(tmp_path / "broker", settings=SETTINGS, mutant=mutant)
    try:
        one_of_each(broker)
    finally:
        broker.kill()
    return broker


def faults_found(recording: Recording) -> Iterator[str]:
    """At each answer, the clear-cut losses. Stops at what is asked for, because it is a generator."""
    shown: dict[int, Shown] = {}
    for moment, machine in recording.moments():
        if moment.why != "an answer":
            continue
        for _, left in crash_states(machine, list(LOSSES), 0, random.Random(0)):
            mark = left.fingerprint()
            if mark not in shown:
                shown[mark] = recover(as_disk(left), recording.root, recording.history)
            yield from violations(recording.history, moment.place, shown[mark])
