"""The few types that every message shares.

Owns names only: no code that reads or writes bytes. `Part` is what an encoder puts out and a connection sends.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias, runtime_checkable

Buffer: TypeAlias = bytes | bytearray | memoryview

#: Kafka's "no id". Ids are 16 raw bytes everywhere; text forms belong to the edges (CLI, console, partition.metadata).
ZERO_UUID: Final = bytes(16)


@runtime_checkable
class FilePart(Protocol):
    """Bytes that are somewhere else until they are sent. `tidelog.storage.disk.FileRange` is one."""

    def __len__(self) -> int: ...

    def read(self) -> bytes: ...

    def release(self) -> None: ...


Part: TypeAlias = Buffer | FilePart
