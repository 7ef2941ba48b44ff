"""pytest fixtures, registered when Tidelog is installed: a real broker instead of a container.

    def test_orders(tidelog_cluster, tidelog_topic):
        producer = confluent_kafka.Producer({"bootstrap.servers": tidelog_cluster.bootstrap_servers})
        producer.produce(tidelog_topic, b"hello")

`tidelog_cluster` is one broker per test session (per worker under xdist: each has its own port and directory);
`tidelog_topic` is a fresh topic per test. `tidelog_config` may be overridden in a conftest.py to set broker settings.
Nothing of the broker is imported before a test asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

_counter = iter(range(1, 1 << 62))


@pytest.fixture(scope="session")
def tidelog_config() -> dict[str, str]:
    """Broker settings for `tidelog_cluster`; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def tidelog_cluster(tidelog_config: dict[str, str]) -> Iterator[Cluster]:
    """A running broker, shared by all tests of this process."""
    from tidelog.testing.cluster import Cluster

    with Cluster(config=tidelog_config) as cluster:
        yield cluster


@pytest.fixture
def tidelog_bootstrap_servers(tidelog_cluster: Cluster) -> str:
    return tidelog_cluster.bootstrap_servers


@pytest.fixture
def tidelog_topic(tidelog_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """The name of a new topic with one partition, made for this test."""
    stem = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-.")[:200] or "topic"
    return tidelog_cluster.create_topic(f"{stem}-{next(_counter)}")
