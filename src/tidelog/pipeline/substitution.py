"""`${NAME}` in a specification: from the environment, for passwords that a file must not hold. `$${` stands for `${`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tidelog.pipeline.lines import Path

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def substitute(
    document: dict[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str], list[tuple[Path, str]]]:
    """The document, what was put in (by value, with its reference), and what is missing at which key."""
    walk = _Walk(environ)
    return walk.value(document, ()), walk.secrets, walk.missing


class _Walk:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.secrets: dict[str, str] = {}
        self.missing: list[tuple[Path, str]] = []

    def value(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: self.value(entry, (*path, key)) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.value(entry, (*path, number)) for number, entry in enumerate(value)]
        if isinstance(value, str):
            return _REFERENCE.sub(lambda found: self._one(found, path), value)
        return value

    def _one(self, found: re.Match[str], path: Path) -> str:
        name = found[1]
        if name is None:
            return "${"
        where = ".".join(str(key) for key in path if not isinstance(key, int))
        if not _NAME.fullmatch(name):
            why = f"{where}: {found[0]} names no environment variable; write $${{ where {found[0]} itself is meant"
            self.missing.append((path, why))
            return ""
        if name not in self._environ:
            self.missing.append((path, f"{where}: the environment variable {name} is not set"))
            return ""
        value = self._environ[name]
        if value:
            self.secrets[value] = found[0]
        return value
