"""A Spark cluster of its own on one machine: a standalone master and workers, from the files that PySpark's wheel brings.

For trying what a cluster does to a job; not for production, where Spark's own ways to deploy belong. Everything listens on 127.0.0.1. What was started is
kept in a directory (`cluster.json`, a log for each process), so that another command can look at it and end it: by number and start, never by name.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.errors import TidelogError
from tidelog.process_identity import identity, why_gone
from tidelog.spark.java import prepare_java

HOST: Final = "127.0.0.1"
FILE: Final = "cluster.json"
START_SECONDS_MAX: Final = 120.0
END_SECONDS_MAX: Final = 20.0
DAEMON_MEMORY: Final = "512m"
"""Of the master and of each worker itself; what executors get is theirs on top."""
_MASTER_AT: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_WEB_AT: Final = re.compile(r"started at (http://\S+)")
_REGISTERED: Final = re.compile(r"Successfully registered with master")
_MEMORY: Final = re.compile(r"\d+[mg]", re.IGNORECASE)


class SparkClusterError(TidelogError):
    """The cluster did not come up, or is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    name: str
    process: Mapping[str, Any]
    log: str

    def why_gone(self) -> str | None:
        return why_gone(self.process)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneCluster:
    master: str
    """spark://host:port, for `--master`."""
    web: str
    """Where the master shows itself in a browser."""
    members: tuple[Member, ...]
    """The master first."""

    def missing(self) -> list[tuple[str, str]]:
        """Who is gone, and why that is known."""
        return [(each.name, why) for each in self.members if (why := each.why_gone()) is not None]


def bring_up(directory: Path, *, workers: int, cores: int, memory: str, port: int) -> StandaloneCluster:
    """Returns when every worker has registered. What was started is ended again if that fails."""
    if not _MEMORY.fullmatch(memory):
        raise SparkClusterError(f"{memory!r} is no amount of memory: write 512m or 2g")
    try:
        there = find(directory)
    except SparkClusterError:
        pass
    else:
        if len(there.missing()) < len(there.members):
            raise SparkClusterError(f"a cluster is up already, {there.master}, with its files in {directory}")
    directory.mkdir(parents=True, exist_ok=True)
    started: list[Member] = []
    try:
        log = directory / "master.log"
        arguments = ["--host", HOST, "--port", str(port), "--webui-port", "0"]
        started.append(_start("master", "org.apache.spark.deploy.master.Master", arguments, log))
        master = _wait_for(_MASTER_AT, started[0])
        web = _wait_for(_WEB_AT, started[0])
        for number in range(1, workers + 1):
            name = f"worker-{number}"
            arguments = ["--host", HOST, "--port", "0", "--webui-port", "0", "--cores", str(cores)]
            arguments += ["--memory", memory, "--work-dir", str(directory / name), master]
            log = directory / f"{name}.log"
            started.append(_start(name, "org.apache.spark.deploy.worker.Worker", arguments, log))
        for worker in started[1:]:
            _wait_for(_REGISTERED, worker)
        cluster = StandaloneCluster(master=master, web=web, members=tuple(started))
        unfinished = directory / f"{FILE}.{os.getpid()}"
        unfinished.write_text(json.dumps(asdict(cluster), indent=1))
        os.replace(unfinished, directory / FILE)
    except BaseException:
        end(started)
        raise
    return cluster


def find(directory: Path) -> StandaloneCluster:
    try:
        document = json.loads((directory / FILE).read_text())
    except FileNotFoundError:
        raise SparkClusterError(
            f"there is no cluster in {directory}: `tidelog spark cluster up` starts one, and --directory names another"
        ) from None
    members = tuple(Member(**each) for each in document.pop("members"))
    return StandaloneCluster(**document, members=members)


def bring_down(directory: Path) -> StandaloneCluster:
    cluster = find(directory)
    end(cluster.members)
    (directory / FILE).unlink(missing_ok=True)
    return cluster


def end(members: Sequence[Member]) -> None:
    """Workers first, so that the master does not mourn them; whoever does not go in time is killed."""
    for member in reversed(members):
        _signal(member, signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS_MAX
    left = list(members)
    while left and time.monotonic() < deadline:
        left = [member for member in left if not _has_ended(member)]
        time.sleep(0.05)
    for member in left:
        _signal(member, signal.SIGKILL)


def seen_by_master(cluster: StandaloneCluster) -> dict[str, Any]:
    """What the master itself says of its workers and applications. SparkClusterError if it does not answer."""
    try:
        with urllib.request.urlopen(f"{cluster.web}/json/", timeout=5) as answer:
            found = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise SparkClusterError(f"the master does not answer at {cluster.web}: {error}") from None
    return dict(found)


def tail(log: str, count: int = 5) -> Iterator[str]:
    try:
        lines = Path(log).read_text(errors="replace").splitlines()
    except OSError:
        return
    yield from [line for line in lines if line.strip() and not line.startswith("\tat ")][-count:]


def _start(name: str, java_class: str, arguments: Sequence[str], log: Path) -> Member:
    java_home = prepare_java()
    from pyspark.find_spark_home import _find_spark_home

    home = _find_spark_home()
    environment = {
        **os.environ,
        "JAVA_HOME": java_home,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": HOST,  # or the pages for browsers listen on all addresses
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true",
        "PYSPARK_PYTHON": sys.executable,
    }
    with open(log, "wb") as file:
        # A session of its own: Ctrl-C in this terminal is for us, who end the others in order.
        process = subprocess.Popen(
            [os.path.join(home, "bin", "spark-class"), java_class, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    return Member(name=name, process=identity(process.pid), log=str(log))


def _wait_for(pattern: re.Pattern[str], member: Member) -> str:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        found = pattern.search(Path(member.log).read_text(errors="replace"))
        if found is not None:
            return found[1] if found.groups() else found[0]
        if member.why_gone() is not None or time.monotonic() > deadline:
            said = "".join(f"\n{line}" for line in tail(member.log))
            raise SparkClusterError(f"the {member.name} did not start; its log {member.log} ends with{said}")
        time.sleep(0.1)


def _has_ended(member: Member) -> bool:
    """With all of its threads, which may take a moment longer than its main one."""
    try:
        return os.waitpid(member.process["pid"], os.WNOHANG)[0] != 0
    except ChildProcessError:  # another command has started it
        return member.why_gone() is not None


def _signal(member: Member, number: signal.Signals) -> None:
    if member.why_gone() is None:
        with suppress(ProcessLookupError):
            os.kill(member.process["pid"], number)
