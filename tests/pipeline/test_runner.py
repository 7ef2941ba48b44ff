"""A specification on a real Spark, from the command line: progress, failures in plain words, Ctrl-C, restart, and a cluster."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.commands import Command, said_by, status_of, wait_until
from tidelog.client.blocking import Producer
from tidelog.testing import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TINY = "tests.pipeline.tiny_job"


def send(cluster: Cluster, topic: str, values: range | list[str]) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value=str(value).encode(), partition=number % 2)
        producer.flush()


def lines(file: Path) -> Counter[str]:
    return Counter(line.split()[1] for line in file.read_text().splitlines()) if file.exists() else Counter()


def write(file: Path, text: str) -> Path:
    file.write_text(textwrap.dedent(text))
    return file


def small_disk(directory: Path, kibibytes: int) -> list[str]:
    """A command's prefix that gives it a file system of that size there, and nobody else; skips where the kernel refuses that to us."""
    directory.mkdir(parents=True)
    command = f'mount -t tmpfs -o size={kibibytes}k tmpfs "{directory}" && exec "$@"'
    prefix = ["unshare", "--map-root-user", "--mount", "sh", "-c", command, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("no file systems of our own here")
    return prefix


@pytest.mark.long
def test_from_start_over_failures_and_ctrl_c_to_the_next_start(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("orders", 2)
    send(cluster, "orders", range(20))
    send(cluster, "orders", ["poison"])
    spec = write(
        tmp_path / "pipeline.toml",
        f"""
        [pipeline]
        name = "shop"
        brokers = "{cluster.bootstrap_servers}"
        state = "state"
        master = "local[2]"
        trigger = "200 milliseconds"
        [pipeline.spark]
        spark.driver.memory = "1g"
        [[flow]]
        name = "copy"
        job = "{TINY}"
        topics = "orders"
        file = "copied"
        [[flow]]
        name = "refuse"
        job = "{TINY}"
        topics = "orders"
        poison = "poison"
        where = "task"
        file = "refused"
        [[flow]]
        name = "full"
        job = "{TINY}"
        topics = "orders"
        max_offsets_per_batch = 2
        file = "full"
        [[flow]]
        name = "count"
        job = "tests.pipeline.bounded_job"
        up_to = 1000
        """,
    )
    # A batch takes two files for its offsets and two for its end, a page each: this disk is full after one or two.
    running = Command("pipeline", "run", spec, prefix=small_disk(tmp_path / "state" / "full", 40))
    try:
        running.wait_for(lambda line: "refuse: ValueError: 'poison' is no order" in line)
        running.wait_for(lambda line: "full: No space left on device; make room on that disk" in line)
        assert f"no room is left on the disk of {tmp_path}/state/full" in running.text
        wait_until(lambda: lines(tmp_path / "copied").total() == 21, "what was there is copied")
        send(cluster, "orders", range(100, 140))
        wait_until(lambda: lines(tmp_path / "copied").total() == 61, "the others go on")

        other, refusal = said_by("pipeline", "run", spec)
        assert other == 1 and f"in use by a running pipeline (process {running.process.pid})" in refusal
        wait_until(lambda: flow_of(status_of(spec), "copy")["queries"][0]["rows"] == 61, "progress")
        seen = status_of(spec)
        assert (seen["life"], seen["name"]) == ("running", "shop")
        copy = flow_of(seen, "copy")
        assert (copy["state"], copy["counters"], copy["queries"][0]["lag"]) == ("running", {"lines": 61}, 0)
        assert flow_of(seen, "refuse")["error"] == "ValueError: 'poison' is no order"
        assert flow_of(seen, "count")["result"] == {"numbers": 1000}

        running.interrupt()
        assert running.ended() == 1, running.text
    finally:
        running.kill()
    assert running.said[-1] == f"error: Spark's own account is in {tmp_path}/state/spark.log"
    assert "error: flow refuse: ValueError: 'poison' is no order" in running.said
    for noise in ("Traceback", "\tat ", "java.lang", "Py4J", "ERROR", "WARN "):
        assert noise not in running.text
    seen = status_of(spec)
    states = {flow["name"]: flow["state"] for flow in seen["flows"]}
    assert (seen["life"], states) == (
        "stopped",
        {"copy": "stopped", "refuse": "failed", "full": "failed", "count": "finished"},
    )

    code, text = said_by("pipeline", "checkpoint", "export", spec, "copy")
    assert code == 0 and json.loads(text)["orders"] == {"0": 31, "1": 30}
    send(cluster, "orders", range(200, 230))
    mended = spec.read_text().replace('poison = "poison"', "")
    spec.write_text(mended)
    code, text = said_by("pipeline", "run", spec, "--once")
    assert code == 0, text
    expected = Counter(
        [*map(str, range(20)), "poison", *map(str, range(100, 140)), *map(str, range(200, 230))]
    )
    assert lines(tmp_path / "copied") == expected, "each once: the stop was between batches"
    assert lines(tmp_path / "refused") == expected, "what failed is done from where it failed"
    # What a full disk has cut off is done again; this job's sink is a file, which may see a batch twice.
    assert lines(tmp_path / "full").keys() == expected.keys()


def flow_of(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next(flow for flow in status["flows"] if flow["name"] == name)


def rows_of(table: Path) -> int:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return 0
    found = DeltaTable(str(table)).to_pyarrow_table()
    values = Counter(value.decode() for value in found["value"].to_pylist())
    assert values <= Counter(map(str, range(30))), "each once"
    return values.total()


@pytest.mark.long
def test_the_same_specification_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """Also offsets carried from one checkpoint to another, and a Java that is killed."""
    cluster.create_topic("parcels", 2)
    send(cluster, "parcels", range(30))
    spec = write(
        tmp_path / "pipeline.toml",
        f"""
        [pipeline]
        brokers = "{cluster.bootstrap_servers}"
        [pipeline.spark]
        spark.driver.memory = "512m"
        spark.executor.memory = "512m"
        [[flow]]
        name = "copy"
        job = "{TINY}"
        topics = "parcels"
        where = "task"
        file = "copied"
        [[flow]]
        name = "table"
        job = "ingest"
        topics = "parcels"
        format = "raw"
        table = "parcels"
        """,
    )
    home = tmp_path / "spark"
    up = Command(
        "spark", "cluster", "up", "--workers", 2, "--cores", 1, "--memory", "600m", "--port", 0, "-d", home
    )
    try:
        master = up.wait_for(lambda line: line.startswith("run a pipeline on it")).split()[-1]
        assert master.startswith("spark://127.0.0.1:")
        offsets = tmp_path / "offsets.json"
        offsets.write_text('{"parcels": {"0": 5, "1": 7}}')
        code, text = said_by("pipeline", "checkpoint", "import", spec, "copy", offsets)
        assert code == 0, text
        code, text = said_by("pipeline", "checkpoint", "import", spec, "copy", offsets)
        assert code == 1 and "--overwrite" in text

        running = Command("pipeline", "run", spec, "--master", master)
        try:
            # Partition 0 has 0, 2, 4, …; 1 has 1, 3, 5, …
            wanted = Counter(map(str, [*range(10, 30, 2), *range(15, 30, 2)]))
            wait_until(
                lambda: lines(tmp_path / "copied") == wanted, "copied on the cluster, from the offsets on"
            )
            wait_until(lambda: rows_of(tmp_path / "parcels") == 30, "ingested on the cluster")
            code, text = said_by("spark", "cluster", "status", "-d", home, "--json")
            seen = json.loads(text)
            assert code == 0 and seen["cores_used"] == 2, text
            assert [each["name"] for each in seen["applications"]] == ["pipeline"]
            java = int(subprocess.check_output(["pgrep", "-P", str(running.process.pid), "java"]))
            os.kill(java, signal.SIGKILL)
            assert running.ended() == 1
            assert "Spark's Java process has ended unexpectedly" in running.text
            assert "Traceback" not in running.text, running.text
        finally:
            running.kill()
        pids = [each["pid"] for each in seen["members"]]
        up.interrupt()
        assert up.ended() == 0, up.text
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")], "nothing is left behind"
    finally:
        up.kill()
        said_by("spark", "cluster", "down", "-d", home)
