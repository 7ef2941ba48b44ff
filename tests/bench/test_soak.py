"""Memory under full load with slow, rude and passing clients: the short form of `make soak`, which takes 20 minutes to judge.

Short as it is, it finds what grows with every request; `TIDELOG_TEST_EFFORT=n` makes it n times as long.
"""

from __future__ import annotations

import os

import pytest
from rich.console import Console

from bench.soak import SETTINGS, soak
from bench.soak_verdict import MB, judge
from tools.peers.tidelog import TidelogPeer

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SECONDS = 26.0 * int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))
SLACK_BYTES = 12 * MB
"""Caches still fill at the end of a short run."""
PEAK_BYTES_MAX = 120 * MB


@pytest.mark.timeout(SECONDS + 200)
def test_memory_is_bounded_under_full_load_with_slow_consumers() -> None:
    peer = TidelogPeer(settings=SETTINGS)
    try:
        soaked = soak(peer, seconds=SECONDS, megabytes=30.0, only=None, console=Console(quiet=True))
    finally:
        peer.stop()
    verdict = judge(soaked.samples, warm_up_seconds=SECONDS / 2, slack_bytes=SLACK_BYTES)
    print(f"\ngrown {verdict.grown_bytes / MB:+.2f} MB, peak {verdict.peak_bytes / MB:.1f} MB, {soaked.done}")
    assert not soaked.idle_loads
    assert verdict.is_flat
    assert verdict.peak_bytes < PEAK_BYTES_MAX
