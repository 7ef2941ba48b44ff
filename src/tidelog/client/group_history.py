"""Asking a Tidelog broker what happened to a group lately: the one request here that Kafka does not have.

It is not advertised, so it is sent unasked, on a connection of its own: a broker that does not know it hangs up.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.client.connection import VersionRange
from tidelog.client.errors import ConnectionLostError, MalformedResponseError, check
from tidelog.client.groups import GroupMissingError, Groups
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.tidelog_api import ExplainGroupRequest, ExplainGroupResponse


class HistoryEntry(NamedTuple):
    wall_ms: int
    event: str
    generation: int
    member_id: str = ""
    client: str = ""
    detail: str = ""


class ToldHistory(NamedTuple):
    """What a Tidelog broker remembers. Its memory begins with its start and has an end: old entries make room."""

    entries: tuple[HistoryEntry, ...]
    group_type: str
    state: str
    protocol: str


async def ask_history(groups: Groups, group_id: str) -> ToldHistory | None:
    """None: this broker keeps no history. GroupMissingError: it does, and has never heard of the group."""

    async def ask(node: int) -> ToldHistory | None:
        connection = await groups.cluster.connection(node, lane="explain")
        connection.versions.setdefault(ApiKey.EXPLAIN_GROUP, VersionRange(0, 0))
        try:
            response: ExplainGroupResponse = await connection.request(
                ApiKey.EXPLAIN_GROUP, ExplainGroupRequest(group_id=group_id)
            )
        except (ConnectionLostError, MalformedResponseError):
            return None
        if response.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise GroupMissingError(group_id)
        check(response.error_code, f"the history of group {group_id}", response.error_message)
        entries = tuple(
            HistoryEntry(e.wall_ms, e.event, e.generation, e.member_id, _plain(e.client), _plain(e.detail))
            for e in response.entries
        )
        return ToldHistory(entries, response.group_type, response.state, response.protocol)

    return await groups.at_coordinator(group_id, ask)


def _plain(text: str) -> str:
    """Coordinators keep addresses as Kafka does, "/10.0.0.3"; people read "orders-7 (10.0.0.3)"."""
    return text.replace(" (/", " (")
