"""For tests with a real Spark: one session a process, because starting one takes seconds, and a broker for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidelog.testing import Cluster


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from tidelog.spark.session import spark_session

    session = spark_session("tests", master="local[2]", settings={"spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running
