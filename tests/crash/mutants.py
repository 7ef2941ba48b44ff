"""`tidelog start` with one promise broken on purpose, to show that the crash states find it. Run as a script: mutant, then arguments.

The product knows nothing of this: each mutant replaces a function from outside. One that no longer finds what it replaces fails.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

LATE_SECONDS = 2.0
METADATA = "__cluster_metadata"


def answer_before_fdatasync() -> None:
    """M33: the high watermark moves when a batch is written, not when it is synced."""
    from tidelog.replication.partition import Partition

    append = Partition.append

    def early(self: Any, *arguments: Any, **named: Any) -> Any:
        result = append(self, *arguments, **named)
        self._advance_high_watermark(self.log.log_end_offset)
        return result

    Partition.append = early  # type: ignore[method-assign]


def late_flush(concerns: Callable[[str], bool]) -> None:
    """The sync of these logs says that it is done, and is done a moment later."""
    from tidelog.storage.log_flush import FlushTicket

    run = FlushTicket.run

    def late(self: Any) -> None:
        if not concerns(self._directory):
            run(self)
            return
        for file in self._files:
            file.pin()

        def sync() -> None:
            run(self)
            for file in self._files:
                file.unpin()

        threading.Timer(LATE_SECONDS, sync).start()
        self._done = True

    FlushTicket.run = late  # type: ignore[method-assign]


def records_before_fdatasync() -> None:
    """M33 from the other side: everything waits as it should, for a sync that has not happened yet."""
    late_flush(lambda directory: METADATA not in directory)


def metadata_before_fdatasync() -> None:
    late_flush(lambda directory: METADATA in directory)


def roll_without_directory_sync() -> None:
    """M26 in a partition: the bytes of a new segment are synced, its name is not."""
    from tidelog.storage.log_flush import FlushTicket

    run = FlushTicket.run

    def nameless(self: Any) -> None:
        if METADATA not in self._directory:
            self.sync_dir = False
        run(self)

    FlushTicket.run = nameless  # type: ignore[method-assign]


def checkpoint_without_directory_sync() -> None:
    """M26: a checkpoint is written and renamed, and the directory is not synced."""
    from tidelog.storage import log_dirs

    def unnamed(disk: Any, path: str, content: bytes) -> None:
        file = disk.open(path + ".tmp", create=True)
        file.write_at([content], 0)
        file.sync()
        file.close()
        disk.rename(path + ".tmp", path)

    _replace(log_dirs, "write_file_atomically", unnamed)


def checkpoint_renamed_before_its_sync() -> None:
    """The name of a checkpoint reaches the disk, its bytes may not have."""
    from tidelog.storage import log_dirs

    def unwritten(disk: Any, path: str, content: bytes) -> None:
        file = disk.open(path + ".tmp", create=True)
        file.write_at([content], 0)
        file.close()
        disk.rename(path + ".tmp", path)
        disk.sync_dir(path.rpartition("/")[0])

    _replace(log_dirs, "write_file_atomically", unwritten)


def _replace(module: Any, name: str, by: Any) -> None:
    if not hasattr(module, name):
        raise AttributeError(f"{module.__name__} has no {name}: the mutant must follow the product")
    setattr(module, name, by)


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant
    for mutant in (
        answer_before_fdatasync,
        records_before_fdatasync,
        metadata_before_fdatasync,
        roll_without_directory_sync,
        checkpoint_without_directory_sync,
        checkpoint_renamed_before_its_sync,
    )
}

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    from tidelog.cli.main import main

    main()
