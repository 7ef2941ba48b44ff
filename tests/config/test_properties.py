"""A .properties file reads as Java reads it. The cases were checked against java.util.Properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.config.errors import ConfigError
from tidelog.config.properties import Property, parse_properties, read_properties

CASES = [
    ("a=b", {"a": "b"}),
    ("a = b", {"a": "b"}),
    ("a:b", {"a": "b"}),
    ("a b", {"a": "b"}),
    ("a\tb", {"a": "b"}),
    ("a\fb", {"a": "b"}),
    ("a : = b", {"a": "= b"}),
    ("a==b", {"a": "=b"}),
    ("  a=b  ", {"a": "b  "}),
    ("a", {"a": ""}),
    ("a=", {"a": ""}),
    ("=b", {"": "b"}),
    ("# c\n! d\n  # e\na=b", {"a": "b"}),
    ("a=b # not a comment", {"a": "b # not a comment"}),
    ("a=1\na=2", {"a": "2"}),
    ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
    ("a=b\\\n   c", {"a": "bc"}),
    ("a=b,\\\r\n\tc,\\\n d", {"a": "b,c,d"}),
    ("a=b\\\n# c", {"a": "b# c"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    ("a=b\\\\\\\nc=d", {"a": "b\\c=d"}),
    ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    ("# comment \\\na=b", {"a": "b"}),
    ("a=b\\", {"a": "b"}),
    ("a\\=b=c", {"a=b": "c"}),
    ("a\\:b\\ c = d", {"a:b c": "d"}),
    ("a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
    ("a=C:\\\\data", {"a": "C:\\data"}),
    ("a=\\u0041\\u00e9", {"a": "Aé"}),
    ("a=\\ud83d\\ude00", {"a": "😀"}),
    ("\\u0061=b", {"a": "b"}),
    ("a=\\ b", {"a": " b"}),
    ("a=é", {"a": "é"}),
    ("", {}),
    ("\n\n   \n\t\f", {}),
    ("a=b\u2028c", {"a": "b\u2028c"}),
    ("listeners=PLAINTEXT://:9092,CONTROLLER://:9093", {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"}),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_entries_know_their_line() -> None:
    assert read_properties("# c\n\na=1\nb=2\\\n  3\nc=4") == [
        Property("a", "1", 3),
        Property("b", "23", 4),
        Property("c", "4", 6),
    ]


@pytest.mark.parametrize("text", ["x=1\na=\\u12", "x=1\na=\\uzzzz", "x=1\na=\\u 123"])
def test_a_broken_escape_names_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        parse_properties(text)


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" for char in text)


@given(
    st.dictionaries(
        st.text(st.characters(max_codepoint=0xD7FF), min_size=1), st.text(st.characters(max_codepoint=0xD7FF))
    )
)
def test_what_is_escaped_comes_back(expected: dict[str, str]) -> None:
    text = "\n".join(f"{_escaped(name)}={_escaped(value)}" for name, value in expected.items())
    assert parse_properties(text) == expected


@given(st.text())
def test_no_text_crashes_the_reader(text: str) -> None:
    try:
        read_properties(text)
    except ConfigError as error:
        assert "line" in str(error)
