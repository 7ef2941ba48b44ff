"""The pure parts of tables of state: the latest row of a key, what a checkpoint says of a batch, plans of rebuilds, options that cannot work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.metadata import TopicPartition
from tidelog.pipeline import rebuild
from tidelog.pipeline.jobs.materialize import Options
from tidelog.pipeline.latest import PARTITION, TIMESTAMP, TOPIC, latest_of_partitions
from tidelog.pipeline.microbatches import Planned, local_path, parse_planned, planned, stored_query_id
from tidelog.pipeline.options import OptionsError, read_options


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 3)),
        unique_by=lambda row: row[:3],
    )
)
def test_between_partitions_the_later_timestamp_counts(rows: list[tuple[int, str, int, int]]) -> None:
    table = pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            TOPIC: pa.array([row[1] for row in rows], pa.string()),
            PARTITION: pa.array([row[2] for row in rows], pa.int32()),
            TIMESTAMP: pa.array([row[3] for row in rows], pa.int64()),
            "nested": pa.array(
                [{"x": [number]} for number in range(len(rows))], pa.struct([("x", pa.list_(pa.int64()))])
            ),
        }
    )
    expected: dict[int, tuple[tuple[int, str, int], int]] = {}
    for number, (key, topic, partition, time) in enumerate(rows):
        place = (time, topic, partition)
        if key not in expected or expected[key][0] < place:
            expected[key] = (place, number)
    found = {row["id"]: row["nested"]["x"][0] for row in latest_of_partitions(table, ["id"]).to_pylist()}
    assert found == {key: number for key, (_, number) in expected.items()}


def test_a_batch_as_the_checkpoint_has_it(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    text = 'v1\n{"batchWatermarkMs":1234,"batchTimestampMs":1,"conf":{}}\n{"orders":{"0":33,"1":20}}'
    (tmp_path / "offsets" / "7").write_text(text)
    assert (
        planned(str(tmp_path), 7) == Planned(1234, '{"orders":{"0":33,"1":20}}') == parse_planned(text + "\n")
    )
    assert planned(f"file://{tmp_path}", 7) is not None
    assert planned(str(tmp_path), 8) is None
    assert planned("s3a://bucket/x", 7) is None
    assert local_path("file:/x") == "/x" and local_path("file:///x") == "/x" and local_path("x") == "x"
    two = parse_planned('v1\n{"batchWatermarkMs":0}\n{"a":{"0":1}}\n{"b":{"0":1}}')
    assert two.offsets == "" and two.end is None


def _checkpoint(path: Path, query: str) -> None:
    path.mkdir()
    (path / "metadata").write_text(json.dumps({"id": query}))


def test_a_rebuild_moves_the_checkpoint_away_once_whenever_it_is_interrupted(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    _checkpoint(checkpoint, "old")
    goal = {TopicPartition("t", 0): 5}
    plan = rebuild.begin(str(tmp_path), str(checkpoint), goal, {})
    assert not checkpoint.exists()
    _checkpoint(checkpoint, "old")  # as if the process had died before the move
    assert rebuild.begun(str(tmp_path), str(checkpoint)) == plan
    assert not checkpoint.exists()
    _checkpoint(checkpoint, "new")
    assert rebuild.begun(str(tmp_path), str(checkpoint)) == plan
    assert stored_query_id(str(checkpoint)) == "new"
    assert not plan.is_reached(Planned(0, '{"t":{"0":4}}'))
    assert plan.is_reached(Planned(0, '{"t":{"0":5},"u":{"0":1}}'))
    with pytest.raises(rebuild.RebuildError, match="file system of this machine"):
        plan.is_reached(None)
    rebuild.is_done(str(tmp_path))
    assert rebuild.begun(str(tmp_path), str(checkpoint)) is None


GOOD = {"topics": ["t"], "table": "/x", "schema": "id BIGINT, name STRING, tags ARRAY<STRING>", "key": "id"}


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        ({"database": "sqlite:///x"}, "table", "either"),
        ({"table": None}, "table", "either"),
        ({"table": None, "database": "mysql://x"}, "database", "sqlite:///"),
        ({"table": None, "database": "sqlite:///x"}, "database", "needs database_table"),
        ({"database_table": "x"}, "database_table", "no database"),
        ({"table": None, "database": "postgresql://x", "database_table": "x" * 60}, "database_table", "63"),
        ({"schema": None}, "schema", "need one"),
        ({"schema": "id BIGIN"}, "schema", "no type BIGIN"),
        ({"schema": "id BIGINT, __x INT"}, "schema", "__x"),
        ({"key": []}, "key", "tell rows apart"),
        ({"key": "nr"}, "key", "no nr; it has id, name"),
        ({"key": "tags"}, "key", "cannot be compared"),
        ({"key": ["id", "name"], "key_format": "text"}, "key_format", "2 columns"),
        ({"format": "raw"}, "format", "no schema"),
        (
            {"format": "raw", "schema": None, "key": [], "key_format": "json"},
            "key_format",
            "text or raw",
        ),
        ({"max_offsets_per_batch": 0}, "max_offsets_per_batch", "at least 1"),
        ({"format": "avro"}, "schema", "no Avro schema"),
        ({"format": "avro", "framing": "registry"}, "", "registry is missing"),
        ({"format": "debezium-avro"}, "framing", 'must be "registry"'),
        ({"key_format": "avro"}, "key_format", "needs framing and a registry"),
    ],
)
def test_options_that_cannot_work(change: dict[str, Any], key: str, says: str) -> None:
    table = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(OptionsError) as told:
        read_options(Options, table)
    assert any(problem.key == key and says in problem.why for problem in told.value.problems), told.value


def test_options_that_can() -> None:
    options = read_options(Options, GOOD)
    assert options.shape.key_format == "json"
    assert list(options.places_written()) == ["/x"]
    raw = read_options(
        Options,
        {"topics": "t", "format": "raw", "database": "postgresql://u:p@h/d", "database_table": "x"},
    )
    assert raw.shape.key == ("key",) and raw.shape.key_format == "text"
    assert list(raw.places_written()) == ["postgresql://u:…@h/d#x"]


def test_a_database_file_counts_from_the_specification_as_other_paths_do() -> None:
    from tidelog.pipeline.values import with_paths

    table = {"topics": "t", "format": "raw", "database_table": "x"}
    moved = {
        url: with_paths(read_options(Options, {**table, "database": url}), "/base").database
        for url in ("sqlite:///a.db", "sqlite:////var/a.db", "postgresql://u@h/d")
    }
    assert list(moved.values()) == ["sqlite:////base/a.db", "sqlite:////var/a.db", "postgresql://u@h/d"]


def test_the_command_line_says_which_flow_is_rebuilt() -> None:
    from tidelog.pipeline.spec import parse
    from tidelog.pipeline.values import with_overrides

    text = """
    [[flow]]
    name = "kept"
    job = "materialize"
    topics = "t"
    format = "raw"
    table = "kept"
    [[flow]]
    name = "added"
    job = "ingest"
    topics = "t"
    table = "added"
    """
    pipeline = parse(text, file="/x/pipeline.toml", environ={})
    changed = with_overrides(pipeline, rebuild=["kept"])
    assert isinstance(changed.flows[0].options, Options) and changed.flows[0].options.rebuild
    assert changed.flows[1] == pipeline.flows[1]
    with pytest.raises(OptionsError, match="no flow 'x' to rebuild; there are kept, added"):
        with_overrides(pipeline, rebuild=["x"])
    with pytest.raises(OptionsError, match="job ingest keeps no state"):
        with_overrides(pipeline, rebuild=["added"])
