"""Broker addresses as people write them: `host:port` lists, IPv6 in brackets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

DEFAULT_PORT = 9092


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host:port`; the port may be left out. ValueError says what is wrong with which text."""
    text = text.strip()
    host, port_text = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"bootstrap server {text!r}: write an IPv6 address as [address]:port")
        port_text = rest[1:]
    elif text.count(":") == 1:
        host, _, port_text = text.partition(":")
    elif ":" in text:
        raise ValueError(f"bootstrap server {text!r}: write an IPv6 address as [address]:port")
    if not host:
        raise ValueError(f"bootstrap server {text!r}: the host is missing; write host:port")
    if not port_text and not text.endswith(":"):
        return Address(host, DEFAULT_PORT)
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) < 65536):
        raise ValueError(f"bootstrap server {text!r}: the port must be a number between 1 and 65535")
    return Address(host, int(port_text))


def parse_addresses(servers: str | Iterable[str]) -> list[Address]:
    """A comma-separated list or several of them; duplicates are dropped, the order is kept."""
    texts = [servers] if isinstance(servers, str) else list(servers)
    found = [parse_address(part) for text in texts for part in text.split(",") if part.strip()]
    if not found:
        raise ValueError("bootstrap servers: at least one host:port is needed")
    return list(dict.fromkeys(found))
