"""Everything that clients write can be read, and nothing that anyone writes makes us allocate beyond the limit."""

from __future__ import annotations

import contextlib
import functools
import gzip
import struct
import zlib
from pathlib import Path

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.errors import CorruptDataError
from tidelog.records.compression import Codec, DecompressionLimitError, compress, decompress, decompress_onto
from tidelog.records.zstd_frames import plan_zstd

COMPRESSED = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
LIMIT = 1 << 20
TEXT = b"".join(
    b"line %d of a text that compresses\n" % (index % 131) for index in range(6000)
)  # 200 KB, several blocks


def lz4_frame(*, linked: bool, content_checksum: bool, data: bytes = TEXT) -> bytes:
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=content_checksum, block_linked=linked)
    compressor.compress(data)
    return bytes(compressor.finish())


def zstd_stream(data: bytes = TEXT, level: int = 3) -> bytes:
    """A frame without content size, as streaming writers make it."""
    compressor = cramjam.zstd.Compressor(level=level)
    for start in range(0, len(data), 10_000):
        compressor.compress(data[start : start + 10_000])
    return bytes(compressor.finish())


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    "data", [b"", b"x", TEXT[:32768], TEXT[:65536], TEXT[:65537], TEXT, bytes(range(256)) * 3]
)
def test_round_trip(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data
    assert decompress(codec, compress(codec, memoryview(data)), LIMIT) == data


@given(st.sampled_from(COMPRESSED), st.binary(max_size=3000), st.integers(1, 60))
@settings(max_examples=150)
def test_round_trip_of_anything(codec: Codec, data: bytes, repeat: int) -> None:
    data *= repeat
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        pytest.param(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), id="snappy raw"),
        pytest.param(
            Codec.SNAPPY,
            compress(Codec.SNAPPY, TEXT[:70000]) + compress(Codec.SNAPPY, TEXT[70000:]),
            id="xerial twice",
        ),
        pytest.param(Codec.LZ4, lz4_frame(linked=True, content_checksum=True), id="lz4 linked checked"),
        pytest.param(Codec.LZ4, lz4_frame(linked=True, content_checksum=False), id="lz4 linked"),
        pytest.param(Codec.LZ4, lz4_frame(linked=False, content_checksum=True), id="lz4 independent checked"),
        pytest.param(
            Codec.LZ4,
            lz4_frame(linked=True, content_checksum=True, data=TEXT[:70000])
            + compress(Codec.LZ4, TEXT[70000:]),
            id="lz4 two frames",
        ),
        pytest.param(Codec.ZSTD, zstd_stream(), id="zstd without size"),
        pytest.param(Codec.ZSTD, zstd_stream(level=22), id="zstd with a window of 128 MiB"),
        pytest.param(
            Codec.ZSTD,
            zstd_stream(TEXT[:70000]) + bytes(cramjam.zstd.compress(TEXT[70000:])),
            id="zstd two frames",
        ),
        pytest.param(
            Codec.ZSTD,
            b"\x53\x2a\x4d\x18\x03\x00\x00\x00abc" + bytes(cramjam.zstd.compress(TEXT)),
            id="zstd behind a skippable frame",
        ),
        pytest.param(
            Codec.GZIP, gzip.compress(TEXT[:70000]) + gzip.compress(TEXT[70000:]), id="gzip two members"
        ),
        pytest.param(Codec.GZIP, gzip.compress(TEXT, mtime=1), id="gzip"),
    ],
)
def test_every_form_in_use(codec: Codec, payload: bytes) -> None:
    assert decompress(codec, payload, len(TEXT)) == TEXT
    with pytest.raises(DecompressionLimitError, match=str(len(TEXT) - 1)):
        decompress(codec, payload, len(TEXT) - 1)


def test_lz4_frames_with_content_size_and_large_blocks() -> None:
    """4 MiB blocks, content size and its header byte, as Go's lz4 writes them."""
    block = bytes(cramjam.lz4.compress_block(TEXT, store_size=False))
    descriptor = b"\x68\x70" + struct.pack("<Q", len(TEXT)) + b"\x00"  # we do not read the header checksum
    frame = b"\x04\x22\x4d\x18" + descriptor + struct.pack("<I", len(block)) + block + bytes(4)
    assert decompress(Codec.LZ4, frame, len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", COMPRESSED)
def test_payloads_can_share_one_buffer(codec: Codec) -> None:
    out = bytearray(b"before")
    first = decompress_onto(codec, compress(codec, TEXT), out, 6, LIMIT)
    second = decompress_onto(codec, compress(codec, b"tail"), out, first, LIMIT)
    assert out[:second] == b"before" + TEXT + b"tail"


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damage_is_corrupt_data_and_nothing_else(codec: Codec) -> None:
    payload = compress(codec, TEXT[:3000])
    for cut in range(len(payload)):
        with contextlib.suppress(CorruptDataError):
            assert decompress(codec, payload[:cut], LIMIT) != TEXT[:3000], cut
    for position in range(len(payload)):
        damaged = bytearray(payload)
        damaged[position] ^= 0x55
        with contextlib.suppress(CorruptDataError):
            decompress(codec, damaged, LIMIT)


@given(st.sampled_from(COMPRESSED), st.binary(max_size=200), st.booleans())
@settings(max_examples=400)
def test_noise_is_corrupt_data_and_nothing_else(codec: Codec, noise: bytes, framed: bool) -> None:
    magic = {
        Codec.GZIP: b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
        Codec.SNAPPY: b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01",
        Codec.LZ4: b"\x04\x22\x4d\x18\x60\x40\x82",
        Codec.ZSTD: b"\x28\xb5\x2f\xfd",
    }[codec]
    with contextlib.suppress(CorruptDataError):
        assert len(decompress(codec, magic + noise if framed else noise, 5000)) <= 5000


def test_unknown_codecs() -> None:
    with pytest.raises(CorruptDataError, match="5"):
        decompress(5, b"", LIMIT)
    with pytest.raises(ValueError, match="7"):
        compress(7, b"")


def _zstd_bomb() -> bytes:
    """200 MiB of zeros in 1,600 run-length blocks of 4 bytes."""
    blocks = [
        struct.pack("<I", 128 * 1024 << 3 | 1 << 1 | (index == 1599))[:3] + b"\x00" for index in range(1600)
    ]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(blocks)


def _zstd_window_bomb() -> bytes:
    """A raw block of three bytes in a frame that announces a window of 128 MiB."""
    return b"\x28\xb5\x2f\xfd\x00" + bytes([17 << 3]) + struct.pack("<I", 3 << 3 | 1)[:3] + b"abc"


def _lz4_bomb(flags: int) -> bytes:
    """200 MiB of zeros in 50 blocks of 4 MiB."""
    block = bytes(cramjam.lz4.compress_block(bytes(4 << 20), store_size=False))
    body = (struct.pack("<I", len(block)) + block) * 50
    header = {0x60: b"\x60\x70\x73", 0x40: b"\x40\x70\xdf"}[flags]
    return b"\x04\x22\x4d\x18" + header + body + bytes(4)


@functools.cache
def _bombs() -> dict[str, tuple[Codec, bytes]]:
    zeros = bytes(100 << 20)
    snappy = bytes(cramjam.snappy.compress_raw(zeros))
    xerial = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    gzipped = zlib.compress(zeros, 9, wbits=31)
    claims_little = gzipped[:-4] + struct.pack("<I", 100)
    huge = b"\xff\xff\xff\xff\x0f"  # snappy's length prefix: 4 GiB - 1
    lz4_claim = b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", 1 << 62) + b"\x00" + bytes(4)
    zstd_claim = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\x01\x00\x00"
    return {
        "gzip": (Codec.GZIP, gzipped),
        "gzip with a false size": (Codec.GZIP, claims_little),
        "gzip members": (Codec.GZIP, zlib.compress(bytes(1 << 20), 9, wbits=31) * 100),
        "snappy": (Codec.SNAPPY, snappy),
        "xerial": (Codec.SNAPPY, xerial + struct.pack(">i", len(snappy)) + snappy),
        "snappy claim": (Codec.SNAPPY, huge + b"x" * 50),
        "xerial claim": (Codec.SNAPPY, xerial + struct.pack(">i", 55) + huge + b"x" * 50),
        "xerial block claim": (Codec.SNAPPY, xerial + struct.pack(">i", 2**31 - 1) + b"x" * 50),
        "xerial negative block": (Codec.SNAPPY, xerial + struct.pack(">i", -5) + b"x" * 50),
        "lz4 independent": (Codec.LZ4, _lz4_bomb(0x60)),
        "lz4 linked": (Codec.LZ4, _lz4_bomb(0x40)),
        "lz4 claim": (Codec.LZ4, lz4_claim),
        "lz4 block claim": (Codec.LZ4, b"\x04\x22\x4d\x18\x60\x40\x82\xff\xff\xff\x7f" + b"x" * 50),
        "zstd": (Codec.ZSTD, _zstd_bomb()),
        "zstd with size": (Codec.ZSTD, bytes(cramjam.zstd.compress(zeros))),
        "zstd claim": (Codec.ZSTD, zstd_claim),
    }


def _memory_kb(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise AssertionError(f"/proc/self/status has no {field}")


def _grown_by_kb(codec: Codec, payload: bytes, limit: int) -> tuple[int, bool]:
    """How far decompressing pushes the process's peak resident size above where it stands, and whether it was refused."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from the current size
    before = _memory_kb("VmRSS")
    try:
        decompress(codec, payload, limit)
        refused = False
    except CorruptDataError:
        refused = True
    return _memory_kb("VmHWM") - before, refused


@pytest.mark.parametrize("name", sorted(_bombs()))
def test_bombs_are_refused_within_the_limit(name: str) -> None:
    codec, payload = _bombs()[name]
    limit = 2 << 20
    try:
        grown_kb, refused = _grown_by_kb(codec, payload, limit)
    except OSError:
        pytest.skip("this kernel does not let a process reset its peak size")
    assert refused
    state = {Codec.ZSTD: limit, Codec.LZ4: 8 << 20 if name == "lz4 linked" else 0}.get(codec, 0)
    assert grown_kb < (limit + state >> 10) + 1536, f"{name} took {grown_kb} KiB"


def test_a_large_window_is_not_allocated() -> None:
    """The frame announces 128 MiB and can hold three bytes: the decoder is given a frame that announces one block."""
    payload = _zstd_window_bomb()
    shrunk = plan_zstd(payload).with_small_windows(payload, LIMIT)
    assert [position for position in range(len(payload)) if shrunk[position] != payload[position]] == [5]
    assert 1 << (shrunk[5] >> 3) + 10 == 128 * 1024
    assert decompress(Codec.ZSTD, payload, LIMIT) == b"abc"


def test_a_fitting_window_is_left_alone() -> None:
    payload = bytes(cramjam.zstd.compress(TEXT))
    assert plan_zstd(payload).with_small_windows(payload, LIMIT) is payload


def test_an_lz4_block_that_seems_to_begin_with_its_size() -> None:
    """The library takes the first four bytes of a block for its size if they could be, and returns other bytes than were compressed."""
    packed = bytes.fromhex(
        "04224d186040823a000000d30e00009003010100c4010082800100af019203066b32349c017601003aaf008e04000ca40600ee0357003a0f0200979004026801026904787900000000"
    )
    assert bytes(decompress(Codec.LZ4, packed, 1 << 20)) == bytes(cramjam.lz4.decompress(packed))
