"""docs/CONFIGURATION.md is what the tables say today."""

from __future__ import annotations

from pathlib import Path

from tidelog.config.broker_settings import BROKER_SETTINGS
from tidelog.config.docs import differences, render
from tidelog.config.topic_settings import TOPIC_SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "CONFIGURATION.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run: python -m tidelog.config.docs > docs/CONFIGURATION.md"
    )


def test_the_page_names_everything() -> None:
    page = render()
    assert all(f"| `{name}` |" in page for name in [*BROKER_SETTINGS, *TOPIC_SETTINGS])
    assert "`node.id`" in page.split("## Topic settings")[0]
    assert {row.name for row in differences()} >= {"node.id", "listeners", "log.dir", "durability"}


def test_the_guarantees_list_the_same_differences() -> None:
    guarantees = (PAGE.parent / "GUARANTEES.md").read_text(encoding="utf-8")
    page = render()
    rows = [
        line
        for line in page.splitlines()
        if any(line.startswith(f"| `{row.name}` |") for row in differences())
    ]
    section = page.split("## Where defaults differ from Kafka's")[1].split("\n## ")[0]
    listed = [row for row in rows if row in section]
    assert len(listed) == len(differences())
    assert all(row in guarantees for row in listed), "copy the table from docs/CONFIGURATION.md"
