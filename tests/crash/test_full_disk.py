"""A broker process on volumes that are really full or really fail, under librdkafka: nothing lost, nothing twice, nothing out of order (I7).

The producers never hear of an error that is not theirs to know: they retry, and go on when there is room.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.conftest import SEGMENT_BYTES
from tests.crash.load import Load, check, read_everything
from tests.crash.volumes import Ballast, thin, tmpfs
from tidelog.records.batch import crc_matches, iter_headers
from tools.peers.tidelog import TidelogPeer

MIB = 1 << 20
SOON_SECONDS = 20.0
STALLED_SECONDS = 0.7


class Broker(TidelogPeer):
    """`tidelog start` with log directories of one's choice; what it prints goes elsewhere."""

    def __init__(self, home: Path, *log_dirs: Path, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        super().__init__(data_dir=home, settings=named)
        self.log_dirs = log_dirs

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("--data-dir") + 1] = ",".join(map(str, self.log_dirs))
        return command

    def create(self, *topics: str) -> None:
        """Topics of one partition, one after the other, so that they take turns in the log directories."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for topic in topics:
            config = {"segment.bytes": str(SEGMENT_BYTES), "file.delete.delay.ms": "0"}
            admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)

    def delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([topic])[topic].result(30)

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    def wait_for_end(self) -> int:
        wait_until(lambda: not self.is_running)
        return self.terminate()


@pytest.fixture
def volumes() -> Iterator[ExitStack]:
    """What is entered here is left after the brokers are gone."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def run(volumes: ExitStack, tmp_path: Path) -> Callable[..., Broker]:
    def start(*log_dirs: Path, **settings: str) -> Broker:
        broker = Broker(tmp_path / "broker", *log_dirs, **settings)
        volumes.callback(broker.kill)
        broker.start()
        return broker

    return start


@pytest.fixture
def loads(volumes: ExitStack) -> Callable[..., Load]:
    """Started loads; those that a failing test leaves behind are given up."""

    def start(broker: Broker, topic: str, *, name: str = "idempotent", acks: str = "all") -> Load:
        load = Load(broker.bootstrap, topic, name=name, acks=acks)
        volumes.callback(load.abandon)
        load.start()
        return load

    return start


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def progress(load: Load) -> int:
    return len(load.acknowledged.offsets)


def wait_for_progress(*loads: Load, records: int = 200) -> None:
    goals = [progress(load) + records for load in loads]
    wait_until(lambda: all(progress(load) >= goal for load, goal in zip(loads, goals, strict=True)))


def wait_for_stall(load: Load) -> None:
    """Nothing is acknowledged for a while, although the producer goes on."""

    def stalled() -> bool:
        before = progress(load)
        time.sleep(STALLED_SECONDS)
        return progress(load) == before

    wait_until(stalled)


def check_all(broker: Broker, *loads: Load) -> None:
    """Stop the loads and compare what they were told with what is there. An idempotent producer that may retry loses nothing."""
    for load in loads:
        load.stop()
    found = {topic: read_everything(broker.bootstrap, topic) for topic in {load.topic for load in loads}}
    for load in loads:
        assert load.fatal is None, f"{load.name}: {load.fatal}"
        check([load], found[load.topic])
        assert not load.acknowledged.failed
        assert progress(load) == load.sent


def check_batches(partition: Path) -> None:
    """Every batch on the volume is whole. Looked at before a client does: librdkafka aborts over some kinds of garbage."""
    for path in sorted(partition.glob("*.log")):
        data, end = path.read_bytes(), 0
        for position, header in iter_headers(data):
            assert crc_matches(data, position, header), f"{path.name} at {position} of {len(data)}"
            end = position + header.size
        assert end == len(data), f"{path.name} ends at {end} of {len(data)}"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_reserve_keeps_a_full_volume_working(
    volumes: ExitStack, run: Callable[..., Broker], loads: Callable[..., Load], tmp_path: Path
) -> None:
    """Producers wait; readers, deletions and new topics go on; the other directory does not notice; no restart is needed."""
    volume = volumes.enter_context(tmpfs(tmp_path / "small", 32 * MIB))
    broker = run(tmp_path / "roomy", volume / "data")
    ballast = Ballast(volume)
    broker.create("roomy", "small", "roomy-2", "heavy")
    assert (volume / "data" / "small-0").is_dir() and (volume / "data" / "heavy-0").is_dir()
    assert (tmp_path / "roomy" / "roomy-0").is_dir()
    heavy = Load(broker.bootstrap, "heavy", name="heavy", acks="all", padding=1000)
    heavy.start()
    wait_until(lambda: progress(heavy) >= 4000)  # 4 MB that can be deleted
    heavy.stop()
    small, roomy = loads(broker, "small"), loads(broker, "roomy")
    wait_for_progress(small, roomy)

    ballast.leave(5 * MIB)  # 4 MiB of these are the reserve
    wait_for_stall(small)
    assert ballast.free_bytes > 3 * MIB, "the reserve is untouched"
    wait_for_progress(roomy)
    assert len(read_everything(broker.bootstrap, "small")) >= progress(small)
    broker.create("new-here", "new-there")
    late = loads(broker, "small", name="late")  # the very first batches of a producer are refused
    assert "log.dir.reserve.bytes" in broker.output
    assert broker.output.count("appends are refused") == 1, "said once, however often they are refused"

    broker.delete("heavy")
    wait_for_progress(small, late, roomy)
    ballast.remove()
    wait_for_progress(small, late, roomy)
    check_all(broker, small, late, roomy)
    assert broker.terminate() == 0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_volume_that_is_full_to_the_last_byte(
    volumes: ExitStack, run: Callable[..., Broker], loads: Callable[..., Load], tmp_path: Path
) -> None:
    """No reserve: every write is tried and fails. The broker goes on; killed, it starts again, at the latest when there is room."""
    volume = volumes.enter_context(tmpfs(tmp_path / "small", 24 * MIB))
    broker = run(volume / "data", log_dir_reserve_bytes="0")
    ballast = Ballast(volume)
    broker.create("small")
    idempotent = loads(broker, "small")
    careless = loads(broker, "small", name="acks-1", acks="1")
    wait_for_progress(idempotent, careless)
    for restart in ("none", "kill"):
        ballast.leave(0)
        wait_for_stall(idempotent)
        wait_until(lambda: "No space left on device" in broker.output)
        found = read_everything(broker.bootstrap, "small")
        assert len(found) >= progress(idempotent)
        if restart == "kill":
            broker.kill()
            broker.launch()
            wait_until(lambda: broker.is_ready() or not broker.is_running)
            if not broker.is_running:  # no room even to say in the metadata that it is there
                assert broker.terminate() == 1
                assert "tidelog: the cluster's metadata cannot be written" in broker.output
        ballast.remove()
        if not broker.is_running:
            broker.start()
        wait_for_progress(idempotent, careless)
    idempotent.stop(), careless.stop()
    check([idempotent, careless], read_everything(broker.bootstrap, "small"))
    assert not idempotent.acknowledged.failed and progress(idempotent) == idempotent.sent
    assert careless.acknowledged.failed, "a producer without retries hears of the full disk"
    assert "goes offline" not in broker.output
    assert "bug" not in broker.output and "Traceback" not in broker.output


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("only", [True, False], ids=["only-dir", "second-dir"])
def test_a_volume_that_loses_what_it_accepted(
    volumes: ExitStack,
    run: Callable[..., Broker],
    loads: Callable[..., Load],
    tmp_path: Path,
    only: bool,
) -> None:
    """fdatasync fails once, and would succeed if it were tried again, with the data gone.

    The directory goes offline at once; if it is the only one, the broker ends and says why. When the volume is sound again and the
    broker started, all that was acknowledged is there, and the producer goes on where it was.
    """
    volume = volumes.enter_context(thin(tmp_path / "thin", real_bytes=12 * MIB, apparent_bytes=96 * MIB))
    data = volume.path / "data"
    broker = run(data) if only else run(tmp_path / "sound", data)
    broker.create("sound", "thin") if not only else broker.create("thin")
    assert (data / "thin-0").is_dir()
    load = Load(broker.bootstrap, "thin", name="idempotent", acks="all", padding=5000)
    volumes.callback(load.abandon)
    load.start()
    if only:
        assert broker.wait_for_end() == 1
        assert "holds the metadata log; the broker stops" in broker.output
    else:
        other = loads(broker, "sound")
        wait_until(lambda: "goes offline" in broker.output)
        wait_for_progress(other)
        assert broker.is_running
    assert "sync failed on" in broker.output
    assert progress(load) > 50, "the volume was full before anything was shown"
    if not only:
        assert broker.terminate() == 0
    volume.grow()
    broker.start()
    wait_for_progress(load, records=20)
    check_all(broker, *([load] if only else [load, other]))
    assert broker.terminate() == 0
    volume.mount_again()
    check_batches(data / "thin-0")
    broker.start()
    check([load], read_everything(broker.bootstrap, load.topic))
