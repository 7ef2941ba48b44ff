"""What a zstd payload says about its size, read from frame and block headers without decoding anything.

Owns just enough of the zstd format (RFC 8878, section 3.1) to bound the output and the decoder's window before either is
allocated. Never decodes. A frame may declare a window of up to 128 MiB in its header while holding a few bytes (streaming
clients at high levels do so honestly), and the decoder allocates that window; since no reference can reach further back than
the frame's own output, shrinking the declared window to the largest possible output changes nothing but the allocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.errors import CorruptDataError
from tidelog.records.batch import Buffer

_FRAME_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC: Final = 0x184D2A50  # and the fifteen that follow
_BLOCK_BYTES_MAX: Final = 128 * 1024
_WINDOW_LOG_FLOOR: Final = 17  # blocks may not exceed the window: never shrink it below a block
_WINDOW_LOG_BASE: Final = 10
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)


@dataclass(frozen=True, slots=True)
class ZstdPlan:
    stated_bytes: int  # sum of the content sizes that frames state; 0 for those that state none
    output_bytes_min: int  # what raw and run-length blocks hold for certain
    output_bytes_max: int  # what all blocks can hold at most
    windows: tuple[
        tuple[int, int, int], ...
    ]  # (position of the window descriptor, window bytes, frame output bytes max)

    def with_small_windows(self, data: Buffer, limit: int) -> Buffer:
        """`data` with no window larger than its frame can use; the same object when none is."""
        patched: bytearray | None = None
        for position, window, output_max in self.windows:
            needed = max((min(output_max, limit) - 1).bit_length(), _WINDOW_LOG_FLOOR)
            if window > 1 << needed:
                patched = patched or bytearray(data)
                patched[position] = needed - _WINDOW_LOG_BASE << 3
        return data if patched is None else patched


def plan_zstd(data: Buffer) -> ZstdPlan:
    stated = output_min = output_max = position = 0
    windows: list[tuple[int, int, int]] = []
    view = memoryview(data)
    while True:
        magic = _unsigned(view, position, 4)
        if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            position += 8 + _unsigned(view, position + 4, 4)
        elif magic == _FRAME_MAGIC:
            position, frame_stated, frame_min, frame_max = _frame(view, position, windows)
            stated += frame_stated
            output_min += frame_min
            output_max += frame_max
        else:
            raise CorruptDataError(f"zstd payload of {len(view)} bytes has no frame at {position}")
        if position == len(view):
            return ZstdPlan(stated, output_min, output_max, tuple(windows))


def _frame(view: memoryview, start: int, windows: list[tuple[int, int, int]]) -> tuple[int, int, int, int]:
    descriptor = _unsigned(view, start + 4, 1)
    single_segment = descriptor & 0x20
    position = start + 5 + (0 if single_segment else 1)
    position += _DICTIONARY_ID_BYTES[descriptor & 3]
    size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or (1 if single_segment else 0)
    stated = _unsigned(view, position, size_bytes) + (256 if size_bytes == 2 else 0)
    position, output_min, output_max = _blocks(view, position + size_bytes)
    if descriptor & 0x04:
        position += 4
    if position > len(view):
        raise CorruptDataError(f"zstd payload of {len(view)} bytes ends inside the frame at {start}")
    if size_bytes:
        output_max = min(output_max, stated)
    if not single_segment:
        code = view[start + 5]
        base = 1 << (_WINDOW_LOG_BASE + (code >> 3))
        windows.append((start + 5, base + (base >> 3) * (code & 7), output_max))
    return position, stated, output_min, output_max


def _blocks(view: memoryview, position: int) -> tuple[int, int, int]:
    """Position behind the last block, and the least and most bytes that the blocks can hold."""
    certain = compressed_blocks = 0
    while True:
        word = _unsigned(view, position, 3)
        kind, size = word >> 1 & 3, word >> 3
        position += 3
        if kind == 0:  # raw: its bytes stand in the block
            position += size
            certain += size
        elif kind == 1:  # one byte, repeated
            position += 1
            certain += size
        elif kind == 2:
            position += size
            compressed_blocks += 1
        else:
            raise CorruptDataError(f"zstd block header {word:#08x} is of a reserved kind")
        if word & 1:
            return position, certain, certain + compressed_blocks * _BLOCK_BYTES_MAX


def _unsigned(view: memoryview, position: int, size: int) -> int:
    field = view[position : position + size]
    if len(field) != size:
        raise CorruptDataError(f"zstd payload of {len(view)} bytes breaks off at {position}")
    return int.from_bytes(field, "little")
