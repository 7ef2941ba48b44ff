"""Columns in SQL's words, without a running Spark; `test_materialize` compares them with what Spark itself reads."""

from __future__ import annotations

import pytest

from tidelog.pipeline.ddl import DdlError, parse_columns

COLUMNS = (
    "id BIGINT",
    "id bigint not null, `odd ``name` string, price decimal(10,2), n decimal",
    "a: int, b array<struct<x: string, `y z`: map<string, array<double>>>>, t timestamp, u timestamp_ntz, d date",
    "f float, g real, s smallint, b tinyint, x binary, ok boolean, empty struct<>",
)


@pytest.mark.parametrize("text", COLUMNS)
def test_columns_are_read(text: str) -> None:
    assert parse_columns(text).fields


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column"),
        ("id", "no type at the end"),
        ("id BIGIN", "no type BIGIN"),
        ("id BIGINT name STRING", "',' is missing after 'id BIGINT'"),
        ("id BIGINT,", "name should stand"),
        ("id ARRAY<INT", "'>' is missing"),
        ("id DECIMAL(99)", "DECIMAL"),
        ("id INT, ID INT", "twice"),
        ("id INT; DROP", "cannot be read"),
        ("1 INT", "name should stand"),
        ("id INT NOT", "without NULL"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(DdlError, match=says):
        parse_columns(text)
