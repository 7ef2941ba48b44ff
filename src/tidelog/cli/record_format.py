"""A record as bytes for the terminal: plain text, a template, or a line of JSON. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from tidelog.cli.options import unescape
from tidelog.cli.output import bytes_field

if TYPE_CHECKING:
    from tidelog.client.consumer.records import ConsumerRecord

RecordFormat: TypeAlias = "Callable[[ConsumerRecord], bytes]"
NULL = b"null"


def text_format(*, key: bool, headers: bool) -> RecordFormat:
    """Tab-separated: headers, key, value. Values go out byte for byte; null is the word null, as in Kafka's tools."""

    def write(record: ConsumerRecord) -> bytes:
        parts = [_headers(record)] if headers else []
        if key:
            parts.append(_or_null(record.key))
        parts.append(_or_null(record.value))
        return b"\t".join(parts) + b"\n"

    return write


_FIELDS: dict[str, Callable[[Any], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "d": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: _or_null(record.key),
    "v": lambda record: _or_null(record.value),
    "h": lambda record: _headers(record),
    "%": lambda record: b"%",
}


def template_format(template: str) -> RecordFormat:
    """Percent fields as listed in `_FIELDS`; a line end is added where the template has none at its end."""
    pieces: list[bytes | Callable[[Any], bytes]] = []
    texts_and_fields = re.split(r"%(.?)", template, flags=re.DOTALL)
    for index, part in enumerate(texts_and_fields):
        if index % 2 == 0:
            pieces.append(unescape(part).encode())
        elif part in _FIELDS:
            pieces.append(_FIELDS[part])
        else:
            known = ", ".join("%" + name for name in _FIELDS)
            raise typer.BadParameter(f"%{part} is no field; there are {known}", param_hint="--format")
    ending = b"" if unescape(template).endswith("\n") else b"\n"

    def write(record: ConsumerRecord) -> bytes:
        return b"".join(p if isinstance(p, bytes) else p(record) for p in pieces) + ending

    return write


def json_format(record: ConsumerRecord) -> bytes:
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **bytes_field("key", record.key),
        **bytes_field("value", record.value),
        "headers": [{"name": name, **bytes_field("value", value)} for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _or_null(data: bytes | None) -> bytes:
    return NULL if data is None else data


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(name.encode() + b"=" + _or_null(value) for name, value in record.headers)
