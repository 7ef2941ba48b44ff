"""Random faults against three broker processes under load (`nemesis.py`). `TIDELOG_CRASH_CYCLES` sets their number, `TIDELOG_CRASH_SEED` the choice; `make cluster CYCLES=200 SEED=n`."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.load import Load
from tests.cluster.nemesis import Nemesis
from tests.cluster.processes import Processes

CYCLES = int(os.environ.get("TIDELOG_CRASH_CYCLES", "3"))
TOPIC = "orders"
PARTITIONS = 3


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Progress, at once: hours of silence tell nobody anything. Among other tests it is shown only for a failure."""

    def shown(text: str) -> None:
        with capfd.disabled():
            print(text, file=sys.stderr, flush=True)

    return shown if "TIDELOG_CRASH_CYCLES" in os.environ else print


@pytest.mark.slow
@pytest.mark.timeout(CYCLES * 120 + 300)
def test_random_faults_one_after_the_other(root: Path, say: Callable[[str], None]) -> None:
    seed = int(os.environ.get("TIDELOG_CRASH_SEED", random.randrange(1 << 32)))
    durability = "fsync" if seed % 3 else "replicated"
    say(f"\nTIDELOG_CRASH_SEED={seed} (durability={durability}, logs and history in {root})")
    with Processes(root, proxied=True, settings={"durability": durability}) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.wait_until_in_sync(TOPIC)
        # A history of two hundred cycles is to fit into memory twice, as it is and as evidence.
        with Load(cluster, TOPIC, PARTITIONS, pace_seconds=max(0.01, CYCLES * 0.000_15)) as load:
            nemesis = Nemesis(cluster, load, TOPIC, PARTITIONS, seed=seed, say=say)
            nemesis.run(CYCLES)
        say(f"{load.judge()}: {dict(nemesis.struck)}")
