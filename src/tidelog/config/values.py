"""Typed access to resolved settings.

Owns the promise that a caller who names a setting gets a value of the type the table gives it: a wrong name or a wrong
type is a bug of the caller and fails at once, in the first test that runs the line.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping

from tidelog.config.definition import Value


class TypedValues(Mapping[builtins.str, Value]):
    """Resolved values by Kafka's names. `values["log.dirs"]`, or with a type: `values.int("log.segment.bytes")`."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[builtins.str, Value]) -> None:
        self._values = values

    def __getitem__(self, name: builtins.str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[builtins.str]:
        return iter(self._values)

    def __len__(self) -> builtins.int:
        return len(self._values)

    def bool(self, name: builtins.str) -> builtins.bool:
        value = self._values[name]
        if isinstance(value, builtins.bool):
            return value
        raise self._mismatch(name, "BOOLEAN")

    def int(self, name: builtins.str) -> builtins.int:
        value = self._values[name]
        if isinstance(value, builtins.int):
            return value
        raise self._mismatch(name, "whole number")

    def optional_int(self, name: builtins.str) -> builtins.int | None:
        return None if self._values[name] is None else self.int(name)

    def float(self, name: builtins.str) -> builtins.float:
        value = self._values[name]
        if isinstance(value, builtins.float | builtins.int):
            return value
        raise self._mismatch(name, "number")

    def str(self, name: builtins.str) -> builtins.str:
        value = self._values[name]
        if isinstance(value, builtins.str):
            return value
        raise self._mismatch(name, "text")

    def optional_str(self, name: builtins.str) -> builtins.str | None:
        return None if self._values[name] is None else self.str(name)

    def list(self, name: builtins.str) -> tuple[builtins.str, ...]:
        """The entries of a LIST; an unset one has none."""
        value = self._values[name]
        if value is None:
            return ()
        if isinstance(value, tuple):
            return value
        raise self._mismatch(name, "list")

    def _mismatch(self, name: builtins.str, wanted: builtins.str) -> TypeError:
        return TypeError(f"{name} is {self._values[name]!r}, which is no {wanted}")
