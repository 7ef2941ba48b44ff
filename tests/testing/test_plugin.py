"""The pytest plugin, in test suites of its own: fixtures, settings, topics per test, and workers that do not meet."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import os
import socket

import pytest

SEEN = os.environ["SEEN"]


@pytest.mark.parametrize("number", range(6))
def test_topic(tidelog_cluster, tidelog_topic, tidelog_bootstrap_servers, number):
    assert tidelog_bootstrap_servers == tidelog_cluster.bootstrap_servers
    assert (tidelog_cluster.data_dir / f"{tidelog_topic}-0").is_dir()
    host, _, port = tidelog_bootstrap_servers.rpartition(":")
    socket.create_connection((host, int(port)), timeout=10).close()
    with open(SEEN, "a") as seen:
        seen.write(f"{os.getpid()} {tidelog_bootstrap_servers} {tidelog_cluster.data_dir} {tidelog_topic}\\n")


def test_settings(tidelog_cluster):
    name = tidelog_cluster.create_topic("wide", -1)
    assert len(list(tidelog_cluster.data_dir.glob("wide-*"))) == 7


"""

CONFTEST = """
import pytest


@pytest.fixture(scope="session")
def tidelog_config():
    return {"num.partitions": 7}
"""


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[list[str]]:
    """Run the suite; what each test saw: process, address, directory, topic."""
    seen = pytester.path / "seen.txt"
    monkeypatch.setenv("SEEN", str(seen))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--timeout=60", *arguments)
    result.assert_outcomes(passed=7)
    return [line.split() for line in seen.read_text().splitlines()]


def test_one_cluster_and_a_topic_per_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run(pytester, monkeypatch)
    assert len({tuple(row[:3]) for row in rows}) == 1
    assert len({row[3] for row in rows}) == 6


def test_a_cluster_per_worker(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run(pytester, monkeypatch, "-n2", "--dist=load")
    workers = {row[0] for row in rows}
    assert len({tuple(row[:3]) for row in rows}) == len(workers)
    assert len({row[1] for row in rows}) == len({row[2] for row in rows}) == len(workers)


def test_topics_of_oddly_named_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import re

        import pytest


        @pytest.mark.parametrize("value", ["a b", "..", "ü/ö", "x" * 300, "a.b", "a_b", ""])
        def test_name(tidelog_topic, value):
            assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", tidelog_topic)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--timeout=60").assert_outcomes(passed=7)


def test_nothing_is_imported_before_it_is_asked_for(pytester: pytest.Pytester) -> None:
    """The plugin is loaded in every test run on a machine that has Tidelog installed."""
    pytester.makepyfile(
        """
        import sys


        def test_nothing():
            assert not [name for name in sys.modules if name.startswith("tidelog.") and "testing" not in name]
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--timeout=60")
    result.assert_outcomes(passed=1)
