"""Clients that outlive a task: a Python worker of Spark runs many, and each would otherwise connect and ask for metadata anew.

One event loop in a thread for each process and one client for each set of settings, a few at most. A forked process begins without any: sockets and threads are its parent's.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from tidelog.client.cluster import ClusterClient
from tidelog.client.loop_thread import LoopThread
from tidelog.client.settings import ConsumerSettings
from tidelog.spark.fetch_sizes import FetchSizes

T = TypeVar("T")
CLIENTS_MAX: Final = 4

_Key = tuple[str, tuple[tuple[str, Any], ...]]


class WarmClient:
    """A client of one cluster, and the loop that it lives on."""

    def __init__(self, servers: str, settings: Mapping[str, Any], loop: LoopThread) -> None:
        self.settings = ConsumerSettings.configured({"bootstrap.servers": servers, **settings})[1]
        self.cluster = ClusterClient(servers, self.settings)
        self.loop = loop
        self.sizes = FetchSizes()
        """Used on the loop only."""

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        return self.loop.run(work, timeout)


class _Process:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.loop = LoopThread("tidelog-spark")
        self.clients: OrderedDict[_Key, WarmClient] = OrderedDict()


_process: _Process | None = None
_making = threading.Lock()


def warm_client(servers: str, settings: Mapping[str, Any]) -> WarmClient:
    """The client of this process for these settings, made if there is none."""
    process = _of_this_process()
    key = (servers, tuple(sorted(settings.items())))
    with process.lock:
        client = process.clients.get(key)
        if client is None:
            client = process.clients[key] = WarmClient(servers, settings, process.loop)
            while len(process.clients) > CLIENTS_MAX:
                _, oldest = process.clients.popitem(last=False)
                oldest.run(oldest.cluster.close())
        process.clients.move_to_end(key)
        return client


def _of_this_process() -> _Process:
    global _process
    with _making:
        if _process is None or _process.pid != os.getpid() or not _process.loop.is_alive:
            _process = _Process()
        return _process


def _forget_after_fork() -> None:
    global _process, _making
    _process, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
