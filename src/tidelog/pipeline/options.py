"""Options of a job: a frozen dataclass, read from a table of the specification, with every problem found and the key it is at.

A field's type says what the table may hold: `str`, `int`, `float`, `bool`, `tuple[str, ...]`, `Mapping[str, str]`, `Literal[…]`, each also `| None`. What no type
says (one of two, a schema that does not parse) a job's `check` adds. Pure.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from tidelog.errors import TidelogError

IS_PATH: Final = "is a path"
PathText = Annotated[str, IS_PATH]
"""Type of an option that names a file or a directory: a relative one counts from the directory of the specification. URLs are left as they are."""


class Problem(NamedTuple):
    key: str
    """Within the job's table, dotted where it is deeper; empty: the table as a whole."""
    why: str


class OptionsError(TidelogError):
    """What a job was told cannot work."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "\n".join(f"{each.key}: {each.why}" if each.key else each.why for each in self.problems)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What options of all jobs are made from."""

    def check(self) -> Iterator[Problem]:
        """What cannot work although every value by itself is fine."""
        return iter(())

    def reads_topic(self, name: str) -> bool:
        return False

    def topics_written(self) -> Iterable[str]:
        """No flow may read what it writes."""
        return ()

    def places_written(self) -> Iterable[str]:
        """Tables, database tables, directories: no two flows may write to the same. Anything that names one for good."""
        return ()


T = TypeVar("T", bound=Options)


def read_options(kind: type[T], table: Mapping[str, Any]) -> T:
    """OptionsError names every key that is wrong."""
    problems: list[Problem] = []
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key, given in table.items():
        if key not in fields:
            close = difflib.get_close_matches(key, fields, 1)
            advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(fields))}"
            problems.append(Problem(key, f"there is no such option: {advice}"))
            continue
        try:
            values[key] = _value(hints[key], given)
        except _WrongTypeError as error:
            problems.append(Problem(key, f"must be {error}, not {given!r}"))
    for name, field in fields.items():
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_required and name not in table:
            problems.append(Problem("", f"{name} is missing"))
    if problems:
        raise OptionsError(problems)
    options = kind(**values)
    if problems := list(options.check()):
        raise OptionsError(problems)
    return options


class _WrongTypeError(Exception):
    """Says what it must be."""


def _value(hint: Any, given: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _value(next(each for each in typing.get_args(hint) if each is not type(None)), given)
    if origin is Literal:
        choices = typing.get_args(hint)
        if given not in choices:
            raise _WrongTypeError(f"one of {', '.join(map(str, choices))}")
        return given
    if origin is tuple:
        entries = [given] if isinstance(given, str) else given
        if not isinstance(entries, (list, tuple)) or not all(isinstance(each, str) for each in entries):
            raise _WrongTypeError("a text or a list of texts")
        return tuple(entries)
    if origin is not None:  # a mapping
        if not isinstance(given, Mapping):
            raise _WrongTypeError("a table")
        return {
            str(key): str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in given.items()
        }
    if hint is float and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    if not isinstance(given, hint) or (isinstance(given, bool) and hint is not bool):
        names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
        raise _WrongTypeError(names[hint])
    return given
