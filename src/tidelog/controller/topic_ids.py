"""Ids of new topics.

Owns one rule: an id is random, and never one that Kafka reserves or that looks like an option when typed as text.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from tidelog.ports import Rng

#: Ids this small stand for "none", the metadata log, and special directories.
_RESERVED: Final = 100


def new_topic_id(rng: Rng, taken: Container[bytes]) -> bytes:
    while True:
        raw = bytearray(rng.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40  # a random UUID as RFC 9562 marks it
        raw[8] = raw[8] & 0x3F | 0x80
        topic_id = bytes(raw)
        # A first byte of 0xf8 to 0xfb is "-" in the URL-safe base64 that people see.
        if raw[0] >> 2 != 62 and int.from_bytes(topic_id, "big") >= _RESERVED and topic_id not in taken:
            return topic_id
