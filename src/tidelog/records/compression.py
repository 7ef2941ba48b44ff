"""The five codecs of a record batch, in the forms that Kafka's clients write, with the output bounded.

Owns every byte of compressed framing: xerial snappy, lz4 frames, and what must be known of zstd and gzip frames to size the
output before decoding. Never allocates more than the caller's limit for the output, whatever a payload claims: sizes are read
from the framing or bounded by it first, and decoding goes into a buffer of that size. The decoder's own state comes on top:
some KiB, one block (4 MiB at most) for linked lz4 blocks, one window (never above the limit again) for zstd. Keeps I51, I53.

Framing checksums (xxh32 of lz4, masked CRCs) are left to the library or skipped: the batch's CRC-32C covers the payload.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final

import cramjam

from tidelog.errors import CorruptDataError
from tidelog.records.batch import Buffer
from tidelog.records.zstd_frames import plan_zstd

# Past these ratios no valid stream of the codec can go, so a claim beyond them is a lie told to make us allocate.
_GZIP_RATIO_MAX: Final = 1040
_SNAPPY_RATIO_MAX: Final = 64
_LZ4_RATIO_MAX: Final = 256

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_BYTES: Final = 64 * 1024
# Version 1, independent blocks, no checksums, 64 KiB blocks, and the descriptor's checksum byte: what Java clients write.
_LZ4_HEADER: Final = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_STORED: Final = 0x8000_0000
_LZ4_BLOCK_SIZES: Final = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_LZ4_DEFAULT_LEVEL: Final = 9  # Kafka's number for "the fast compressor"; any other level is high compression

_GUESS_FLOOR: Final = 64 * 1024
_BLOCK_GUESS_FLOOR: Final = 8 * 1024
_INT32_BE: Final = Struct(">i")
_UINT32_LE: Final = Struct("<I")
_UINT64_LE: Final = Struct("<Q")


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressionLimitError(CorruptDataError):
    """The payload would grow beyond the limit that the reader set."""

    def __init__(self, codec: Codec, compressed: int, limit: int) -> None:
        super().__init__(
            f"{codec.name.lower()} payload of {compressed} bytes decompresses to more than the limit of {limit} bytes"
        )


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the form clients read. `level` is Kafka's compression.<codec>.level; None means Kafka's default."""
    if codec == Codec.LZ4:
        return _compress_lz4(data, level)
    if codec == Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    if codec == Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=6 if level is None or level < 0 else level))
    if codec == Codec.SNAPPY:
        return _compress_xerial(data)
    if codec == Codec.NONE:
        return bytes(data)
    raise ValueError(f"no compression codec has the number {codec}")


def decompress(codec: int, data: Buffer, limit: int) -> memoryview:
    """The payload behind `data`, at most `limit` bytes of it or DecompressionLimitError; CorruptDataError if it is broken."""
    if codec == Codec.NONE:
        if len(data) > limit:
            raise DecompressionLimitError(Codec.NONE, len(data), limit)
        return memoryview(data)
    out = bytearray()
    end = decompress_onto(codec, data, out, 0, limit)
    return memoryview(out)[:end]


def decompress_onto(codec: int, data: Buffer, out: bytearray, start: int, limit: int) -> int:
    """Decompress into `out` from `start` on and return where the payload ends; `out` grows as needed, never shrinks.

    For readers that decode many batches into one buffer. `limit` bounds this payload, not the buffer.
    """
    try:
        if codec == Codec.LZ4:
            return _decompress_lz4(data, out, start, limit)
        if codec == Codec.ZSTD:
            return _decompress_zstd(data, out, start, limit)
        if codec == Codec.SNAPPY:
            return _decompress_snappy(data, out, start, limit)
        if codec == Codec.GZIP:
            return _decompress_gzip(data, out, start, limit)
    except cramjam.DecompressionError as error:
        raise CorruptDataError(
            f"{Codec(codec).name.lower()} payload of {len(data)} bytes is damaged: {error}"
        ) from error
    if codec == Codec.NONE:
        if len(data) > limit:
            raise DecompressionLimitError(Codec.NONE, len(data), limit)
        out[start : start + len(data)] = data
        return start + len(data)
    raise CorruptDataError(f"no compression codec has the number {codec}")


def _reserve(out: bytearray, size: int) -> None:
    if len(out) < size:
        out.extend(bytes(size - len(out)))


def _decode_growing(
    decode_into: Callable[[Buffer, memoryview], int],
    codec: Codec,
    data: Buffer,
    out: bytearray,
    start: int,
    guess: int,
    limit: int,
) -> int:
    """Decode with room for `guess` bytes, then four times that, up to `limit`: a good guess costs one pass, a lie never more than limit."""
    room = min(guess, limit)
    while True:
        _reserve(out, start + room)
        try:
            with memoryview(out) as view, view[start : start + room] as target:
                return start + decode_into(data, target)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
        if room >= limit:
            raise DecompressionLimitError(codec, len(data), limit)
        room = min(max(room * 4, _GUESS_FLOOR), limit)


def _decompress_gzip(data: Buffer, out: bytearray, start: int, limit: int) -> int:
    if len(data) < 18:
        raise CorruptDataError(f"gzip payload of {len(data)} bytes is shorter than the smallest gzip member")
    # The last four bytes state the size of the last member: the whole payload, unless there are several.
    (stated,) = _UINT32_LE.unpack_from(data, len(data) - 4)
    guess = min(stated, len(data) * _GZIP_RATIO_MAX)
    return _decode_growing(cramjam.gzip.decompress_into, Codec.GZIP, data, out, start, guess, limit)


def _decompress_zstd(data: Buffer, out: bytearray, start: int, limit: int) -> int:
    plan = plan_zstd(data)
    if plan.stated_bytes > limit or plan.output_bytes_min > limit:
        raise DecompressionLimitError(Codec.ZSTD, len(data), limit)
    source = plan.with_small_windows(data, limit)
    return _decode_growing(
        cramjam.zstd.decompress_into, Codec.ZSTD, source, out, start, plan.output_bytes_max, limit
    )


def _compress_xerial(data: Buffer) -> bytes:
    parts = [_XERIAL_HEADER]
    with memoryview(data) as view:
        for position in range(0, len(view), _XERIAL_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(view[position : position + _XERIAL_BLOCK_BYTES]))
            parts.append(_INT32_BE.pack(len(block)))
            parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, out: bytearray, start: int, limit: int) -> int:
    """Xerial framing if its magic is there (Java, kafka-python, librdkafka, Sarama), else one raw snappy block."""
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _append_snappy_block(view, out, start, start + limit, len(view), limit)
    position, end, produced = 0, len(view), start
    while position < end:
        if bytes(view[position : position + 8]) == _XERIAL_MAGIC:
            position += len(
                _XERIAL_HEADER
            )  # a stream may be several streams one after another, each with its header
            continue
        if position + 4 > end:
            raise CorruptDataError(f"snappy payload of {end} bytes ends inside a block length")
        (size,) = _INT32_BE.unpack_from(view, position)
        position += 4
        if size < 0 or size > end - position:
            raise CorruptDataError(
                f"snappy block of {size} bytes with {end - position} bytes left in the payload"
            )
        block = view[position : position + size]
        produced = _append_snappy_block(block, out, produced, start + limit, end, limit)
        position += size
    return produced


def _append_snappy_block(
    block: memoryview, out: bytearray, start: int, out_end_max: int, compressed: int, limit: int
) -> int:
    stated = int(cramjam.snappy.decompress_raw_len(block))
    if stated > len(block) * _SNAPPY_RATIO_MAX:
        raise CorruptDataError(f"snappy block of {len(block)} bytes claims to hold {stated} bytes")
    if start + stated > out_end_max:
        raise DecompressionLimitError(Codec.SNAPPY, compressed, limit)
    if stated == 0:
        return start
    _reserve(out, start + stated)
    with memoryview(out) as view, view[start : start + stated] as target:
        return start + int(cramjam.snappy.decompress_raw_into(block, target))


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    """A frame of independent 64 KiB blocks, as Java clients write it; blocks that do not compress are stored."""
    if level is not None and level != _LZ4_DEFAULT_LEVEL:
        # The library's block function knows no levels; its frame writer does, and adds block checksums that all readers know.
        compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    parts = [_LZ4_HEADER]
    with memoryview(data) as view:
        for position in range(0, len(view), _LZ4_BLOCK_BYTES):
            block = view[position : position + _LZ4_BLOCK_BYTES]
            packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
            if len(packed) < len(block):
                parts += (_UINT32_LE.pack(len(packed)), packed)
            else:
                parts += (_UINT32_LE.pack(len(block) | _LZ4_STORED), bytes(block))
    parts.append(b"\x00\x00\x00\x00")
    return b"".join(parts)


def _decompress_lz4(data: Buffer, out: bytearray, start: int, limit: int) -> int:
    """One or more frames. Independent blocks are decoded here, one call each: ten times cheaper than the library's frame reader.

    Frames with linked blocks (each may refer back into the one before) go to that reader, with the room they can need.
    """
    view, position, produced = memoryview(data), 0, start
    while True:
        try:
            frame_end, produced = _decompress_lz4_frame(view, position, out, produced, start + limit, limit)
        except (IndexError, StructError) as error:
            raise CorruptDataError(
                f"lz4 payload of {len(view)} bytes breaks off inside the frame at {position}"
            ) from error
        position = frame_end
        if position == len(view):
            return produced


def _decompress_lz4_frame(
    view: memoryview, position: int, out: bytearray, produced: int, out_end_max: int, limit: int
) -> tuple[int, int]:
    if bytes(view[position : position + 4]) != _LZ4_MAGIC:
        raise CorruptDataError(f"lz4 payload of {len(view)} bytes has no frame at {position}")
    flags, block_max = view[position + 4], _LZ4_BLOCK_SIZES.get(view[position + 5] >> 4 & 7)
    if flags >> 6 != 1 or block_max is None or flags & 0x01:
        raise CorruptDataError(
            f"lz4 frame with descriptor {flags:#04x} is of no version, block size or dictionary we know"
        )
    cursor = position + 7
    if flags & 0x08:
        (stated,) = _UINT64_LE.unpack_from(view, position + 6)
        if produced + stated > out_end_max:
            raise DecompressionLimitError(Codec.LZ4, len(view), limit)
        cursor += 8
    block_trailer = 4 if flags & 0x10 else 0
    linked = not flags & 0x20
    room = 0
    while True:
        (word,) = _UINT32_LE.unpack_from(view, cursor)
        cursor += 4
        if word == 0:
            break
        size = word & ~_LZ4_STORED
        block = view[cursor : cursor + size]
        if len(block) != size:
            raise CorruptDataError(f"lz4 block of {size} bytes with {len(block)} bytes left in the payload")
        if linked:
            room += size if word & _LZ4_STORED else min(block_max, size * _LZ4_RATIO_MAX)
        else:
            produced = _append_lz4_block(block, word, block_max, out, produced, out_end_max, len(view), limit)
        cursor += size + block_trailer
    if flags & 0x04:
        cursor += 4
    if cursor > len(view):
        raise CorruptDataError(f"lz4 payload of {len(view)} bytes ends before the frame's checksum")
    if linked:
        frame = view[position:cursor]
        left = out_end_max - produced
        produced = _decode_growing(cramjam.lz4.decompress_into, Codec.LZ4, frame, out, produced, room, left)
    return cursor, produced


def _append_lz4_block(
    block: memoryview,
    word: int,
    block_max: int,
    out: bytearray,
    start: int,
    out_end_max: int,
    compressed: int,
    limit: int,
) -> int:
    stored = word & _LZ4_STORED
    room_max = len(block) if stored else min(block_max, len(block) * _LZ4_RATIO_MAX)
    if len(block) > block_max:
        raise CorruptDataError(
            f"lz4 block of {len(block)} bytes in a frame whose blocks hold at most {block_max}"
        )
    if stored:
        if start + room_max > out_end_max:
            raise DecompressionLimitError(Codec.LZ4, compressed, limit)
        out[start : start + room_max] = block
        return start + room_max
    # A frame may announce 4 MiB blocks and hold a few hundred bytes, so the room grows towards what the block may need.
    room = min(room_max, max(len(block) * 4, _BLOCK_GUESS_FLOOR), out_end_max - start)
    while True:
        _reserve(out, start + room)
        try:
            with memoryview(out) as view, view[start : start + room] as target:
                # Without a length the library may take the first bytes of the block for one.
                return start + int(cramjam.lz4.decompress_block_into(block, target, output_len=room))
        except cramjam.DecompressionError:
            if room >= room_max:
                raise
        if start + room >= out_end_max:
            raise DecompressionLimitError(Codec.LZ4, compressed, limit)
        room = min(room * 4, room_max, out_end_max - start)
