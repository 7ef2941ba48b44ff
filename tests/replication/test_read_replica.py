"""Which replica a consumer is sent to (KIP-392)."""

from __future__ import annotations

import pytest

from tests.replication.replica_world import Replica
from tidelog.replication.read_replica import (
    NO_PREFERENCE,
    RACK_AWARE,
    RackAwareSelector,
    preferred_read_replica,
    selector_named,
)

RACKS = {1: "east", 2: "west", 3: "north"}


def leading() -> Replica:
    leader = Replica(1)
    leader.assign(1, 4, (1, 2))
    leader.append(3)
    leader.fetch(2, 3, last_epoch=4)
    leader.fetch(3, 1, last_epoch=4)
    return leader


@pytest.mark.parametrize(
    ("rack", "offset", "expected"),
    [
        ("west", 1, 2),
        ("east", 1, NO_PREFERENCE),  # the leader itself
        ("", 1, NO_PREFERENCE),
        ("south", 1, NO_PREFERENCE),  # nobody is there
        ("north", 1, NO_PREFERENCE),  # broker 3 is not in sync
        ("west", 4, NO_PREFERENCE),  # broker 2 does not have it
    ],
)
def test_a_consumer_reads_in_its_rack_if_it_can(rack: str, offset: int, expected: int) -> None:
    chosen = preferred_read_replica(
        leading().partition, RackAwareSelector(), RACKS.get, client_rack=rack, fetch_offset=offset
    )
    assert chosen == expected


def test_of_two_in_the_rack_the_one_that_is_further() -> None:
    leader = Replica(1)
    leader.assign(1, 4)
    leader.append(3)
    leader.fetch(2, 2, last_epoch=4)
    leader.fetch(3, 3, last_epoch=4)
    chosen = preferred_read_replica(
        leader.partition, RackAwareSelector(), lambda broker: "west" if broker != 1 else "east",
        client_rack="west", fetch_offset=1,
    )  # fmt: skip
    assert chosen == 3


def test_it_is_off_unless_the_setting_names_it() -> None:
    assert selector_named(None) is None
    assert isinstance(selector_named(RACK_AWARE), RackAwareSelector)
    chosen = preferred_read_replica(leading().partition, None, RACKS.get, client_rack="west", fetch_offset=1)
    assert chosen == NO_PREFERENCE


def test_followers_send_nobody_anywhere() -> None:
    replica = leading()
    replica.assign(2, 5)
    chosen = preferred_read_replica(
        replica.partition, RackAwareSelector(), RACKS.get, client_rack="west", fetch_offset=0
    )
    assert chosen == NO_PREFERENCE
