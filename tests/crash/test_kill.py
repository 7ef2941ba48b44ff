"""kill -9 at random instants under load: what was acknowledged is there, once, in order (I1, I2).

A killed process loses no page cache, so this shows recovery, idempotence over restarts and the order of answer and write; a
missing fsync is shown on the simulated disk. `TIDELOG_CRASH_CYCLES` sets the number of kills, `TIDELOG_CRASH_SEED` their instants.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from tests.crash.conftest import create_topic
from tests.crash.load import Load, check, read_everything
from tools.peers.process import Peer

CYCLES = int(os.environ.get("TIDELOG_CRASH_CYCLES", "5"))
TOPIC = "crash"
CHECK_EVERY = 5


@pytest.mark.slow
@pytest.mark.timeout(CYCLES * 60 + 120)
@pytest.mark.parametrize("durability", ["fsync", "replicated"])
def test_every_acknowledged_record_survives_kill_9(
    make_broker: Callable[[str], Peer], durability: str
) -> None:
    seed = int(os.environ.get("TIDELOG_CRASH_SEED", random.randrange(1 << 32)))
    print(f"TIDELOG_CRASH_SEED={seed}")
    chance = random.Random(seed)
    broker = make_broker(durability)
    broker.start()
    create_topic(broker, TOPIC)
    loads = [
        Load(broker.bootstrap, TOPIC, name="idempotent-a", acks="all"),
        Load(broker.bootstrap, TOPIC, name="idempotent-b", acks="all"),
        Load(broker.bootstrap, TOPIC, name="acks-1", acks="1"),
    ]
    for load in loads:
        load.start()
    try:
        for cycle in range(CYCLES):
            time.sleep(chance.uniform(0.05, 1.0))
            broker.kill()
            broker.start()
            if cycle % CHECK_EVERY == CHECK_EVERY - 1:
                progress = [len(load.acknowledged.offsets) for load in loads]
                check_prefix(loads, broker, progress)
    finally:
        for load in loads:
            load.stop()
    found = read_everything(broker.bootstrap, TOPIC)
    check(loads, found)
    for load in loads:
        assert load.fatal is None, f"{load.name}: {load.fatal}"
    for load in loads[:2]:
        assert not load.acknowledged.failed, (
            f"{load.name}: an idempotent producer that may retry lost records"
        )
        assert len(load.acknowledged.offsets) == load.sent
    assert all(len(load.acknowledged.offsets) > 50 * CYCLES for load in loads), (
        "hardly any load: nothing was shown"
    )


def check_prefix(loads: list[Load], broker: Peer, progress: list[int]) -> None:
    """While the load goes on: what was acknowledged before this moment must be readable now."""
    before = [
        dict(list(load.acknowledged.offsets.items())[:count])
        for load, count in zip(loads, progress, strict=True)
    ]
    stored = {(name, number) for _, name, number in read_everything(broker.bootstrap, TOPIC)}
    for load, acknowledged in zip(loads, before, strict=True):
        missing = [number for number in acknowledged if (load.name, number) not in stored]
        assert not missing, f"{load.name}: {len(missing)} acknowledged records are gone, first {missing[:5]}"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_kill_9_while_starting(make_broker: Callable[[str], Peer]) -> None:
    """A broker that is killed during recovery, again and again, recovers all the same."""
    broker = make_broker("fsync")
    broker.start()
    create_topic(broker, TOPIC)
    load = Load(broker.bootstrap, TOPIC, name="before", acks="all")
    load.start()
    time.sleep(1.5)
    broker.kill()
    for delay in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
        broker.launch()
        time.sleep(delay)
        broker.kill()
    broker.start()
    load.stop()
    check([load], read_everything(broker.bootstrap, TOPIC))
