"""The real broker inside a test process: on a free port, in a temporary directory, ready in well under 100 ms. Or several of them, as a cluster that can be hurt.

    with Cluster(topics={"orders": 3}) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})

    with Cluster(brokers=3, topics={"orders": 3}) as cluster:
        cluster.kill(cluster.leader_of("orders", 0))

Each broker runs on an event loop of its own in a background thread, so blocking and asyncio clients alike can use it from the
test's thread. It is the same code as `tidelog start`. The one difference is a default: a temporary directory is gone after
the test anyway, so acknowledgements do not wait for fdatasync (`durability=replicated`); a given `data_dir` keeps the
broker's own default. Either can be set in `config`.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tidelog.broker.node import Broker
    from tidelog.controller.image import PartitionImage

START_SECONDS_MAX = 60.0


class ShiftedClock:
    """The system's clocks, ahead by as much as a test wants: what brokers take for the time of day (retention, timestamps). Their timers go by real time."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds

    def wall_ms(self) -> int:
        return int((time.time() + self._ahead_s) * 1000)

    def monotonic(self) -> float:
        return time.monotonic()


class SimulatedMachine:
    """The computer of one broker, which can be restarted: what counts as "since the last boot" begins anew. The files keep whatever was written to them."""

    def __init__(self) -> None:
        self._boots = 1

    def reboot(self) -> None:
        self._boots += 1

    def boot_id(self) -> str | None:
        from tidelog.ports import SystemMachine

        real = SystemMachine().boot_id()
        return None if real is None else f"{real}, {self._boots}"


class Cluster:
    """A broker of its own for a test, a fixture or a notebook, or several. Use it as a context manager, or call `start` and `stop`."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        topics: Mapping[str, int] | Iterable[str] = (),
        config: Mapping[str, Any] | None = None,
        data_dir: str | Path | None = None,
        port: int = 0,
        racks: Sequence[str] = (),
    ) -> None:
        """`topics` are created up front: names, or names with their partition counts. `config` takes broker settings. With several `brokers`, topics have
        up to three replicas and the port is that of broker 0; `racks` says where each of them stands (`broker.rack`)."""
        if racks and len(racks) != brokers:
            raise ValueError(f"{brokers} brokers stand in {brokers} racks, not in {list(racks)}")
        if isinstance(topics, str):
            topics = (topics,)
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
        self._config = {name: _text(value) for name, value in (config or {}).items()}
        self._given_dir = Path(data_dir) if data_dir is not None else None
        self._ports = [port] + [0] * (brokers - 1)
        self._controller_ports = _free_ports(brokers) if brokers > 1 else []
        self._temporary: str | None = None
        self._runners: dict[int, _BrokerThread] = {}
        self._cuts: set[tuple[int, int]] = set()
        self._racks = tuple(racks)
        self._machines = [SimulatedMachine() for _ in range(brokers)]
        self.clock = ShiftedClock()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, for every client's setting of that name; of each broker, if there are several."""
        self._running  # noqa: B018 - raises unless there is one
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def data_dir(self) -> Path:
        if self._given_dir is not None:
            return self._given_dir
        if self._temporary is None:
            raise RuntimeError("the cluster has not been started, so it has no temporary directory yet")
        return Path(self._temporary)

    @property
    def _running(self) -> _BrokerThread:
        if not self._runners:
            raise RuntimeError("the cluster is not running: use it in a `with` block, or call start() first")
        return next(iter(self._runners.values()))

    def start(self) -> Self:
        if self._runners:
            raise RuntimeError("the cluster is running already")
        if self._given_dir is None and self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="tidelog-")
        try:
            self._launch(range(len(self._ports)))
            for name, partitions in self._topics.items():
                self.create_topic(name, partitions, exist_ok=True)
        except BaseException:
            self.close()  # nobody else will: a `with` block is not entered
            raise
        return self

    def _launch(self, nodes: Iterable[int]) -> None:
        """Together: none of them is ready before most of them are there."""
        begun = {
            node: _BrokerThread(self._properties(node), self.clock, self._machines[node]) for node in nodes
        }
        for runner in begun.values():
            runner.begin()
        try:
            for node, runner in begun.items():
                runner.wait_until_ready()
                self._ports[node] = runner.port  # a restart keeps its address, so that clients find it again
        finally:
            self._runners = dict(
                sorted((self._runners | {n: r for n, r in begun.items() if r.is_running}).items())
            )
        self._apply_cuts()

    def stop(self) -> None:
        """Shut down cleanly. A temporary directory stays until `close` or the end of the `with` block."""
        self._stop(clean=True)

    def _stop(self, *, clean: bool) -> None:
        self._resume_all()
        runners, self._runners = self._runners, {}
        for runner in runners.values():
            runner.begin_stop(clean=clean)
        for runner in runners.values():
            runner.join()

    def restart(self, node: int | None = None) -> None:
        """Stop and start again on the same data and the same port: all brokers, or one, which may have been killed before."""
        if node is None:
            self.stop()
            self.start()
            return
        runner = self._runners.pop(node, None)
        if runner is not None:
            runner.resume()
            runner.begin_stop(clean=True)
            runner.join()
        self._launch([node])

    def close(self) -> None:
        """Shut down for good, and remove a temporary directory (which is therefore not made durable first)."""
        self._stop(clean=self._temporary is None)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    # ---- faults

    def kill(self, node: int) -> None:
        """As kill -9: the broker finishes nothing and tells nobody. `restart(node)` brings it back."""
        runner = self._runners.pop(node)
        runner.resume()
        runner.begin_stop(clean=False)
        runner.join()

    def lose_power(self, *nodes: int) -> None:
        """These brokers are killed and their machines boot anew: for them, what was not synced may be gone (their files still have it). `restart(node)`, or `start`
        if it was all of them, brings them back.
        """
        for node in nodes:
            if node in self._runners:
                self.kill(node)
            self._machines[node].reboot()

    def pause(self, node: int) -> None:
        """The broker stands still, with its connections open, until `resume`, `heal` or its end: a long pause of its process."""
        self._runners[node].pause()

    def resume(self, node: int) -> None:
        self._runners[node].resume()

    def partition(self, one: int, other: int) -> None:
        """The two brokers do not reach each other any more. Clients reach both."""
        self._cuts |= {(one, other), (other, one)}
        self._apply_cuts()

    def heal(self) -> None:
        """Every connection works again, and nobody is paused."""
        self._resume_all()
        self._cuts.clear()
        self._apply_cuts()

    @property
    def controller(self) -> int | None:
        """The node with the active controller, as far as the brokers know; None while there is none."""
        newest = max(
            (runner.broker.node.metadata for runner in self._runners.values()),
            key=lambda known: known.leader_epoch,
        )
        return newest.leader_id

    def leader_of(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, as the cluster has it now; -1 while nobody does."""
        return self._partition(topic, partition).leader

    def in_sync(self, topic: str, partition: int) -> set[int]:
        """The brokers whose replicas of a partition are in sync."""
        return set(self._partition(topic, partition).isr)

    def _partition(self, topic: str, partition: int) -> PartitionImage:
        images = [runner.broker.image for runner in self._runners.values()]
        found = max(images, key=lambda image: image.offset).partition(topic, partition)
        if found is None:
            raise KeyError(f"there is no partition {topic}-{partition}")
        return found

    @property
    def running(self) -> list[int]:
        """The brokers that are neither stopped nor killed."""
        return list(self._runners)

    def broker(self, node: int) -> Broker:
        """The broker itself, to look at. It lives on a loop of its own in another thread."""
        return self._runners[node].broker

    def _resume_all(self) -> None:
        for runner in self._runners.values():
            runner.resume()

    def _apply_cuts(self) -> None:
        for node, runner in self._runners.items():
            runner.cut_off({other for one, other in self._cuts if one == node})

    # ---- topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        replicas: Sequence[Sequence[int]] | None = None,
    ) -> str:
        """Create a topic and return its name; it is ready for use when this returns. `replicas` names the brokers of each partition, the one that is to lead first."""
        runner = self._running
        settings = {key: _text(value) for key, value in (config or {}).items()}
        runner.call(
            runner.broker.topics.create(name, partitions, settings, replicas=replicas, exist_ok=exist_ok)
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while any(name not in other.broker.image.topics_by_name for other in self._runners.values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not every broker has heard of {name} within {START_SECONDS_MAX:.0f} s")
            time.sleep(0.002)
        return name

    def delete_topic(self, name: str) -> None:
        runner = self._running
        runner.call(runner.broker.topics.delete(name))

    def _properties(self, node: int) -> dict[str, str]:
        listener = f"PLAINTEXT://127.0.0.1:{self._ports[node]}"
        properties = {"listeners": listener, "log.dirs": str(self.data_dir)}
        if self._controller_ports:
            replicas = min(3, len(self._ports))
            voters = (f"{voter}@127.0.0.1:{port}" for voter, port in enumerate(self._controller_ports))
            properties |= {
                "node.id": str(node),
                "controller.quorum.voters": ",".join(voters),
                "controller.listener.names": "CONTROLLER",
                "listeners": f"{listener},CONTROLLER://127.0.0.1:{self._controller_ports[node]}",
                "log.dirs": str(self.data_dir / f"node-{node}"),
                "default.replication.factor": str(replicas),
                "min.insync.replicas": str(max(1, replicas - 1)),
                "offsets.topic.replication.factor": str(replicas),
            }
        if self._racks:
            properties["broker.rack"] = self._racks[node]
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

    def __init__(self, properties: Mapping[str, str], clock: ShiftedClock, machine: SimulatedMachine) -> None:
        self._properties = properties
        self._clock = clock
        self._machine = machine
        self._going_on = threading.Event()
        self._going_on.set()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="tidelog-broker", daemon=True)
        self._clean = True
        self.broker: Broker
        self.port = 0

    @property
    def is_running(self) -> bool:
        return self._ready.is_set() and self._failure is None

    def begin(self) -> None:
        self._thread.start()

    def wait_until_ready(self) -> None:
        if not self._ready.wait(START_SECONDS_MAX):
            raise TimeoutError(f"the broker was not ready within {START_SECONDS_MAX:.0f} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def begin_stop(self, *, clean: bool) -> None:
        assert self._loop is not None and self._stop is not None
        self._clean = clean
        self._loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def pause(self) -> None:
        assert self._loop is not None
        self._going_on.clear()
        self._loop.call_soon_threadsafe(self._going_on.wait)

    def resume(self) -> None:
        self._going_on.set()

    def cut_off(self, nodes: set[int]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.broker.peers.cut_off, nodes)

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
        broker = Broker(BrokerConfig.load(self._properties), clock=self._clock, machine=self._machine)
        await broker.start()
        try:
            self.broker = broker
            self.port = next(each.port for each in broker.listeners if not each.for_controllers)
            self._ready.set()
            await self._stop.wait()
        finally:
            await broker.stop(clean=self._clean)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
