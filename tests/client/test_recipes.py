"""The examples of docs/CLIENT.md do what the page says, one after the other, on one broker."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tidelog.testing import Cluster

PAGE = Path(__file__).parents[2] / "docs" / "CLIENT.md"
RECIPES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
COMMANDS = re.findall(r"^(tidelog dlq .*?)(?: +#.*)?$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.slow
def test_every_recipe_runs() -> None:
    assert len(RECIPES) >= 9 and len(COMMANDS) == 3
    outputs: list[str] = []

    def output_of(part: str) -> str:
        """What the first recipe printed that this is part of."""
        return next(output for recipe, output in zip(RECIPES, outputs, strict=True) if part in recipe)

    with Cluster(config={"group.initial.rebalance.delay.ms": 0}) as cluster:
        for recipe in RECIPES:
            if "import polars" in recipe and find_spec("polars") is None:
                outputs.append("")
                continue
            code = recipe.replace("localhost:9092", cluster.bootstrap_servers)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{recipe}\n{done.stderr}"
            outputs.append(done.stdout)
        assert output_of("where.partition") == "0 0\n"
        assert output_of('"kitchen"').splitlines()[:2] == ["0 b'one pizza'", "1 b'order 0'"]
        assert "records from offset 5 on" in output_of("consumer.seek(orders")
        assert output_of("listener=") == "cooking for orders-0\nthe last moment to commit for orders-0\n"
        assert output_of("group_instance_id") == "True\n"
        assert output_of("retry_topic") == "served at try 2\n"
        assert output_of("send_arrow") == "1000 rows\n"
        assert output_of("import polars") in ("", "['500', '500']\n")
        assert "'menu'" in output_of("Admin")
        shown = []
        for command in COMMANDS:
            words = [
                sys.executable,
                "-m",
                "tidelog.cli.main",
                *_words(command)[1:],
                "-b",
                cluster.bootstrap_servers,
            ]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            shown.append(done.stdout)
        assert "ValueError: no oven" in shown[0] and "one pizza" in shown[1]
        assert shown[2] == "0:0 -> orders-0 at offset 1001\n"


def _words(command: str) -> list[str]:
    import shlex

    return shlex.split(command)
