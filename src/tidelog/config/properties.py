"""The text of a .properties file, read by Java's rules.

Owns the grammar: comments (# and !), continuation lines, the separators =, : and blanks, escapes and \\uXXXX. It knows
nothing about settings. A file that Kafka reads gives the same names and values here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.config.errors import ConfigError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    name: str
    value: str
    line: int
    """Where it begins, counted from 1."""


def parse_properties(text: str) -> dict[str, str]:
    """Names and values; of a name given twice the last value counts, as in Java."""
    return {entry.name: entry.value for entry in read_properties(text)}


def read_properties(text: str) -> list[Property]:
    """Every entry in the order of the file. ConfigError names the line of a malformed \\u escape."""
    return [_entry(line, number) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and with their continuations joined. Only CR, LF and CRLF end a line."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    start, gathered = 0, ""
    for number, raw in enumerate(lines, 1):
        line = raw.lstrip(_BLANKS)
        if not gathered and (not line or line[0] in "#!"):
            start = 0
            continue
        start = start or number
        if _ends_with_open_escape(line):
            gathered += line[:-1]
            continue
        yield start, gathered + line
        start, gathered = 0, ""
    if gathered:
        yield start, gathered


def _ends_with_open_escape(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(line: str, number: int) -> Property:
    end = _name_end(line)
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return Property(_unescape(line[:end], number), _unescape(rest, number), number)


def _name_end(line: str) -> int:
    escaped = False
    for position, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char in "=:" or char in _BLANKS:
            return position
    return len(line)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\":
            parts.append(char)
            continue
        char = text[position : position + 1]
        position += 1
        if char == "u":
            parts.append(_unicode(text[position : position + 4], number))
            position += 4
        else:
            parts.append(_ESCAPES.get(char, char))
    # Two \u escapes may spell one character beyond the basic plane.
    return "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unicode(digits: str, number: int) -> str:
    if len(digits) == 4 and all(char in "0123456789abcdefABCDEF" for char in digits):
        return chr(int(digits, 16))
    raise ConfigError([f"line {number}: \\u must be followed by four hexadecimal digits, not {digits!r}"])
