"""The small languages of option values."""

from __future__ import annotations

import pytest
import typer

from tidelog.cli.bench_load import build_load_batch, figures, percentile
from tidelog.cli.line_producer import BATCH_BYTES, InTurn
from tidelog.cli.options import parse_assignments, parse_headers, parse_timestamp, unescape
from tidelog.cli.output import bytes_field, human_bytes, print_table, topic_id_text
from tidelog.cli.produce import LineFormat
from tidelog.cli.record_format import json_format, template_format, text_format
from tidelog.client.consumer.records import ConsumerRecord
from tidelog.client.partitioner import partition_for_key
from tidelog.records.batch import read_header
from tidelog.records.compression import Codec
from tidelog.records.record import Headers, iter_records

NOW = 1_700_000_000_000


def record_of(
    offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers = ()
) -> ConsumerRecord:
    return ConsumerRecord("orders", 3, offset, timestamp_ms, 0, key, value, headers, 0)


RECORD = record_of(42, 1234, b"k", b"v", (("a", b"1"), ("b", None)))


def test_assignments() -> None:
    assert parse_assignments(["a=1", "b=x=y", "c="], "--set") == {"a": "1", "b": "x=y", "c": ""}
    for bad in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(typer.BadParameter):
            parse_assignments(bad, "--set")


def test_headers_keep_order_and_repeats() -> None:
    assert parse_headers(["a=1", "a=2", "flag", "e="]) == (
        ("a", b"1"),
        ("a", b"2"),
        ("flag", None),
        ("e", b""),
    )
    with pytest.raises(typer.BadParameter):
        parse_headers(["=x"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123),
        ("90s", NOW - 90_000),
        ("-2h", NOW - 7_200_000),
        ("250ms", NOW - 250),
        ("1d", NOW - 86_400_000),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01.5", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:02Z", 2000),
    ],
)
def test_timestamps(text: str, expected: int) -> None:
    assert parse_timestamp(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "now", "12:30", "1y", "1.5h", "2023-13-01"])
def test_bad_timestamps_say_what_is_allowed(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="ISO 8601"):
        parse_timestamp(text, NOW)


def test_escapes() -> None:
    assert unescape(r"a\tb\nc\\t\q\0") == "a\tb\nc\\t\\q\0"


def test_lines_become_keys_and_values() -> None:
    assert LineFormat(None, None).split(b"a:b", 1) == (None, b"a:b")
    assert LineFormat(":", None).split(b"k:v:w", 1) == (b"k", b"v:w")
    assert LineFormat(r"\t", "NULL").split(b"k\tNULL", 1) == (b"k", None)
    assert LineFormat("::", None).split(b"::", 1) == (b"", b"")
    with pytest.raises(Exception, match="line 7 has no key separator"):
        LineFormat(":", None).split(b"kv", 7)


def test_lines_without_a_key_fill_one_partition_after_another() -> None:
    turns = InTurn()
    assert [turns("t", None, b"x", 3) for _ in range(4)] == [0, 0, 0, 0]
    turns.next()
    turns.next()  # nothing came in between
    assert turns("t", None, b"x" * BATCH_BYTES, 3) == 1
    assert [turns("t", b"a", b"x", 3), turns("t", None, b"x", 3)] == [partition_for_key(b"a", 3), 2]
    turns.next()
    assert turns("t", None, None, 3) == 0


def test_text_format() -> None:
    assert text_format(key=False, headers=False)(RECORD) == b"v\n"
    assert text_format(key=True, headers=True)(RECORD) == b"a=1,b=null\tk\tv\n"
    assert text_format(key=True, headers=False)(record_of(0, 0, None, None)) == b"null\tnull\n"
    assert text_format(key=False, headers=False)(record_of(0, 0, None, b"\xff\x00")) == b"\xff\x00\n"


def test_template_format() -> None:
    assert (
        template_format("%t/%p@%o %d %k=%v [%h] 100%%")(RECORD) == b"orders/3@42 1234 k=v [a=1,b=null] 100%\n"
    )
    assert template_format(r"%v\n")(RECORD) == b"v\n"
    assert template_format(r"%k\t%v")(RECORD) == b"k\tv\n"
    assert template_format("")(RECORD) == b"\n"
    for bad in ("%x", "%", "a%"):
        with pytest.raises(typer.BadParameter, match="no field"):
            template_format(bad)


def test_json_format_loses_nothing() -> None:
    line = json_format(record_of(1, 2, b"\xff", "é\n".encode(), (("h", b"\x80"),)))
    assert line == (
        b'{"topic": "orders", "partition": 3, "offset": 1, "timestamp": 2, "key_base64": "/w==", '
        + '"value": "é\\n", "headers": [{"name": "h", "value_base64": "gA=="}]}\n'.encode()
    )
    assert b'"key": null, "value": null' in json_format(record_of(1, 2, None, None))


def test_small_texts() -> None:
    assert [human_bytes(n) for n in (0, 999, 1000, 1_234_567, 5e12, 7e15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.2 MB",
        "5.0 TB",
        "7000.0 TB",
    ]
    assert topic_id_text(bytes(range(16))) == "AAECAwQFBgcICQoLDA0ODw"
    assert bytes_field("v", None) == {"v": None}


def test_tables_in_a_pipe_are_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), [("x" * 200, 1), ("[b]y[/b]", 1000), (None, ())], right=("n",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "N"]
    assert lines[1] == "x" * 200 + "     1"
    assert lines[2].startswith("[b]y[/b] ")
    assert lines[3].split() == ["-", "-"]
    assert len({len(line) for line in lines}) == 1


def test_tables_on_a_terminal_are_richs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_table(("name",), [("[red]data[/red]",)])
    assert "[red]data[/red]" in capsys.readouterr().out


def test_percentiles() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([], 0.5) == 0.0


def test_figures() -> None:
    assert figures(1000, 2_000_000, 2.0, [0.001, 0.003]) == {
        "records": 1000,
        "bytes": 2_000_000,
        "seconds": 2.0,
        "records_per_second": 500.0,
        "mb_per_second": 1.0,
        "p50_ms": 1.0,
        "p99_ms": 3.0,
    }


@pytest.mark.parametrize("size", [0, 1, 3, 100, 1000])
def test_load_has_the_size_it_says(size: int) -> None:
    batch = build_load_batch(7, size, Codec.NONE)
    assert [len(r.value or b"") for r in iter_records(batch, 0, read_header(batch))] == [size] * 7
