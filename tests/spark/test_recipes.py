"""The examples of docs/SPARK.md do what the page says, one after the other, in one session."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tidelog.client.blocking import Producer
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "SPARK.md"
RECIPES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_every_recipe_runs(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("orders", 2)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(1000):
            producer.send(
                "orders", b"order %d" % number, key=b"table %d" % (number % 7), partition=number % 2
            )
    names: dict[str, Any] = {"spark": spark, "data_dir": str(cluster.data_dir)}
    outputs: list[str] = []
    for recipe in RECIPES:
        printed = io.StringIO()
        code = recipe.replace("localhost:9092", cluster.bootstrap_servers).replace("/tmp/shop", str(tmp_path))
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), names)
        outputs.append(printed.getvalue())

    def output_of(part: str) -> str:
        return next(output for recipe, output in zip(RECIPES, outputs, strict=True) if part in recipe)

    assert "order 0" in output_of("show(3)")
    assert output_of(".schema(") == "1000 ['partition', 'offset']\n"
    assert output_of("endingOffsets") == "10\n"
    assert output_of("availableNow") == "1000 3\n"
