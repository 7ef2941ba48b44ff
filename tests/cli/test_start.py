"""How `tidelog start` finds its settings, and what the command says without any broker."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidelog.cli.start import resolve
from tidelog.config import ConfigError


def listener(config: Any) -> tuple[str, int]:
    return config.listeners[0].host, config.listeners[0].port


def test_defaults() -> None:
    config = resolve(None, {}, ())
    assert listener(config) == ("127.0.0.1", 9092)
    assert config.log_dirs == ("./tidelog-data",)


def test_the_later_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "log.dirs=/from/file\nlog.retention.ms=1111\nnum.partitions=2\nlisteners=PLAINTEXT://127.0.0.9:9999\n"
    )
    environ = {
        "TIDELOG_LOG_RETENTION_MS": "2222",
        "TIDELOG_NUM_PARTITIONS": "3",
        "TIDELOG_BOOTSTRAP_SERVERS": "x:1",
    }
    config = resolve(file, environ, ["num.partitions=4"])
    assert (config.log_dirs, config.int("log.retention.ms"), config.int("num.partitions")) == (
        ("/from/file",),
        2222,
        4,
    )
    assert listener(config) == ("127.0.0.9", 9999)
    config = resolve(file, environ, ["log.dirs=/from/set"], data_dir="/from/option", port=0)
    assert config.log_dirs == ("/from/option",)
    assert listener(config) == ("127.0.0.1", 0)


def test_hosts_may_be_ipv6() -> None:
    assert listener(resolve(None, {}, (), host="::1"))[1] == 9092


def test_every_mistake_is_named_with_its_origin() -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(None, {}, ["num.partitions=many", "nosuch.setting=1"])
    text = str(raised.value)
    assert "--set num.partitions" in text
    assert "many" in text
    assert "nosuch.setting" in text


def test_mistakes_are_one_line_each_and_exit_1(tidelog: Any) -> None:
    result = tidelog("start", "--set", "num.partitions=many", "--set", "nosuch.setting=1")
    assert result.code == 1
    assert result.out == ""
    assert len(result.err.splitlines()) == 2
    assert all(line.startswith("error: --set ") for line in result.err.splitlines())


def test_a_missing_file_is_named(tidelog: Any) -> None:
    result = tidelog("start", "--config", "/no/such/file")
    assert (result.code, result.err) == (1, "error: /no/such/file: No such file or directory\n")


def test_nobody_there(tidelog: Any) -> None:
    result = tidelog("topic", "list", "-b", "127.0.0.1:1")
    assert result.code == 1
    assert result.out == ""
    assert result.err.startswith("error: cannot connect to 127.0.0.1:1: connection refused")
    assert "tidelog start" in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["topic", "create"],
        ["topic", "create", "x", "--partitions", "0"],
        ["topic", "create", "x", "-c", "novalue"],
        ["topic", "alter", "x"],
        ["topic", "list", "-b", "host:port:x"],
        ["produce", "x", "--acks", "2"],
        ["produce", "x", "-z", "rar"],
        ["consume", "x", "--from-beginning", "--end"],
        ["consume", "x", "--timestamp", "noon"],
        ["consume", "x", "-f", "%z"],
        ["consume", "x", "-f", "%v", "--json"],
        ["config", "describe"],
        ["config", "set", "a=1", "--topic", "x", "--default"],
        ["start", "--port", "70000"],
    ],
)
def test_a_wrong_command_line_exits_2(tidelog: Any, arguments: list[str]) -> None:
    result = tidelog(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert "Error: " in result.err


@pytest.mark.parametrize("arguments", [["--version"], ["-V"]])
def test_version(tidelog: Any, arguments: list[str]) -> None:
    result = tidelog(*arguments)
    assert result.code == 0
    assert result.out.startswith("tidelog ")


HEAVY = ("rich", "pyarrow", "numba", "numpy", "asyncio", "tidelog.client", "tidelog.broker", "tidelog.config")


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["topic", "create", "--help"], ["consume", "--help"]]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from tidelog.cli.main import main\n"
        f"sys.argv = ['tidelog', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr.strip() == "[]"


def test_start_serves_stops_and_leaves_sound_files(tidelog: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "tidelog", "start", "--port", "0", "--data-dir", str(data)]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        ready = re.search(r"ready on (127\.0\.0\.1:\d+)", broker.stdout.readline())
        assert ready is not None
        assert tidelog("topic", "create", "t", "-b", ready[1]).code == 0
        lines = tmp_path / "lines"
        lines.write_text("one\ntwo\n")
        assert tidelog("produce", "t", "-f", lines, "-b", ready[1]).code == 0
        second = tidelog("log", "verify", data)
        assert "a broker is using" in second.err
    finally:
        broker.send_signal(signal.SIGTERM)
        _, errors = broker.communicate(timeout=20)
    assert broker.returncode == 0, errors
    assert tidelog("log", "verify", data, "--records", "--json").code == 0
    assert "value=two" in tidelog("log", "dump", data / "t-0", "--records").out
