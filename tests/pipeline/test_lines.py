"""Lines of keys against `tomllib`: the same keys, each on the line that a writer put it on."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.pipeline.lines import Path, key_lines, line_of

TEXT = """# a pipeline
[pipeline]
name = "a"          # [[flow]] in a comment
client."security.protocol" = "PLAINTEXT"
notes = \"\"\"
[[flow]]
name = "not a flow\\"
\"\"\"

[[flow]]
name = 'orders'
topics = [
  "a#b",   # one
  "c",
]
schema = { order = "long", 'at.time' = { type = "timestamp" } }
[flow.table]
path = "x"

[[flow]]
name = "late"
"""


def test_lines_of_a_specification() -> None:
    lines = key_lines(TEXT)
    for path, line in {
        ("pipeline",): 2,
        ("pipeline", "client", "security.protocol"): 4,
        ("flow", 0): 10,
        ("flow", 0, "name"): 11,
        ("flow", 0, "topics", 1): 14,
        ("flow", 0, "schema", "at.time", "type"): 16,
        ("flow", 0, "table", "path"): 18,
        ("flow", 1): 20,
        ("flow", 1, "name"): 21,
    }.items():
        assert lines[path] == line, path
    assert line_of(lines, ("flow", 1, "missing", 3)) == 20
    assert line_of(lines, ("elsewhere",)) == 1


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    if at:
        yield at
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, entry in entries:
        yield from paths(entry, (*at, key))


@dataclass
class Writer:
    """Writes a value as TOML in one of many ways, and remembers the line of each key."""

    draw: Any
    text: str = ""
    lines: dict[Path, int] = field(default_factory=dict)

    def flip(self) -> bool:
        return bool(self.draw(st.booleans()))

    def put(self, text: str) -> None:
        self.text += text

    def named(self, path: Path) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def key(self, key: str) -> None:
        bare = key.replace("-", "a").replace("_", "a").isalnum() and key.isascii()
        if bare and self.flip():
            self.put(key)
        elif "'" not in key and "\n" not in key and key.isprintable() and self.flip():
            self.put(f"'{key}'")
        else:
            self.put(json.dumps(key).replace("\x7f", "\\u007f"))

    def blank_lines(self) -> None:
        while self.flip():
            self.put(self.draw(st.sampled_from(["\n", "# a = [ \" '''\n", "  \t\n", "\r\n"])))

    def value(self, value: Any, path: Path) -> None:
        if isinstance(value, dict):
            self.put("{ ")
            for number, (key, entry) in enumerate(value.items()):
                self.put(", " if number else "")
                self.named((*path, key))
                self.key(key)
                self.put(" = " if self.flip() else "=")
                self.value(entry, (*path, key))
            self.put(" }")
        elif isinstance(value, list):
            self.put("[")
            for number, entry in enumerate(value):
                self.blank_lines()
                self.named((*path, number))
                self.value(entry, (*path, number))
                self.put(" ,")
            self.blank_lines()
            self.put("]")
        elif isinstance(value, str):
            self.string(value)
        else:
            self.put(json.dumps(value))

    def string(self, value: str) -> None:
        plain = "\r" not in value and value.replace("\n", "").replace("\t", "").isprintable()
        if plain and "'''" not in value and not value.endswith("'") and self.flip():
            self.put(f"'''\n{value}'''")
        elif plain and '"' not in value and "\\" not in value and self.flip():
            self.put(f'"""\n{value}\\\n  """')
        elif plain and "\n" not in value and "'" not in value and self.flip():
            self.put(f"'{value}'")
        else:
            self.put(json.dumps(value).replace("\x7f", "\\u007f"))

    def table(self, table: dict[str, Any], path: Path, keys: tuple[str, ...]) -> None:
        """Plain keys first, because what follows a header belongs to that header's table."""
        headed = {}
        for key, value in table.items():
            is_tables = isinstance(value, list) and value and all(isinstance(each, dict) for each in value)
            if (isinstance(value, dict) or is_tables) and self.flip():
                headed[key] = value
                continue
            self.blank_lines()
            if isinstance(value, dict) and len(value) == 1 and self.flip():  # dotted
                ((inner, entry),) = value.items()
                self.named((*path, key))
                self.named((*path, key, inner))
                self.key(key)
                self.put(".")
                self.key(inner)
                self.put(" = ")
                self.value(entry, (*path, key, inner))
            else:
                self.named((*path, key))
                self.key(key)
                self.put("\t= ")
                self.value(value, (*path, key))
            self.put(" # end\n" if self.flip() else "\n")
        for key, value in headed.items():
            entries = [(value, "[", "]")] if isinstance(value, dict) else [(v, "[[", "]]") for v in value]
            for number, (entry, left, right) in enumerate(entries):
                here: Path = (*path, key) if left == "[" else (*path, key, number)
                self.blank_lines()
                self.named((*path, key))
                self.named(here)
                self.put(left)
                for position, each in enumerate((*keys, key)):
                    self.put("." if position else "")
                    self.key(each)
                self.put(f"{right}\n")
                self.table(entry, here, (*keys, key))


characters = st.characters(codec="utf-8", exclude_categories=("Cs",), max_codepoint=0x2FF)
names = st.text(characters, min_size=1, max_size=5) | st.sampled_from(["a", "b-c", "a.b", '"', "#", "[[a]]"])
texts = st.text(characters, max_size=8) | st.sampled_from(["[[flow]]\na = 1\n", "''", '""', "\\", "# no"])
values = st.recursive(
    st.integers(-9, 99) | st.booleans() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300)
@given(st.data(), st.dictionaries(names, values, max_size=4))
def test_the_same_keys_as_tomllib_on_the_lines_they_were_written_on(data: Any, table: dict[str, Any]) -> None:
    writer = Writer(data.draw)
    writer.table(table, (), ())
    assert tomllib.loads(writer.text) == table, writer.text
    found = key_lines(writer.text)
    assert found.keys() == set(paths(table))
    assert found == writer.lines
