"""Where leaders are, as the answers of Produce and Fetch say it to whoever asked the wrong broker (KIP-951)."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from tidelog.wire.varint import write_uvarint

_INT = Struct(">i").pack
_NO_TAGS = b"\0"
_NULL = b"\0"


class NodeAddress(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


def tagged_endpoints(endpoints: Sequence[NodeAddress]) -> bytes:
    """All tagged fields of an answer: number 0, if there are any endpoints."""
    if not endpoints:
        return _NO_TAGS
    pieces = [write_uvarint(len(endpoints) + 1)]
    for node_id, host, port, rack in endpoints:
        pieces += (_INT(node_id), _text(host), _INT(port))
        pieces += (_NULL if rack is None else _text(rack), _NO_TAGS)
    field = b"".join(pieces)
    return b"\1\0" + write_uvarint(len(field)) + field


def _text(text: str) -> bytes:
    encoded = text.encode()
    return write_uvarint(len(encoded) + 1) + encoded
