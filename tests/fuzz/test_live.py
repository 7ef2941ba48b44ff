"""20,000 hostile frames against a broker process, while somebody else produces and consumes as if nothing happened (I53).

Structure-aware frames of every advertised API and version, pipelined over many connections, and plain garbage between them. What must
hold is in `scene.py`. `make fuzz` sends more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.attackers import TOPICS, Attacker
from tests.fuzz.effort import EFFORT, FIRST_SEED
from tests.fuzz.scene import Scene

pytestmark = [pytest.mark.slow, pytest.mark.alone]

FRAMES = 20_000 * EFFORT
ATTACKERS = 4
RSS_BYTES_MAX = 100_000_000


@pytest.mark.timeout(120 + 120 * EFFORT)
def test_a_broker_under_fire_serves_everybody_else(tmp_path: Path, report: Callable[[str], None]) -> None:
    with Scene(tmp_path, rss_bytes_max=RSS_BYTES_MAX) as scene:
        with scene.connect() as wire:
            topic_ids = [wire.create(name, 3, config) for name, config in TOPICS.items()]
        began = time.perf_counter()
        attackers = [
            Attacker(scene.port, FIRST_SEED + number, FRAMES // ATTACKERS, topic_ids)
            for number in range(ATTACKERS)
        ]
        for attacker in attackers:
            attacker.start()
        for attacker in attackers:
            attacker.join()
        seconds = time.perf_counter() - began
        for attacker in attackers:
            if attacker.error is not None:
                raise attacker.error
    sent = sum(attacker.sent for attacker in attackers)
    outcomes: Counter[str] = sum((attacker.outcomes for attacker in attackers), Counter())
    report(f"live: {sent} frames in {seconds:.1f} s ({sent / seconds:,.0f}/s), {dict(outcomes)}")
    report(f"live: {scene.summary()}")
    assert sent >= FRAMES
    assert outcomes["answered"] > sent // 4, f"hardly any request was answered: {outcomes}"
    assert outcomes["refused"] > sent // 50, f"hardly any connection was refused: {outcomes}"
