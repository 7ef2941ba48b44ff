"""Kafka's own tools and clients of other ecosystems. Each test says plainly what is missing where it cannot run."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from tools.peers.kafka import KafkaPeer
from tools.peers.maven import KAFKA_VERSION, OLD_CLIENT_VERSION, java, kafka_jars
from tools.peers.process import Peer, PeerUnavailableError
from tools.peers.tidelog import TidelogPeer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/interop" in item.path.as_posix():
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(900))


def need_kafka(version: str) -> str:
    try:
        java()
        kafka_jars(version)
    except PeerUnavailableError as missing:
        pytest.skip(str(missing))
    return version


@pytest.fixture(scope="session")
def kafka_version() -> str:
    return need_kafka(KAFKA_VERSION)


@pytest.fixture(scope="session", params=[KAFKA_VERSION, OLD_CLIENT_VERSION])
def client_version(request: pytest.FixtureRequest) -> str:
    """The two releases of the Java client that are in use: today's, and the one inside Spark."""
    return need_kafka(request.param)


def new_broker(durability: str = "fsync", settings: dict[str, str] | None = None) -> Peer:
    if os.environ.get("TIDELOG_TEST_BROKER") == "kafka":
        return KafkaPeer(overrides=settings)
    return TidelogPeer(durability=durability, settings=settings)


@pytest.fixture(scope="session")
def broker() -> Iterator[Peer]:
    with new_broker() as peer:
        yield peer


@pytest.fixture(scope="module")
def suite_broker() -> Iterator[Peer]:
    """A broker for one suite of checks, which acknowledges as Kafka does: without waiting for the disk."""
    with new_broker("replicated") as peer:
        yield peer


@pytest.fixture
def new_topic_name() -> Callable[[str], str]:
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:12]}"
