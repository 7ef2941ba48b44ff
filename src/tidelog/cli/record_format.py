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
    from tidelog.client.metadata import TopicPartition
    from tidelog.records.record import Record

RecordFormat: TypeAlias = "Callable[[TopicPartition, Record], bytes]"
NULL = b"null"


def text_format(*, key: bool, headers: bool) -> RecordFormat:
    """Tab-separated: headers, key, value. Values go out byte for byte; null is the word null, as in Kafka's tools."""

    def write(tp: TopicPartition, record: Record) -> bytes:
        parts = [_headers(record)] if headers else []
        if key:
            parts.append(_or_null(record.key))
        parts.append(_or_null(record.value))
        return b"\t".join(parts) + b"\n"

    return write


_FIELDS: dict[str, Callable[[Any, Any], bytes]] = {
    "t": lambda tp, record: tp.topic.encode(),
    "p": lambda tp, record: b"%d" % tp.partition,
    "o": lambda tp, record: b"%d" % record.offset,
    "d": lambda tp, record: b"%d" % record.timestamp,
    "k": lambda tp, record: _or_null(record.key),
    "v": lambda tp, record: _or_null(record.value),
    "h": lambda tp, record: _headers(record),
    "%": lambda tp, record: b"%",
}


def template_format(template: str) -> RecordFormat:
    """Percent fields as listed in `_FIELDS`; a line end is added where the template has none at its end."""
    pieces: list[bytes | Callable[[Any, Any], bytes]] = []
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

    def write(tp: TopicPartition, record: Record) -> bytes:
        return b"".join(p if isinstance(p, bytes) else p(tp, record) for p in pieces) + ending

    return write


def json_format(tp: TopicPartition, record: Record) -> bytes:
    document = {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **bytes_field("key", record.key),
        **bytes_field("value", record.value),
        "headers": [{"name": name, **bytes_field("value", value)} for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _or_null(data: bytes | None) -> bytes:
    return NULL if data is None else data


def _headers(record: Record) -> bytes:
    return b",".join(name.encode() + b"=" + _or_null(value) for name, value in record.headers)
