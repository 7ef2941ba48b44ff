"""Administration for programs without an event loop: the methods of `admin.Admin`, no `await`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from tidelog.client import admin as asyncio_admin
from tidelog.client.loop_thread import LoopThread

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[asyncio_admin.Admin, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Admin, P], R]:
    def call(self: Admin, /, *arguments: P.args, **options: P.kwargs) -> R:
        return self._thread.run(method(self._inner, *arguments, **options))

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class Admin:
    def __init__(self, servers: str | Iterable[str], **options: Any) -> None:
        """As the asyncio one's."""
        self._inner = asyncio_admin.Admin(servers, **options)
        self._thread = LoopThread("tidelog-admin")

    def __enter__(self) -> Admin:
        try:
            self._thread.run(self._inner.start())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self._thread.is_alive:
            return
        try:
            self._thread.run(self._inner.close())
        finally:
            self._thread.stop()

    list_topics = _blocking(asyncio_admin.Admin.list_topics)
    describe_topics = _blocking(asyncio_admin.Admin.describe_topics)
    create_topics = _blocking(asyncio_admin.Admin.create_topics)
    delete_topics = _blocking(asyncio_admin.Admin.delete_topics)
    create_partitions = _blocking(asyncio_admin.Admin.create_partitions)
    describe_configs = _blocking(asyncio_admin.Admin.describe_configs)
    alter_configs = _blocking(asyncio_admin.Admin.alter_configs)
    list_groups = _blocking(asyncio_admin.Admin.list_groups)
    describe_group = _blocking(asyncio_admin.Admin.describe_group)
    delete_group = _blocking(asyncio_admin.Admin.delete_group)
    group_offsets = _blocking(asyncio_admin.Admin.group_offsets)
    alter_group_offsets = _blocking(asyncio_admin.Admin.alter_group_offsets)
    delete_group_offsets = _blocking(asyncio_admin.Admin.delete_group_offsets)
    list_offsets = _blocking(asyncio_admin.Admin.list_offsets)
    delete_records = _blocking(asyncio_admin.Admin.delete_records)
    describe_log_dirs = _blocking(asyncio_admin.Admin.describe_log_dirs)
