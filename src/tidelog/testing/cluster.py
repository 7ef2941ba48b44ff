"""The real broker inside a test process: on a free port, in a temporary directory, ready in well under 100 ms.

    with Cluster(topics={"orders": 3}) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})

The broker runs on an event loop of its own in a background thread, so blocking and asyncio clients alike can use it from the
test's thread. It is the same code as `tidelog start`. The one difference is a default: a temporary directory is gone after
the test anyway, so acknowledgements do not wait for fdatasync (`durability=replicated`); a given `data_dir` keeps the
broker's own default. Either can be set in `config`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

START_SECONDS_MAX = 60.0


class Cluster:
    """A broker of its own for a test, a fixture or a notebook. Use it as a context manager, or call `start` and `stop`."""

    def __init__(
        self,
        *,
        topics: Mapping[str, int] | Iterable[str] = (),
        config: Mapping[str, Any] | None = None,
        data_dir: str | Path | None = None,
        port: int = 0,
    ) -> None:
        """`topics` are created up front: names, or names with their partition counts. `config` takes broker settings."""
        if isinstance(topics, str):
            topics = (topics,)
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
        self._config = {name: _text(value) for name, value in (config or {}).items()}
        self._given_dir = Path(data_dir) if data_dir is not None else None
        self._port = port
        self._temporary: str | None = None
        self._runner: _BrokerThread | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, for every client's setting of that name."""
        return f"127.0.0.1:{self._running.port}"

    @property
    def data_dir(self) -> Path:
        if self._given_dir is not None:
            return self._given_dir
        if self._temporary is None:
            raise RuntimeError("the cluster has not been started, so it has no temporary directory yet")
        return Path(self._temporary)

    @property
    def _running(self) -> _BrokerThread:
        if self._runner is None:
            raise RuntimeError("the cluster is not running: use it in a `with` block, or call start() first")
        return self._runner

    def start(self) -> Self:
        if self._runner is not None:
            raise RuntimeError("the cluster is running already")
        if self._given_dir is None and self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="tidelog-")
        runner = _BrokerThread(self._properties())
        try:
            runner.start()
            self._runner = runner
            for name, partitions in self._topics.items():
                self.create_topic(name, partitions, exist_ok=True)
        except BaseException:
            self.close()  # nobody else will: a `with` block is not entered
            raise
        self._port = runner.port  # a restart keeps its address, so that clients find it again
        return self

    def stop(self) -> None:
        """Shut down cleanly. A temporary directory stays until `close` or the end of the `with` block."""
        self._stop(clean=True)

    def _stop(self, *, clean: bool) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.stop(clean=clean)

    def restart(self) -> None:
        """Stop and start again on the same data and the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Shut down for good, and remove a temporary directory (which is therefore not made durable first)."""
        self._stop(clean=self._temporary is None)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
    ) -> str:
        """Create a topic and return its name; it is ready for use when this returns."""
        runner = self._running
        settings = {key: _text(value) for key, value in (config or {}).items()}
        runner.call(runner.broker.topics.create(name, partitions, settings, exist_ok=exist_ok))
        return name

    def delete_topic(self, name: str) -> None:
        runner = self._running
        runner.call(runner.broker.topics.delete(name))

    def _properties(self) -> dict[str, str]:
        properties = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "log.dirs": str(self.data_dir),
        }
        if self._given_dir is None:
            properties["durability"] = "replicated"
        return properties | self._config

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


class _BrokerThread:
    """A thread with an event loop with a broker on it."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="tidelog-broker", daemon=True)
        self._clean = True
        self.broker: Broker
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(START_SECONDS_MAX):
            raise TimeoutError(f"the broker was not ready within {START_SECONDS_MAX:.0f} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def stop(self, *, clean: bool) -> None:
        assert self._loop is not None and self._stop is not None
        self._clean = clean
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def call(self, work: Any) -> Any:
        """Run a coroutine on the broker's loop and wait for what it returns."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS_MAX)

    def _run(self) -> None:
        from tidelog.broker.event_loop import run

        try:
            run(self._serve())
        except BaseException as failure:  # noqa: BLE001 - handed to the test's thread, which raises it
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from tidelog.broker.node import Broker
        from tidelog.config.resolve import BrokerConfig

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        broker = Broker(BrokerConfig.load(self._properties))
        await broker.start()
        try:
            self.broker = broker
            self.port = broker.listeners[0].port
            self._ready.set()
            await self._stop.wait()
        finally:
            await broker.stop(clean=self._clean)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
