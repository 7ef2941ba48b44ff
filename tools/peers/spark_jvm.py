"""Spark's own Kafka connector, and the Spark that it is made for, in a virtual environment of its own.

The connector is on Maven up to 4.2.0, so that it is compared there, whatever Spark the rest of the project uses; our package is on the path, so that this also shows that it works with that Spark. Owns what is
fetched and where it lies. Where Maven, PyPI or Java is missing it raises `PeerUnavailableError` with a sentence that says which one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from tools.peers.maven import Jar, cache_dir, fetch, java
from tools.peers.process import PeerUnavailableError

SPARK_VERSION: Final = "4.2.0"
CLIENT_VERSION: Final = "3.9.2"
"""Of the Java client that this connector is built with."""
POOL_VERSION: Final = "2.13.1"
TOKEN_PROVIDERS: Final = (SPARK_VERSION, "4.1.0-preview1", "4.0.0")
"""The connector's module for delegation tokens, which it needs to be there and does nothing without tokens. Not every registry has the one of its own version; an older one does as well."""
INSTALL_SECONDS_MAX: Final = 1200.0
ROOT: Final = Path(__file__).parents[2]


def connector_jars() -> list[Path]:
    """The jars to name in `spark.jars`. Fetched on first use."""
    java()
    folder = cache_dir() / f"spark-kafka-{SPARK_VERSION}"
    if not (folder / "complete").exists():
        _fetch_connector(folder)
    return sorted(folder.glob("*.jar"))


def _fetch_connector(folder: Path) -> None:
    """Alone, because the connector's description names repositories that are not Maven's own and everything else is in Spark already."""
    common = [
        Jar("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_VERSION),
        Jar("org.apache.kafka", "kafka-clients", CLIENT_VERSION),
        Jar("org.apache.commons", "commons-pool2", POOL_VERSION),
    ]
    what = f"Spark's Kafka connector {SPARK_VERSION}"
    fetch(common, folder, what, alone=True)
    for version in TOKEN_PROVIDERS:
        provider = Jar("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", version)
        try:
            fetch([provider], folder, f"{what}: its token provider {version}", alone=True)
        except PeerUnavailableError:
            if version == TOKEN_PROVIDERS[-1]:
                raise
        else:
            break
    (folder / "complete").touch()


def connector_name() -> str:
    """For reports: the versions that are compared with, a token provider of another version included."""
    provider = next(path.stem for path in connector_jars() if "token-provider" in path.name)
    version = provider.partition("_2.13-")[2]
    mixed = "" if version == SPARK_VERSION else f", its token provider from {version}"
    return f"spark-sql-kafka-0-10 {SPARK_VERSION} (kafka-clients {CLIENT_VERSION}{mixed})"


def spark_python() -> Path:
    """The interpreter of an environment with that Spark and what our package needs. Made on first use, which takes minutes."""
    java()
    folder = cache_dir() / f"spark-{SPARK_VERSION}-python{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    wanted = "\n".join(_requirements())
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", str(folder)], "a virtual environment could not be made")
    listed = folder / "requirements.txt"
    listed.write_text(wanted)
    _run(
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(listed)],
        f"pyspark {SPARK_VERSION} could not be installed from PyPI",
    )
    stamp.write_text(wanted)
    return python


def _requirements() -> list[str]:
    """Our dependencies in the versions of the project, with another Spark and the py4j that goes with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for each in project["optional-dependencies"]["spark"] if not each.startswith("pyspark")]
    pinned = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.lower().startswith(("pyspark", "py4j"))
    ]
    names = {_name(each) for each in (*project["dependencies"], *extras)}
    return [
        f"pyspark=={SPARK_VERSION}",
        *(line for line in pinned if _name(line) in names),
        *(
            each
            for each in (*project["dependencies"], *extras)
            if not any(_name(each) == _name(line) for line in pinned)
        ),
    ]


def _name(requirement: str) -> str:
    name = requirement
    for end in ("[", "=", "<", ">", "!", "~", " ", ";"):
        name = name.partition(end)[0]
    return name.strip().lower().replace("_", "-")


def environment() -> dict[str, str]:
    """For a process in that environment: our package and the tools of the repository, and no other Spark's."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    return keep | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def _run(command: list[str], failure: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerUnavailableError(f"{failure} within {INSTALL_SECONDS_MAX:.0f} s") from None
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise PeerUnavailableError(f"{failure}; it said:\n{said}")
