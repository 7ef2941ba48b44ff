"""The check of a segment is gone when it is done. Each holds half a megabyte, and the broker lets the garbage collector look rarely."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tests.storage.scrub_world import scrubbed, sealed_log


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_check_that_is_over_leaves_no_cycle() -> None:
    log = sealed_log()
    check = scrubbed(log, 0)
    assert check.done and check.index_problem is None
    gone = weakref.ref(check)
    del check
    assert gone() is None
