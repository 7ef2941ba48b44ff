"""`quorum-state` as Kafka writes it, and what is made of one that cannot be read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest

from tidelog.errors import CorruptDataError
from tidelog.quorum import state_file
from tidelog.quorum.values import ElectionState, Voters
from tidelog.testing.sim.disk import SimDisk

VOTERS = Voters.of((3, 1, 2))


@pytest.mark.parametrize(
    "state",
    [ElectionState(0), ElectionState(7, None, 2), ElectionState(7, 3, 2), ElectionState(2**31 - 1, 1, None)],
)
def test_a_state_is_read_as_it_was_written(state: ElectionState) -> None:
    disk = SimDisk(Random(1))
    disk.make_dirs("/data")
    assert state_file.read(disk, "/data") is None
    state_file.write(disk, "/data", state, VOTERS)
    assert state_file.read(disk.crash("lose_unsynced"), "/data") == state


def test_the_example_in_the_docs_is_what_is_written() -> None:
    text = (Path(__file__).parents[2] / "docs/formats/quorum-state.md").read_text()
    block = re.search(r"<!-- example: quorum-state -->\n```\n(.*?)\n```", text, re.S)
    assert block is not None
    assert state_file.encode(ElectionState(7, 3, 2), VOTERS).decode() == block[1]


def test_version_1_is_read_too() -> None:
    text = '{"leaderId":-1,"leaderEpoch":4,"votedId":1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    assert state_file.decode(text.encode(), "quorum-state") == ElectionState(4, None, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        json.dumps({"leaderEpoch": 3, "leaderId": 1}).encode(),
        json.dumps({"leaderEpoch": -1, "leaderId": 1, "votedId": -1, "data_version": 0}).encode(),
        json.dumps({"leaderEpoch": "3", "leaderId": 1, "votedId": -1, "data_version": 0}).encode(),
        json.dumps({"leaderEpoch": 3, "leaderId": -2, "votedId": -1, "data_version": 0}).encode(),
        json.dumps({"leaderEpoch": 3, "leaderId": 1, "votedId": -1, "data_version": 2}).encode(),
    ],
)
def test_what_is_no_quorum_state_is_an_error_and_never_a_blank_one(content: bytes) -> None:
    with pytest.raises(CorruptDataError, match="quorum-state"):
        state_file.decode(content, "quorum-state")
