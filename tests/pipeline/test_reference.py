"""The page about the pipeline says what the code does: its tables, its example, and every job's section."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tidelog.pipeline.jobs import JOBS
from tidelog.pipeline.reference import render, sentences, table
from tidelog.pipeline.spec import parse
from tidelog.pipeline.values import FlowSettings, Settings

THERE = [name for name in JOBS if importlib.util.find_spec(f"tidelog.pipeline.jobs.{name}")]
PAGE = Path(__file__).parents[2] / "docs" / "PIPELINE.md"


def test_the_tables_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render(page) == page, "run: python -m tidelog.pipeline.reference docs/PIPELINE.md"
    assert set(re.findall(r"<!-- options: (\S+) -->", page)) == {
        "pipeline",
        "flow",
        "topics",
        "values",
        *THERE,
    }


@pytest.mark.parametrize("name", ["pipeline", "flow", "topics", "values", *THERE])
def test_every_option_says_what_it_means(name: str) -> None:
    silent = [row for row in table(name).splitlines()[2:] if row.endswith("|  |")]
    assert not silent


def test_sentences_are_found_below_fields() -> None:
    assert sentences(Settings)["brokers"].startswith("Where the log is")
    assert sentences(FlowSettings).keys() == {"name", "job", "trigger", "on_failure"}


def test_the_example_can_be_read() -> None:
    example, *of_jobs = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for each in of_jobs:
        assert len(parse(f'[[flow]]\nname = "example"\n{each}', file="/srv/x.toml", environ={}).flows) == 1
    found = parse(example, file="/srv/shop/pipeline.toml", environ={})
    assert [(flow.name, flow.job) for flow in found.flows] == [
        ("orders", "ingest"),
        ("customers", "materialize"),
    ]
