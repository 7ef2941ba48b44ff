"""A directory of Parquet files that any reader can list: whole batches appear in it, each by one rename.

A directory has no transactions. A batch is written beside the table (`_tidelog-<table>/`) and moved in as a directory named by query and batch, so that a repeat finds it there, and readers
see all of a batch or nothing. Batches are in groups of a hundred; compaction swaps the directory of a group for one with fewer files, in one system call where the file system can.
A reader that listed files before the swap and opens them afterwards does not find them, and has to list again: that is why nothing is compacted unless asked for.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from typing import Final, NamedTuple

from pyspark.sql import types as t

from tidelog.pipeline.tables.parquet_merge import merge_files
from tidelog.pipeline.tables.table import (
    Compacted,
    Staged,
    Table,
    TableError,
    TableSettings,
    Written,
    query_digest,
)

GROUP_BATCHES: Final = 100
_GROUP: Final = re.compile(r"tidelog_group=([0-9a-f]+)-(\d+)")
_BATCH: Final = re.compile(r"tidelog_batch=(\d+)(?:-(\d+))?")
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of renameat2(2)
_HERE: Final = -100  # AT_FDCWD


class _Batches(NamedTuple):
    name: str
    first: int
    last: int


class ParquetTable(Table):
    def __init__(self, settings: TableSettings) -> None:
        super().__init__(settings)
        self._own: set[str] = set()
        """Digests of queries that this process writes for. Only their batches are compacted: nobody else moves directories into their groups."""
        folder, name = os.path.split(self.path)
        self._beside = os.path.join(folder, f"_tidelog-{name}")

    def last_batch(self, query: str) -> int:
        digest = query_digest(query)
        self._own.add(digest)
        return max((each.last for group in self._groups(digest) for each in self._batches(group)), default=-1)

    def schema(self) -> t.StructType | None:
        try:
            with open(self._schema_file) as file:
                return t.StructType.fromJson(json.load(file))
        except FileNotFoundError:
            if any(_GROUP.fullmatch(name) for name in self._names()):
                raise TableError(
                    f"table {self.settings.path} has rows, and {self._schema_file}, which says what its columns are, is gone: bring it back, or write to a new table"
                ) from None
            return None

    def staging(self, query: str) -> str:
        return os.path.join(self._beside, query_digest(query))

    def commit(self, staged: Staged) -> Written:
        if not staged.files:
            self.discard(staged)
            return Written()
        group = os.path.join(self.path, _group_name(query_digest(staged.query), staged.batch))
        self._check_partitions(staged)
        if staged.plan.is_new or staged.plan.changes_table:
            self._write_schema(staged.plan.schema)
        os.makedirs(group, exist_ok=True)
        try:
            if self.last_batch(staged.query) >= staged.batch:
                raise FileExistsError(errno.EEXIST, "published meanwhile")
            os.rename(staged.directory, os.path.join(group, f"tidelog_batch={staged.batch:09d}"))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self.discard(staged)
            return Written(is_repeat=True)
        _sync(group)
        self.sweep(query=staged.query, batch=staged.batch)
        return staged.written()

    def sweep(self, *, query: str, batch: int, keep: str | None = None) -> None:
        """What was committed is in the table; whatever is left beside it is an attempt that failed."""
        self.remove_attempts(query=query, batch=batch, keep="")

    def compact(self) -> Compacted:
        before = after = 0
        for name in sorted(self._names()):
            found = _GROUP.fullmatch(name)
            if found is None or found[1] not in self._own:
                continue
            group = os.path.join(self.path, name)
            batches = self._batches(group)
            if len(batches) < 2:
                continue
            self._remove_old_merges(found[1])
            merged = os.path.join(self._beside, found[1], f"merge-{name}-{uuid.uuid4().hex[:12]}")
            target = os.path.join(
                merged, f"tidelog_batch={batches[0].first:09d}-{max(each.last for each in batches):09d}"
            )
            counts = merge_files([os.path.join(group, each.name) for each in batches], target)
            _exchange(merged, group)
            _sync(self.path)
            shutil.rmtree(merged, ignore_errors=True)
            before, after = before + counts[0], after + counts[1]
        return Compacted(before, after)

    def _remove_old_merges(self, digest: str) -> None:
        """Of a compaction that was killed: unfinished files, or those that were replaced."""
        beside = os.path.join(self._beside, digest)
        for name in os.listdir(beside) if os.path.isdir(beside) else ():
            if name.startswith("merge-"):
                shutil.rmtree(os.path.join(beside, name), ignore_errors=True)

    def _check_partitions(self, staged: Staged) -> None:
        if staged.plan.is_new:
            return
        for group in os.listdir(self.path):
            for each in self._batches(os.path.join(self.path, group)) if _GROUP.fullmatch(group) else ():
                has = tuple(_partition_names(os.path.join(self.path, group, each.name)))
                if has != self.settings.partition_by:
                    raise TableError(
                        f"table {self.settings.path} is partitioned by {', '.join(has) or 'nothing'}, not by "
                        f"{', '.join(self.settings.partition_by) or 'nothing'}: partition_by cannot be changed once a table is there"
                    )
                return

    @property
    def _schema_file(self) -> str:
        return os.path.join(self._beside, "schema.json")

    def _write_schema(self, schema: t.StructType) -> None:
        os.makedirs(self._beside, exist_ok=True)
        unfinished = f"{self._schema_file}.{uuid.uuid4().hex[:12]}"
        with open(unfinished, "w") as file:
            file.write(schema.json())
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, self._schema_file)
        _sync(self._beside)

    def _names(self) -> list[str]:
        return os.listdir(self.path) if os.path.isdir(self.path) else []

    def _groups(self, digest: str) -> Iterator[str]:
        for name in self._names():
            found = _GROUP.fullmatch(name)
            if found is not None and found[1] == digest:
                yield os.path.join(self.path, name)

    @staticmethod
    def _batches(group: str) -> list[_Batches]:
        found = [(name, _BATCH.fullmatch(name)) for name in os.listdir(group)]
        return sorted(
            (_Batches(name, int(each[1]), int(each[2] or each[1])) for name, each in found if each),
            key=lambda each: each.first,
        )


def _group_name(digest: str, batch: int) -> str:
    return f"tidelog_group={digest}-{batch // GROUP_BATCHES:07d}"


def _partition_names(directory: str) -> Iterator[str]:
    """Of the folders down to the first file."""
    while True:
        folder = next((name for name in sorted(os.listdir(directory)) if "=" in name), None)
        if folder is None:
            return
        yield folder.partition("=")[0]
        directory = os.path.join(directory, folder)


def _exchange(one: str, other: str) -> None:
    """Two directories change their names at the same instant. Where that is not possible, there is an instant in which the second name is not there."""
    library = ctypes.CDLL(None, use_errno=True)
    rename = getattr(library, "renameat2", None)
    if rename is not None:
        if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            raise OSError(number, os.strerror(number), one)
    aside = f"{one}-old"
    os.rename(other, aside)
    os.rename(one, other)
    os.rename(aside, one)


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
