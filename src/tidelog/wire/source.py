"""Lines of Python under construction, shared by the two compilers.

Owns indentation, fresh names, and the constants that compiled code refers to. Knows nothing about Kafka.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Source:
    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self._lines: list[str] = []
        self._depth = 0
        self._count = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, prefix: str) -> str:
        """A local name that nothing else in this source has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, value: object, prefix: str = "k") -> str:
        """A name under which the compiled code finds `value`."""
        for name, known in self.scope.items():
            if known is value:
                return name
        name = self.global_name(prefix)
        self.scope[name] = value
        return name

    def global_name(self, prefix: str) -> str:
        """A name that no constant or function of the scope has: the scope only grows."""
        return f"{prefix}_{len(self.scope)}"

    def struct(self, layout: str) -> struct.Struct:
        """One `Struct` per layout, so that its methods become one constant."""
        known: dict[str, struct.Struct] = self.scope.setdefault("_structs", {})
        if layout not in known:
            known[layout] = struct.Struct(">" + layout)
        return known[layout]

    def method(self, layout: str, method: str) -> str:
        """`unpack_from` or `pack` of a layout, by a name that says what it is."""
        name = f"{method}_{layout.replace('?', 'Z')}"
        if name not in self.scope:
            self.scope[name] = getattr(self.struct(layout), method)
        return name

    def function(self, name: str, filename: str) -> Any:
        """Compiles what was written so far. Its lines show up in tracebacks like those of any file."""
        linecache.cache[filename] = (0, None, [line + "\n" for line in self._lines], filename)
        exec(compile("\n".join(self._lines), filename, "exec"), self.scope)
        return self.scope[name]

    def __str__(self) -> str:
        return "\n".join(self._lines)
