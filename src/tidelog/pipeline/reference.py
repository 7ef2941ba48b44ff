"""The tables of options in docs/PIPELINE.md, from the dataclasses that read them: names, types, defaults, and the sentences below each field.

`python -m tidelog.pipeline.reference docs/PIPELINE.md` puts them between their marks, `<!-- options: NAME -->` and `<!-- end -->`; all else in the page is
written by people and left alone.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import sys
import textwrap
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from tidelog.pipeline.context import FromTopics
from tidelog.pipeline.decoding_options import FromValues
from tidelog.pipeline.job_modules import job_module
from tidelog.pipeline.options import IS_PATH, Options
from tidelog.pipeline.values import FlowSettings, Settings

_PLACE: Final = re.compile(r"(<!-- options: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SHARED: Final[Mapping[str, type[Options]]] = {
    "pipeline": Settings,
    "flow": FlowSettings,
    "topics": FromTopics,
    "values": FromValues,
}
_TYPES: Final = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def render(page: str) -> str:
    """The page with its tables as the code has them now."""
    return _PLACE.sub(lambda found: f"{found[1]}{table(found[2])}\n{found[3]}", page)


def table(name: str) -> str:
    """`pipeline`, `flow`, `topics` and `values` (what jobs that read topics, and those that decode values, have in common), or a job."""
    kind: type[Options] = _SHARED[name] if name in _SHARED else job_module(name).Options
    hints = typing.get_type_hints(kind, include_extras=True)
    meanings = sentences(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    rows = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for own in _own(kind):
        meaning = meanings.get(own, "").replace("|", "\\|")
        rows.append(f"| `{own}` | {type_text(hints[own])} | {_default(fields[own])} | {meaning} |")
    return "\n".join(rows)


def sentences(kind: type[Options]) -> dict[str, str]:
    """The text below each field, of the class itself and of those that it is made from."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(node, ast.ClassDef)
        for field, below in zip(node.body, node.body[1:], strict=False):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def type_text(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if IS_PATH in getattr(hint, "__metadata__", ()):
        return "path"
    if origin in (typing.Union, types.UnionType):
        return type_text(next(each for each in arguments if each is not type(None)))
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin is tuple:
        return f"list of {type_text(arguments[0])}s"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    return _TYPES[hint]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "–" if field.default_factory is not dataclasses.MISSING else "required"
    value = field.default
    if value is None or value == ():
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{', '.join(value) if isinstance(value, tuple) else value}`"


def _own(kind: type[Options]) -> list[str]:
    """Options that no other table has already, or not so."""
    others = [each for each in _SHARED.values() if each is not kind]
    owners = itertools.takewhile(lambda owner: owner not in others and owner is not object, kind.__mro__)
    return list(dict.fromkeys(name for owner in owners for name in inspect.get_annotations(owner)))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
