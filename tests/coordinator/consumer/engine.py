"""A stand-in for google-re2 where that is not installed: Python's own expressions behind the few names that are used of it.

It shows what the coordinator does with patterns, not what RE2 does with hostile ones: for that the package itself is needed.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

HAS_RE2 = find_spec("re2") is not None


class Options:
    def __init__(self) -> None:
        self.max_mem = 8 << 20
        self.never_capture = False
        self.log_errors = True


class StandInError(Exception):
    pass


class StandInPattern:
    def __init__(self, text: str) -> None:
        self._compiled = re.compile(text.encode())
        self.programsize = len(text)

    def fullmatch(self, text: bytes) -> Any:
        return self._compiled.fullmatch(text)


def stand_in() -> ModuleType:
    module: Any = ModuleType("re2")

    def compile_(text: str, options: Options | None = None) -> StandInPattern:
        assert options is not None and options.max_mem <= 1 << 20, "a pattern is compiled within limits"
        try:
            return StandInPattern(text)
        except re.error as error:
            raise StandInError(str(error).encode()) from error

    module.Options, module.error, module.compile = Options, StandInError, compile_
    return module  # type: ignore[no-any-return]


def use_engine(patch: pytest.MonkeyPatch) -> None:
    if not HAS_RE2:
        patch.setitem(sys.modules, "re2", stand_in())
