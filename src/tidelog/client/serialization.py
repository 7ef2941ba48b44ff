"""Keys and values as bytes, and back: plain functions, and a few that everybody needs.

A serializer takes what the application has and returns bytes, or None for a tombstone; a deserializer the reverse. Both may raise
whatever they like: the producer lets it through, the consumer wraps it in a `RecordError` that names the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Serializer = Callable[[Any], bytes | None]
Deserializer = Callable[[bytes | None], Any]


def to_utf8(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def from_utf8(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def to_json(value: Any) -> bytes | None:
    """None is a tombstone, not the JSON text null."""
    return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def from_json(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)
