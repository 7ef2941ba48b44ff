"""For all tests: how much effort the property tests take, which of them stay together, and that Ctrl-C means something.

`TIDELOG_TEST_EFFORT=20` gives every Hypothesis test twenty times its own number of examples; that is what `make sim` and
`make fuzz` are. Each run then draws new examples, and Hypothesis prints what reproduces a failure.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

EFFORT = int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))
# Where Hypothesis keeps the settings of a test function; its own pytest plugin reads them there.
SETTINGS_ATTRIBUTE = "_hypothesis_internal_use_settings"
# How long an example takes says how busy the machine is, and whether numba compiles something just then.
settings.register_profile("tidelog", deadline=None)
settings.load_profile("tidelog")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and whatever it starts inherits that: also the commands whose tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return TogetherScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class TogetherScheduling(LoadFileScheduling):  # type: ignore[misc]
    """The tests of a file stay together, for what they share, and so do all of Spark's: one Java is as much as two cores can take, beside tests that wait."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        own_java = file == "tests/pipeline/test_kills.py"
        return "spark" if file.startswith(("tests/pipeline/", "tests/spark/")) and not own_java else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if EFFORT == 1:
        return
    done: set[object] = set()
    for item in items:
        function = getattr(item, "obj", None)
        owner = getattr(item, "cls", None)
        for holder, name in (
            (getattr(function, "__func__", function), SETTINGS_ATTRIBUTE),
            (owner, "settings"),
        ):
            chosen = getattr(holder, name, None)
            if isinstance(chosen, settings) and (holder, name) not in done:
                setattr(holder, name, settings(chosen, max_examples=chosen.max_examples * EFFORT))
                done.add((holder, name))
