"""`quorum-state`: the file that remembers epoch, vote and leader of a node (H15).

Owns its text, which is Kafka's JSON of version 0, the one for fixed voters (docs/formats/quorum-state.md); version 1 is read too. It is replaced whole and durably:
a vote that a crash takes back may be given twice (M12). A file that cannot be read is an error, never a blank one: a node that forgot its
vote must not vote.
"""

from __future__ import annotations

import json
from typing import Any

from tidelog.errors import CorruptDataError
from tidelog.quorum.values import NO_NODE, ElectionState, Voters
from tidelog.storage import files
from tidelog.storage.disk import Disk, read_file, write_file_atomically


def path_in(directory: str) -> str:
    return files.join(directory, files.QUORUM_STATE)


def encode(state: ElectionState, voters: Voters) -> bytes:
    """Kafka leaves cluster id and applied offset at their defaults, and so do we."""
    content = {
        "clusterId": "",
        "leaderId": NO_NODE if state.leader_id is None else state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": NO_NODE if state.voted_id is None else state.voted_id,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": voter} for voter in voters.ids],
        "data_version": 0,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode(data: bytes, path: str) -> ElectionState:
    try:
        content = json.loads(data)
        version = content["data_version"]
        state = ElectionState(
            _number(content, "leaderEpoch"), _node(content, "leaderId"), _node(content, "votedId")
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{path} is no quorum state: {data[:80]!r}") from error
    if version not in (0, 1):
        raise CorruptDataError(f"{path} has version {version}; 0 and 1 are known")
    return state


def _number(content: dict[str, Any], name: str) -> int:
    number = content[name]
    if type(number) is not int or number < 0:
        raise ValueError(f"{name} is {number}")
    return number


def _node(content: dict[str, Any], name: str) -> int | None:
    node_id = content.get(name, NO_NODE)
    if type(node_id) is not int or node_id < NO_NODE:
        raise ValueError(f"{name} is {node_id}")
    return None if node_id == NO_NODE else node_id


def read(disk: Disk, directory: str) -> ElectionState | None:
    """None: there is none, as in a directory that is new or from before there was a quorum."""
    path = path_in(directory)
    try:
        return decode(read_file(disk, path), path)
    except FileNotFoundError:
        return None


def write(disk: Disk, directory: str, state: ElectionState, voters: Voters) -> None:
    """Durable when it returns. In any thread."""
    write_file_atomically(disk, path_in(directory), encode(state, voters))
