"""The broker under test, in a process of its own as a user would have it.

`TIDELOG_TEST_BROKER=kafka` puts Apache Kafka in its place, which is how the tests themselves are tested;
`TIDELOG_TEST_BOOTSTRAP=host:port` uses a broker that is already there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from tools.peers.kafka import KafkaPeer
from tools.peers.process import Peer
from tools.peers.tidelog import TidelogPeer


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    given = os.environ.get("TIDELOG_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    peer: Peer
    if os.environ.get("TIDELOG_TEST_BROKER") == "kafka":
        peer = KafkaPeer()
    else:
        peer = TidelogPeer(durability=os.environ.get("TIDELOG_TEST_DURABILITY", "fsync"))
    with peer:
        yield peer.bootstrap


@pytest.fixture
def new_topic_name() -> Callable[[str], str]:
    """Names that no other test, worker or earlier run has used."""

    def name(prefix: str) -> str:
        return f"{prefix}-{uuid.uuid4().hex[:12]}"

    return name
