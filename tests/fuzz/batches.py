"""Record batches for fuzzing: sound ones, and ones that are wrong in one way each of which has a name.

Owns the batch part of the dictionary. A wrong batch usually gets a matching CRC, because behind a wrong CRC nothing else is
looked at.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Final

import cramjam

from tidelog.records.batch import HEADER_SIZE, HEADER_STRUCT, read_header, write_crc
from tidelog.records.builder import BatchBuilder
from tidelog.records.compression import Codec, compress
from tidelog.records.varint import encode_varint

NOW_MS: Final = 1_700_000_000_000
INT32_MAX, INT64_MAX, INT64_MIN = (1 << 31) - 1, (1 << 63) - 1, -(1 << 63)


def sound(rng: Random, *, now_ms: int = NOW_MS) -> bytes:
    """A batch that any broker takes."""
    idempotent = rng.random() < 0.2
    builder = BatchBuilder(
        codec=rng.choice((0, 0, 0, 1, 2, 3, 4)),
        producer_id=rng.choice((0, 1, 7, 1000)) if idempotent else -1,
        producer_epoch=rng.choice((0, 0, 1, 32767)) if idempotent else -1,
        base_sequence=rng.choice((0, 0, 1, 5, INT32_MAX)) if idempotent else -1,
    )
    for number in range(rng.choice((1, 1, 2, 3, 10))):
        headers = tuple((f"h{n}", rng.choice((b"", b"v", None))) for n in range(rng.choice((0, 0, 0, 1, 3))))
        key = rng.choice((None, b"", b"key-%d" % rng.randrange(5)))
        value = rng.choice((None, b"", b"value", rng.randbytes(rng.choice((1, 20, 200)))))
        builder.append(now_ms + number, key, value, headers)
    return bytes(builder.build())


def forged(batch: bytes, *, signed: bool = True, **fields: int) -> bytes:
    """`batch` with header fields replaced, and the CRC that goes with them."""
    changed = bytearray(batch)
    HEADER_STRUCT.pack_into(changed, 0, *read_header(batch)._replace(**fields))
    if signed:
        write_crc(changed)
    return bytes(changed)


def with_payload(payload: bytes, *, count: int = 1, codec: int = 0, compressed: bool = False) -> bytes:
    """A true header over any payload."""
    if codec in (1, 2, 3, 4) and not compressed:
        payload = compress(codec, payload)
    header = (0, 49 + len(payload), 0, 2, 0, codec, max(0, count - 1), NOW_MS, NOW_MS, -1, -1, -1, count)
    batch = bytearray(HEADER_STRUCT.pack(*header) + payload)
    write_crc(batch)
    return bytes(batch)


def record(*fields: int | bytes, length: int | None = None) -> bytes:
    """A record from its parts after the length: numbers become varints."""
    body = b"".join(part if isinstance(part, bytes) else encode_varint(part) for part in fields)
    return encode_varint(len(body) if length is None else length) + body


def _fields(name: str, *values: int, signed: bool = True) -> Callable[[bytes, Random], bytes]:
    return lambda batch, rng: forged(batch, signed=signed, **{name: rng.choice(values)})


def _records(*payloads: bytes) -> Callable[[bytes, Random], bytes]:
    return lambda batch, rng: with_payload(
        rng.choice(payloads), count=rng.choice((1, 1, 2, 7)), codec=rng.choice((0, 0, 1, 2, 3, 4))
    )


def _attributes(*bits: int) -> Callable[[bytes, Random], bytes]:
    return lambda batch, rng: forged(batch, attributes=read_header(batch).attributes | rng.choice(bits))


def _cut(batch: bytes, rng: Random) -> bytes:
    return batch[: rng.randrange(len(batch))]


def _cut_and_true(batch: bytes, rng: Random) -> bytes:
    """Shorter records behind a header that is right about its length."""
    if len(batch) <= HEADER_SIZE + 1:
        return batch
    end = rng.randrange(HEADER_SIZE, len(batch))
    return forged(batch[:end], batch_length=end - 12)


def _two(batch: bytes, rng: Random) -> bytes:
    second = rng.choice(
        (batch, batch[: rng.randrange(1, len(batch))], b"\x00" * rng.choice((1, 17, 61, 200)))
    )
    return batch + second


def _nested(batch: bytes, rng: Random) -> bytes:
    """A compressed batch whose payload is a batch, or is compressed once more."""
    codec = rng.choice((1, 2, 3, 4))
    inner = rng.choice((batch, compress(codec, batch), compress(1 + codec % 4, batch)))
    return with_payload(inner, count=rng.choice((1, 3)), codec=codec)


def _broken_compression(batch: bytes, rng: Random) -> bytes:
    codec = rng.choice((1, 2, 3, 4))
    packed = bytearray(compress(codec, rng.randbytes(rng.choice((0, 10, 300)))))
    for _ in range(rng.choice((1, 1, 3))):
        if packed:
            packed[rng.randrange(len(packed))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    if rng.random() < 0.3:
        packed = packed[: rng.randrange(len(packed) + 1)]
    return with_payload(bytes(packed), count=rng.choice((0, 1, 5)), codec=codec, compressed=True)


def _lying_sizes(batch: bytes, rng: Random) -> bytes:
    """Framing that claims a huge output for a few bytes."""
    codec, packed = rng.choice(LYING_PAYLOADS)
    return with_payload(packed, count=rng.choice((1, 1000)), codec=codec, compressed=True)


def _noise(batch: bytes, rng: Random) -> bytes:
    changed = bytearray(batch)
    for _ in range(rng.choice((1, 2, 5))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    if rng.random() < 0.7 and len(changed) >= HEADER_SIZE:
        write_crc(changed)
    return bytes(changed)


def _bomb(batch: bytes, rng: Random) -> bytes:
    return rng.choice(small_bombs())


def bomb(codec: int, size: int) -> bytes:
    """One record of zeros, `size` bytes large, in as few bytes as the codec can."""
    value = bytes(size)
    payload = record(b"\x00", 0, 0, -1, len(value), value, 0)
    level = {Codec.GZIP: 9, Codec.ZSTD: 19}.get(Codec(codec))
    return with_payload(compress(codec, payload, level), codec=codec, compressed=True)


def monster(codec: Codec, size: int) -> bytes:
    """Zeros at the highest ratio that the codec's format allows, put together from repeated blocks: nobody has to compress them."""
    return with_payload(_MONSTERS[codec](size), codec=codec, compressed=True)


def _gzip_zeros(size: int) -> bytes:
    packer, chunk = zlib.compressobj(9, zlib.DEFLATED, 31), bytes(1 << 20)
    return b"".join(packer.compress(chunk) for _ in range(size >> 20)) + packer.flush()


def _snappy_zeros(size: int) -> bytes:
    head = compress(Codec.SNAPPY, b"")
    block = compress(Codec.SNAPPY, bytes(32 * 1024))[len(head) :]
    return head + block * (size >> 15)


def _lz4_zeros(size: int) -> bytes:
    block = bytes(cramjam.lz4.compress_block(bytes(64 * 1024), store_size=False))
    return b"\x04\x22\x4d\x18\x60\x40\x82" + (struct.pack("<I", len(block)) + block) * (size >> 16) + bytes(4)


def _zstd_zeros(size: int) -> bytes:
    """Blocks of one byte that stands for 128 KiB of them: 32,000 to 1."""
    block = struct.pack("<I", 1 << 1 | (128 * 1024) << 3)[:3] + b"\x00"
    last = struct.pack("<I", 1 | 1 << 1 | (128 * 1024) << 3)[:3] + b"\x00"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * ((size >> 17) - 1) + last


_MONSTERS: Final = {
    Codec.GZIP: _gzip_zeros,
    Codec.SNAPPY: _snappy_zeros,
    Codec.LZ4: _lz4_zeros,
    Codec.ZSTD: _zstd_zeros,
}

_small_bombs: list[bytes] = []


def small_bombs() -> list[bytes]:
    """A MiB each: the fuzzer sends thousands of them. The large ones have a test of their own."""
    if not _small_bombs:
        _small_bombs.extend(bomb(codec, 1 << 20) for codec in (1, 2, 3, 4))
    return _small_bombs


LYING_PAYLOADS: Final = (
    (2, b"\xff\xff\xff\xff\x0f" + b"\x00" * 8),  # raw snappy: 4 GiB
    (2, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + struct.pack(">i", INT32_MAX)),
    (
        2,
        b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
        + struct.pack(">i", 6)
        + b"\xff\xff\xff\xff\x07\x00",
    ),
    (3, b"\x04\x22\x4d\x18\x78\x70" + struct.pack("<Q", 1 << 62) + b"\x00" + b"\x00" * 8),
    (3, b"\x04\x22\x4d\x18\x60\x70\x73" + struct.pack("<I", 0x7FFFFFFF) + b"\x00" * 8),
    (4, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 62) + b"\x01\x00\x00"),
    (4, b"\x28\xb5\x2f\xfd\x00\xf8" + b"\x01\x00\x00"),  # a window of terabytes
    (1, bytes(cramjam.gzip.compress(b"abc"))[:-4] + b"\xff\xff\xff\xff"),
    (1, bytes(cramjam.gzip.compress(b"abc")) * 50),
)

#: Every way in which a batch can be wrong, by name.
WRONG: Final[dict[str, Callable[[bytes, Random], bytes]]] = {
    "magic": _fields("magic", -128, -1, 0, 1, 3, 127),
    "crc": _fields("crc", 0, 1, 0xFFFFFFFF, signed=False),
    "base offset": _fields("base_offset", 1, -1, INT64_MAX, INT64_MAX - 1, INT64_MIN),
    "batch length": _fields("batch_length", -1, 0, 13, 14, 48, 49, 50, INT32_MAX, -(1 << 31)),
    "last offset delta": _fields("last_offset_delta", -1, -(1 << 31), 0, 1, 2, 100, INT32_MAX),
    "record count": _fields("record_count", -1, 0, 1, 2, 100, 1 << 20, INT32_MAX, -(1 << 31)),
    "base timestamp": _fields("base_timestamp", -1, 0, -2, INT64_MAX, INT64_MIN),
    "max timestamp": _fields("max_timestamp", -1, 0, -2, INT64_MAX, INT64_MIN),
    "leader epoch": _fields("partition_leader_epoch", -1, -2, INT32_MAX, -(1 << 31)),
    "producer id": _fields("producer_id", 0, 5, -2, INT64_MAX, INT64_MIN),
    "producer epoch": _fields("producer_epoch", 0, -2, 32767, -32768),
    "sequence": _fields("base_sequence", 0, 3, -2, 1_000_000, INT32_MAX, -(1 << 31)),
    "control bit": _attributes(0x20),
    "transactional bit": _attributes(0x10, 0x30),
    "timestamp type": _attributes(0x08),
    "delete horizon": _attributes(0x40),
    "reserved bits": _attributes(0x80, 0x100, 0x4000, 0x7F80),
    "codec": lambda batch, rng: forged(
        batch, attributes=read_header(batch).attributes & ~7 | rng.choice((1, 2, 3, 4, 5, 6, 7))
    ),
    "count and no records": lambda batch, rng: forged(
        batch[:HEADER_SIZE],
        batch_length=49,
        record_count=rng.choice((1, INT32_MAX)),
        last_offset_delta=rng.choice((0, INT32_MAX - 1)),
    ),
    "cut": _cut,
    "cut and true": _cut_and_true,
    "two batches": _two,
    "nested": _nested,
    "empty payload": lambda batch, rng: with_payload(b"", count=rng.choice((0, 1)), codec=rng.randrange(5)),
    "broken compression": _broken_compression,
    "lying sizes": _lying_sizes,
    "bomb": _bomb,
    "noise": _noise,
    "record length": _records(
        record(b"\x00", 0, 0, -1, -1, 0, length=-1),
        record(b"\x00", 0, 0, -1, -1, 0, length=INT32_MAX),
        record(b"\x00", 0, 0, -1, -1, 0, length=0),
        record(b"\x00", 0, 0, -1, -1, 0, length=5),
    ),
    "record deltas": _records(
        record(b"\x00", INT64_MAX, 0, -1, -1, 0),
        record(b"\x00", INT64_MIN, 0, -1, -1, 0),
        record(b"\x00", 0, INT32_MAX, -1, -1, 0),
        record(b"\x00", 0, -1, -1, -1, 0),
        record(b"\x00", b"\xff" * 10, 0, -1, -1, 0),
        record(b"\x00", b"\xff" * 9 + b"\x7f", 0, -1, -1, 0),
        record(b"\x00", 0, b"\xff\xff\xff\xff\x7f", -1, -1, 0),
    ),
    "record fields": _records(
        record(b"\x00", 0, 0, -2, -1, 0),
        record(b"\x00", 0, 0, INT32_MAX, -1, 0),
        record(b"\x00", 0, 0, -1, 1 << 20, 0),
        record(b"\x00", 0, 0, 5, b"ab", 0),
        record(b"\x00", 0, 0, -1, -1, 0, b"left over"),
        record(b"\x00", 0, 0, -1, -1, 0) * 2,
        b"",
        b"\x80" * 20,
    ),
    "record headers": _records(
        record(b"\x00", 0, 0, -1, -1, 1),
        record(b"\x00", 0, 0, -1, -1, -1),
        record(b"\x00", 0, 0, -1, -1, INT32_MAX),
        record(b"\x00", 0, 0, -1, -1, 1, -1, -1),
        record(b"\x00", 0, 0, -1, -1, 1, 2, b"\xff\xfe", -1),
        record(b"\x00", 0, 0, -1, -1, 2, 1, b"a", -1),
        record(b"\x00", 0, 0, -1, -1, 3, 0, 0, 0, 0, 0, 0),
    ),
}
_WAYS: Final = tuple(WRONG)


def hostile(rng: Random, *, now_ms: int = NOW_MS) -> tuple[str, bytes]:
    """A wrong batch, and in which way."""
    way = rng.choice(_WAYS)
    return way, WRONG[way](sound(rng, now_ms=now_ms), rng)
