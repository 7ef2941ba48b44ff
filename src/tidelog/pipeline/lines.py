"""Which line of a TOML text a key stands on, for messages about its value. `tomllib` tells the values and forgets where they were.

Takes text that `tomllib` has read without complaint, and therefore judges nothing. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

Path = tuple[str | int, ...]
"""Keys, and indices of entries of arrays: `("flow", 1, "topics")`."""

_BLANK: Final = re.compile(r"[ \t]*")
_BLANK_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}#\r\n]*")
_BASIC: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LITERAL: Final = re.compile(r"'([^']*)'")
# Up to two quotes may stand right before the closing three.
_LONG_BASIC: Final = re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})', re.DOTALL)
_LONG_LITERAL: Final = re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_ESCAPED: Final = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


def key_lines(text: str) -> dict[Path, int]:
    """The line, counted from 1, on which each table, key and entry of an array is first named."""
    return _Walk(text).run()


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """Of the path, or of the nearest thing around it; 1 where there is none."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return 1


class _Walk:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted_to = 0
        self._line = 1
        self._lines: dict[Path, int] = {}
        self._tables: dict[Path, int] = {}
        """How many entries each array of tables has so far."""

    def run(self) -> dict[Path, int]:
        table: Path = ()
        self._skip(_BLANK_LINES)
        while self._at < len(self._text):
            if self._next_is("[["):
                table = self._header(2)
            elif self._next_is("["):
                table = self._header(1)
            else:
                self._assignment(table)
            self._skip(_BLANK_LINES)
        return self._lines

    def _header(self, brackets: int) -> Path:
        self._at += brackets
        keys = self._keys()
        self._at += brackets
        path: Path = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            self._name(path)
            if brackets == 2 and number == len(keys) - 1:
                self._tables[path] = self._tables.get(path, 0) + 1
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
                self._name(path)
        return path

    def _assignment(self, table: Path) -> None:
        path = table
        for key in self._keys():
            path = (*path, key)
            self._name(path)
        self._at += 1  # the equals sign
        self._skip(_BLANK)
        self._value(path)

    def _value(self, path: Path) -> None:
        if self._next_is("["):
            self._array(path)
        elif self._next_is("{"):
            self._inline_table(path)
        elif self._next_is('"""'):
            self._skip(_LONG_BASIC)
        elif self._next_is("'''"):
            self._skip(_LONG_LITERAL)
        elif self._next_is('"'):
            self._skip(_BASIC)
        elif self._next_is("'"):
            self._skip(_LITERAL)
        else:
            self._skip(_SCALAR)

    def _array(self, path: Path) -> None:
        self._at += 1
        number = 0
        self._skip(_BLANK_LINES)
        while not self._next_is("]"):
            entry = (*path, number)
            self._name(entry)
            self._value(entry)
            number += 1
            self._skip(_BLANK_LINES)
            if self._next_is(","):
                self._at += 1
                self._skip(_BLANK_LINES)
        self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        self._skip(_BLANK_LINES)
        while not self._next_is("}"):
            self._assignment(path)
            self._skip(_BLANK_LINES)
            if self._next_is(","):
                self._at += 1
                self._skip(_BLANK_LINES)
        self._at += 1

    def _keys(self) -> list[str]:
        """`a.b."c d"`; ends at what follows."""
        keys = []
        while True:
            self._skip(_BLANK)
            if self._next_is('"'):
                keys.append(_ESCAPE.sub(_unescaped, self._skip(_BASIC)[1:-1]))
            elif self._next_is("'"):
                keys.append(self._skip(_LITERAL)[1:-1])
            else:
                keys.append(self._skip(_BARE_KEY))
            self._skip(_BLANK)
            if not self._next_is("."):
                return keys
            self._at += 1

    def _name(self, path: Path) -> None:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        self._lines.setdefault(path, self._line)

    def _next_is(self, text: str) -> bool:
        if self._at >= len(self._text):
            raise ValueError("the text ends where TOML does not: it was not read by tomllib first")
        return self._text.startswith(text, self._at)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"no TOML at character {self._at}: it was not read by tomllib first")
        self._at = found.end()
        return found[0]


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if code[0] in "uU" and len(code) > 1 else _ESCAPED[code]
