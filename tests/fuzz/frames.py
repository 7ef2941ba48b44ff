"""Frames for a broker and for a client, drawn from a seed: the same seed gives the same frames, on every machine.

A frame is the bytes behind its length. `Frames(seed)` goes through every advertised API and version in a random order, writes a valid
message, and gives out a number of spoiled copies of it before the next.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from tests.fuzz.batches import NOW_MS
from tests.fuzz.contents import TOPICS, Contents
from tests.fuzz.dictionary import INVALID_UTF8, UVARINTS
from tests.fuzz.mutations import mutate
from tests.fuzz.shapes import Shape, write
from tidelog.broker.apis import APIS
from tidelog.wire.api import ApiKey, first_flexible, response_header_version, spec

MUTANTS_PER_MESSAGE = 24
STRANGE_HEADERS = 0.05


class Frame(NamedTuple):
    api_key: int
    version: int
    how: str
    data: bytes

    def describe(self, seed: int, number: int) -> str:
        """What is needed to see it again."""
        shown = (
            self.data.hex()
            if len(self.data) <= 4096
            else self.data[:4096].hex() + f"… ({len(self.data)} bytes)"
        )
        name = ApiKey(self.api_key).name if self.api_key in APIS else str(self.api_key)
        return f"seed {seed}, frame {number}: {name} version {self.version}, {self.how}\n{shown}"


def served() -> list[tuple[int, int]]:
    """Every API and version that ApiVersions promises and requests may use."""
    return [
        (int(api.key), version)
        for api in APIS.values()
        for version in range(max(api.min_version, api.lowest_served), api.max_version + 1)
    ]


class Frames:
    """Endless, and told by its seed."""

    def __init__(
        self,
        seed: int,
        *,
        topics: Sequence[str] = TOPICS,
        topic_ids: Sequence[bytes] = (),
        now_ms: int = NOW_MS,
        apis: Sequence[tuple[int, int]] | None = None,
        mutants: int = MUTANTS_PER_MESSAGE,
        kept: float = 0.0,
    ) -> None:
        self.seed = seed
        self._mutants = mutants
        self._kept = kept
        self._rng = Random(seed)
        self._contents = Contents(self._rng, topics=topics, topic_ids=topic_ids, now_ms=now_ms)
        self._apis = list(served() if apis is None else apis)
        self._correlation_id = 0

    def requests(self) -> Iterator[Frame]:
        """Header and body, as a broker reads them."""
        rng = self._rng
        while True:
            rng.shuffle(self._apis)
            for key, version in self._apis:
                shape = write(spec(key).request_class, version, self._contents)
                for _ in range(self._mutants):
                    how, body = mutate(shape, rng, kept=self._kept)
                    header_how, header = self._request_header(key, version)
                    yield Frame(key, version, header_how + how, header + body)

    def responses(self) -> Iterator[Frame]:
        """Header and body, as a client reads them."""
        rng = self._rng
        while True:
            rng.shuffle(self._apis)
            for key, version in self._apis:
                body = write(spec(key).response_class, version, self._contents)
                head = b"\x00\x00\x00\x07" + (b"\x00" if response_header_version(key, version) else b"")
                shape = Shape(head + body.data, tuple(
                    mark._replace(start=mark.start + len(head), end=mark.end + len(head)) for mark in body.marks
                ))  # fmt: skip
                for _ in range(self._mutants):
                    yield Frame(key, version, *mutate(shape, rng, kept=self._kept))

    def _request_header(self, key: int, version: int) -> tuple[str, bytes]:
        self._correlation_id += 1
        tags = b"\x00" if version >= first_flexible(key) else b""
        if self._rng.random() >= STRANGE_HEADERS:
            return "", struct.pack(">hhih4s", key, version, self._correlation_id, 4, b"fuzz") + tags
        return self._strange_header(key, version, tags)

    def _strange_header(self, key: int, version: int, tags: bytes) -> tuple[str, bytes]:
        rng, number = self._rng, self._correlation_id
        invalid = rng.choice(INVALID_UTF8)
        return rng.choice(
            (
                (
                    "unknown key, ",
                    struct.pack(">hhih", rng.choice((-1, 4, 7, 93, 999, 32767, -32768)), version, number, -1),
                ),
                (
                    "unknown version, ",
                    struct.pack(">hhih", key, rng.choice((-1, 32767, -32768, 99)), number, -1),
                ),
                ("no client id, ", struct.pack(">hhih", key, version, number, -1) + tags),
                ("long client id, ", struct.pack(">hhih", key, version, number, 32767) + b"c" * 32767 + tags),
                (
                    "64 KiB client id, ",
                    struct.pack(">hhiH", key, version, number, 65535) + b"c" * 65535 + tags,
                ),
                (
                    "client id length, ",
                    struct.pack(">hhih", key, version, number, rng.choice((-2, -32768, 500))),
                ),
                (
                    "client id no UTF-8, ",
                    struct.pack(">hhih", key, version, number, len(invalid)) + invalid + tags,
                ),
                ("header tags, ", struct.pack(">hhih", key, version, number, -1) + rng.choice(UVARINTS)),
                ("header tag, ", struct.pack(">hhih", key, version, number, -1) + b"\x01\x05\x02xy"),
                (
                    "correlation id, ",
                    struct.pack(">hhih", key, version, rng.choice((-1, -(1 << 31), (1 << 31) - 1)), -1)
                    + tags,
                ),
                ("cut header, ", struct.pack(">hhih", key, version, number, 4)[: rng.randrange(10)]),
            )
        )
