"""The fault proxy on real sockets: what it forwards, keeps back, tears and refuses, and that nothing of it is left behind."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tidelog.testing.proxy import CHUNK_BYTES, HELD_CHUNKS, Direction, Proxy, ProxyMesh

SECONDS_MAX = 30.0
SILENCE_SECONDS = 0.3
"""How long nothing may come before a test believes that nothing comes. Too short, and it believes too much; never the reverse."""


class Echo:
    """A server that sends back what it gets, and half closes when its peer does."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received = 0
        self.errors: list[OSError] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    self.received += len(data)
                    connection.sendall(data)
            except OSError as error:
                self.errors.append(error)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            break
        data += more
    return data


def exchange(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return receive(connection, len(data))


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SILENCE_SECONDS)
    try:
        connection.recv(1, socket.MSG_PEEK)
        return False
    except TimeoutError:
        return True
    finally:
        connection.settimeout(SECONDS_MAX)


def is_reset(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 16):
            pass
        return False
    except ConnectionResetError:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_forwards_whatever_comes(proxy: Proxy) -> None:
    with closing(connect(proxy.port)) as first, closing(connect(proxy.port)) as second:
        assert exchange(first, b"hello") == b"hello"
        assert exchange(second, b"there") == b"there"
        data = os.urandom(5 << 20)
        sending = threading.Thread(target=first.sendall, args=(data,))
        sending.start()
        assert receive(first, len(data)) == data
        sending.join()


def test_an_end_is_passed_on_and_the_other_direction_goes_on(proxy: Proxy) -> None:
    with closing(connect(proxy.port)) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert receive(client, 100) == b"last words"
    wait_until(lambda: proxy.connection_count == 0)


def test_a_stall_keeps_bytes_and_healing_lets_them_go(proxy: Proxy, echo: Echo) -> None:
    with closing(connect(proxy.port)) as client:
        assert exchange(client, b"before") == b"before"
        proxy.stall()
        client.sendall(b"kept back")
        assert is_silent(client)
        assert echo.received == len(b"before")
        proxy.heal()
        assert receive(client, 9) == b"kept back"
        assert exchange(client, b"after") == b"after"


def test_one_direction_alone_can_stall(proxy: Proxy, echo: Echo) -> None:
    with closing(connect(proxy.port)) as client:
        proxy.stall(Direction.BACKWARD)
        client.sendall(b"asked")
        wait_until(lambda: echo.received == 5)
        assert is_silent(client)
        proxy.heal()
        assert receive(client, 5) == b"asked"
        proxy.stall(Direction.FORWARD)
        client.sendall(b"again")
        assert is_silent(client)
        assert echo.received == 5
        proxy.heal()
        assert receive(client, 5) == b"again"


def test_during_a_stall_new_connections_lead_nowhere(proxy: Proxy, echo: Echo) -> None:
    proxy.stall()
    with closing(connect(proxy.port)) as client:
        client.sendall(b"anybody?")
        assert is_silent(client)
        assert echo.received == 0
        proxy.heal()
        assert receive(client, 8) == b"anybody?"


def test_during_a_stall_nobody_hears_that_the_other_one_has_gone() -> None:
    """A machine that is cut off and dies sends nobody a reset."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        Proxy(listener.getsockname()[1]) as ours,
        closing(connect(ours.port)) as client,
    ):
        server, _ = listener.accept()
        ours.stall()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        server.close()
        assert is_silent(client)
        ours.heal()
        assert is_reset(client)


def test_a_sender_is_held_up_when_enough_is_held(proxy: Proxy) -> None:
    proxy.stall()
    with closing(connect(proxy.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK_BYTES)
        client.settimeout(SILENCE_SECONDS)
        taken = 0
        limit = HELD_CHUNKS * CHUNK_BYTES + (64 << 20)  # the kernel's buffers are bounded too
        with pytest.raises(TimeoutError):
            while taken < limit:
                taken += client.send(bytes(CHUNK_BYTES))
        assert taken < limit


def test_a_delay_comes_to_each_direction_once(proxy: Proxy) -> None:
    with closing(connect(proxy.port)) as client:
        assert exchange(client, b"x") == b"x"
        proxy.delay(0.2)
        start = time.monotonic()
        for number in range(20):  # they do not wait for each other
            client.sendall(b"%02d" % number)
        assert receive(client, 40) == b"".join(b"%02d" % number for number in range(20))
        took = time.monotonic() - start
        assert 0.4 <= took < 4.0, "twenty delays one after the other would take eight seconds"
        proxy.delay(30.0, Direction.FORWARD)
        client.sendall(b"late")
        assert is_silent(client)
        proxy.heal()
        assert receive(client, 4) == b"late", "healing ends a delay that has begun"


def test_a_cut_resets_and_refuses(proxy: Proxy) -> None:
    with closing(connect(proxy.port)) as client:
        assert exchange(client, b"x") == b"x"
        proxy.cut()
        assert is_reset(client)
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                connect(proxy.port)
        with pytest.raises(OSError) as taken, closing(socket.socket()) as other:
            other.bind(("127.0.0.1", proxy.port))
        assert taken.value.errno == errno.EADDRINUSE, "the port stays its own"
    proxy.heal()
    with closing(connect(proxy.port)) as client:
        assert exchange(client, b"back") == b"back"


def test_the_other_side_hears_of_a_cut_too(proxy: Proxy, echo: Echo) -> None:
    with closing(connect(proxy.port)) as client:
        assert exchange(client, b"x") == b"x"
        proxy.cut()
        wait_until(lambda: len(echo.errors) == 1)
        assert isinstance(echo.errors[0], ConnectionResetError)


def test_a_reset_tears_what_is_there_and_takes_new_ones(proxy: Proxy) -> None:
    with closing(connect(proxy.port)) as client:
        assert exchange(client, b"x") == b"x"
        proxy.reset()
        assert is_reset(client)
    with closing(connect(proxy.port)) as client:
        assert exchange(client, b"x") == b"x"


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("count", [1, 7, CHUNK_BYTES + 1])
def test_a_connection_is_torn_after_so_many_bytes(
    proxy: Proxy, echo: Echo, count: int, direction: Direction
) -> None:
    with closing(connect(proxy.port)) as client:
        proxy.drop_after(count, direction)
        client.sendall(bytes(count + 10))
        assert is_reset(client)
    if direction is Direction.FORWARD:
        wait_until(lambda: len(echo.errors) == 1)
        assert echo.received <= count
    with closing(connect(proxy.port)) as client:
        assert exchange(client, bytes(count + 10)) == bytes(count + 10), "one connection, not the next one"


def test_what_comes_before_the_tear_arrives() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        Proxy(listener.getsockname()[1]) as proxy,
    ):
        proxy.drop_after(7)
        with closing(connect(proxy.port)) as client:
            server, _ = listener.accept()
            with closing(server):
                client.sendall(b"five!")
                assert receive(server, 5) == b"five!"
                client.sendall(b"sixth")
                got = b""
                try:
                    while more := server.recv(1):
                        got += more
                except ConnectionResetError:
                    pass
                assert b"si".startswith(got), "never more than was allowed"


def test_nobody_behind_it() -> None:
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        with Proxy(nobody.getsockname()[1]) as proxy:
            with pytest.raises(ConnectionResetError), closing(connect(proxy.port)) as client:
                client.recv(1)
            wait_until(lambda: proxy.connection_count == 0)


def test_nothing_is_left_behind(echo: Echo) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    threads = threading.active_count()
    before = descriptors()
    for end in ("close", "stall", "cut", "leave"):
        with Proxy(echo.port) as proxy:
            clients = [connect(proxy.port) for _ in range(10)]
            for client in clients:
                assert exchange(client, b"x") == b"x"
            if end == "stall":
                proxy.stall()
            if end == "cut":
                proxy.cut()
            if end != "leave":
                for client in clients:
                    client.close()
            if end == "close":
                wait_until(lambda: proxy.connection_count == 0)
        for client in clients:
            client.close()
        wait_until(lambda: descriptors() <= before and threading.active_count() <= threads)


def test_a_port_that_is_taken_is_not_taken_again(echo: Echo) -> None:
    threads = threading.active_count()
    with pytest.raises(OSError) as taken:
        Proxy(echo.port, port=echo.port)
    assert taken.value.errno == errno.EADDRINUSE
    assert threading.active_count() == threads


# ---- meshes


@pytest.fixture
def servers() -> Iterator[dict[str, Echo]]:
    servers = {name: Echo() for name in "abc"}
    yield servers
    for server in servers.values():
        server.close()


@pytest.fixture
def mesh(servers: dict[str, Echo]) -> Iterator[ProxyMesh]:
    with ProxyMesh({**{name: server.port for name, server in servers.items()}, "client": None}) as mesh:
        yield mesh


def reaches(mesh: ProxyMesh, source: str, sink: str) -> bool:
    """Waits as long as it takes; a mesh that is cut off fails by the timeout."""
    with closing(connect(mesh.port(source, sink))) as connection:
        return exchange(connection, b"?") == b"?"


def is_cut_off(mesh: ProxyMesh, source: str, sink: str) -> bool:
    with closing(connect(mesh.port(source, sink))) as connection:
        connection.sendall(b"?")
        return is_silent(connection)


PAIRS = {(source, sink) for source in ("a", "b", "c", "client") for sink in "abc" if source != sink}


def test_a_partition_is_between_two(mesh: ProxyMesh) -> None:
    mesh.partition("a", "b")
    assert is_cut_off(mesh, "a", "b") and is_cut_off(mesh, "b", "a")
    assert all(reaches(mesh, *pair) for pair in PAIRS - {("a", "b"), ("b", "a")})
    mesh.heal()
    assert all(reaches(mesh, *pair) for pair in PAIRS)


def test_an_isolated_node_is_cut_off_from_everybody(mesh: ProxyMesh) -> None:
    mesh.isolate("a")
    assert is_cut_off(mesh, "client", "a")
    assert is_cut_off(mesh, "a", "b") and is_cut_off(mesh, "c", "a")
    assert reaches(mesh, "client", "b") and reaches(mesh, "b", "c")
    mesh.heal("a", "client")
    assert reaches(mesh, "client", "a") and is_cut_off(mesh, "b", "a")
    mesh.heal("a")
    assert reaches(mesh, "b", "a")


def test_a_partition_of_one_way(mesh: ProxyMesh, servers: dict[str, Echo]) -> None:
    """b hears nothing of a, neither questions nor answers; a hears what b asks."""
    mesh.partition("a", "b", one_way=True)
    assert is_cut_off(mesh, "a", "b")
    assert servers["b"].received == 0
    assert is_cut_off(mesh, "b", "a")
    assert servers["a"].received == 1


def test_a_cut_between_two(mesh: ProxyMesh) -> None:
    mesh.cut("a", "b")
    with pytest.raises(ConnectionRefusedError):
        connect(mesh.port("a", "b"))
    with pytest.raises(ConnectionRefusedError):
        connect(mesh.port("b", "a"))
    assert reaches(mesh, "a", "c")
    mesh.heal("a", "b")
    assert reaches(mesh, "a", "b")


def test_a_mesh_says_whom_it_does_not_know(mesh: ProxyMesh) -> None:
    with pytest.raises(KeyError, match="'d' is no node"):
        mesh.partition("a", "d")
    with pytest.raises(KeyError, match="'d' is no node"):
        mesh.heal("d")
    with pytest.raises(KeyError):
        mesh.port("a", "client")
