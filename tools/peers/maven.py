"""Jars of Apache Kafka and others, fetched once through Maven into the user's cache directory.

Owns what is fetched and where it lies. Never installs anything, never runs a jar. Where `mvn`, `java` or the registry
is missing it raises `PeerUnavailableError` with a sentence that says which one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tools.peers.process import PeerUnavailableError

KAFKA_VERSION = "4.3.1"
OLD_CLIENT_VERSION = "3.9.2"
FETCH_SECONDS_MAX = 600.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>peer</groupId><artifactId>peer</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{group}</groupId>"
    "<artifactId>{artifact}</artifactId><version>{version}</version>{exclusions}</dependency>"
)
_NOTHING_ELSE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


class Jar(NamedTuple):
    group: str
    artifact: str
    version: str


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tidelog-peers"


def java() -> str:
    path = shutil.which("java")
    if path is None:
        raise PeerUnavailableError("no `java` on the PATH: Apache Kafka and its tools need Java 17 or newer")
    return path


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """The folder with the jars of one Kafka release: broker and tools. Fetched on first use."""
    folder = cache_dir() / f"kafka-{version}"
    if any(folder.glob("kafka_2.13-*.jar")) and any(folder.glob("kafka-tools-*.jar")):
        return folder
    fetch(
        [Jar("org.apache.kafka", artifact, version) for artifact in ("kafka_2.13", "kafka-tools")],
        folder,
        f"Apache Kafka {version}",
    )
    return folder


def fetch(jars: Iterable[Jar], folder: Path, what: str, *, alone: bool = False) -> None:
    """Copy jars into a folder, with what they need unless they are to come alone."""
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerUnavailableError(f"no `mvn` on the PATH: the jars of {what} cannot be fetched")
    folder.mkdir(parents=True, exist_ok=True)
    pom = folder.with_name(f"pom-{folder.name}.xml")
    exclusions = _NOTHING_ELSE if alone else ""
    pom.write_text(
        _POM.format(
            dependencies="".join(_DEPENDENCY.format(**jar._asdict(), exclusions=exclusions) for jar in jars)
        )
    )
    _run_maven(
        [maven, "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"], what
    )


def _run_maven(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise PeerUnavailableError(
            f"Maven did not fetch {what} within {FETCH_SECONDS_MAX:.0f} s: is a registry reachable?"
        ) from None
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise PeerUnavailableError(f"Maven could not fetch {what}; it said:\n{said}")
