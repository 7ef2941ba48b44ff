"""Listener addresses: from `PLAINTEXT://127.0.0.1:9092` to endpoints, and what makes a set of them impossible.

Owns the grammar of listeners and advertised.listeners and the rules between them. It opens nothing and looks up no
host name: an empty host stays empty, and whoever binds decides what to advertise for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

_ADDRESS = re.compile(r"([A-Za-z0-9_.\-]+)://(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:/\s]*)):(\d{1,5})")
_NOWHERE = frozenset({"0.0.0.0", "::", "0:0:0:0:0:0:0:0"})
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listener. Port 0 means: any free one."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"
    for_controllers: bool = False

    def with_address(self, host: str, port: int) -> Endpoint:
        return replace(self, host=host, port=port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_endpoints(
    setting: str,
    entries: Sequence[str],
    protocols: Mapping[str, str],
    controllers: Sequence[str],
    problems: list[str],
) -> tuple[Endpoint, ...]:
    """The endpoints of a list; what is wrong with an entry is added to `problems`, and the entry left out."""
    found: list[Endpoint] = []
    for entry in entries:
        match = _ADDRESS.fullmatch(entry)
        if match is None or int(match[4]) > 65535:
            problems.append(
                f"{setting} cannot hold {entry!r}: allowed: NAME://host:port, such as PLAINTEXT://127.0.0.1:9092"
            )
            continue
        name = match[1].upper()
        protocol = protocols.get(name)
        if protocol is None:
            problems.append(
                f"{setting} names the listener {name}, which has no security protocol: "
                f"add {name}:PLAINTEXT to listener.security.protocol.map"
            )
            continue
        if name in {endpoint.name for endpoint in found}:
            problems.append(
                f"{setting} names the listener {name} twice: each listener needs a name of its own"
            )
            continue
        found.append(Endpoint(name, match[2] or match[3], int(match[4]), protocol, name in controllers))
    return tuple(found)


def parse_protocol_map(text: str, problems: list[str]) -> dict[str, str]:
    """listener.security.protocol.map as a mapping of listener name to protocol."""
    protocols: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (piece.strip().upper() for piece in item.partition(":"))
        if not colon or protocol not in PROTOCOLS:
            problems.append(
                f"listener.security.protocol.map cannot hold {item!r}: allowed: NAME:PROTOCOL with one of "
                + ", ".join(PROTOCOLS)
            )
            continue
        protocols[name] = protocol
    return protocols


def check_listeners(endpoints: Sequence[Endpoint], problems: list[str], *, for_clients: bool = True) -> None:
    """What a node can listen on. A controller alone has no clients."""
    ports: dict[tuple[bool, int], str] = {}
    for endpoint in endpoints:
        if endpoint.protocol != "PLAINTEXT":
            problems.append(
                f"listeners: {endpoint} asks for {endpoint.protocol}, which Tidelog does not serve yet; "
                "only PLAINTEXT listeners can be opened"
            )
        # One port may be given once for IPv4 and once for IPv6.
        key = (":" in endpoint.host, endpoint.port)
        if endpoint.port and ports.setdefault(key, endpoint.name) != endpoint.name:
            problems.append(f"listeners: {ports[key]} and {endpoint.name} both use port {endpoint.port}")
    if for_clients and endpoints and all(endpoint.for_controllers for endpoint in endpoints):
        problems.append(
            "listeners: every listener is named in controller.listener.names, so no client could connect"
        )


def check_advertised(
    advertised: Sequence[Endpoint], listeners: Sequence[Endpoint], problems: list[str]
) -> None:
    """What clients can be told to connect to."""
    names = {endpoint.name for endpoint in listeners}
    for endpoint in advertised:
        if endpoint.host in _NOWHERE:
            problems.append(
                f"advertised.listeners: no client can connect to {endpoint}; set advertised.listeners to the "
                "address under which clients reach this node"
            )
        if endpoint.name not in names:
            problems.append(
                f"advertised.listeners: {endpoint.name} is not one of listeners ({', '.join(sorted(names))})"
            )
