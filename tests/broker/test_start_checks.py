"""What a broker says when it starts: network file systems, settings without effect, footguns."""

from __future__ import annotations

import pytest

from tidelog.broker.start_checks import (
    file_system_of,
    network_file_system_warnings,
    segment_files_limit,
    start_warnings,
)
from tidelog.config.resolve import BrokerConfig

MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
server:/export /data nfs4 rw,vers=4.2 0 0
/dev/vdb /data/fast ext4 rw 0 0
//host/share /mnt/my\\040share cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/log", "ext4"),
        ("/data", "nfs4"),
        ("/data/kafka", "nfs4"),
        ("/data/fast/kafka", "ext4"),
        ("/database", "ext4"),
        ("/mnt/my share/x", "cifs"),
    ],
)
def test_the_innermost_mount_counts(path: str, kind: str) -> None:
    assert file_system_of(path, MOUNTS) == kind


def test_a_network_file_system_is_warned_about_by_name() -> None:
    (warning,) = network_file_system_warnings(["/data/kafka", "/data/fast/kafka"], MOUNTS)
    assert "/data/kafka" in warning
    assert "nfs4" in warning
    assert "local disk" in warning


def test_settings_without_effect_are_named() -> None:
    config = BrokerConfig.load({"num.network.threads": "9"})
    assert any("num.network.threads" in warning for warning in start_warnings(config, 1024))


def test_retention_far_below_the_roll_time_is_warned_about() -> None:
    config = BrokerConfig.load({"log.retention.ms": "60000"})
    assert any("segment.ms" in warning for warning in start_warnings(config, 1024))


def test_a_plain_start_has_nothing_to_say() -> None:
    assert start_warnings(BrokerConfig.load({}), 1024) == []


@pytest.mark.parametrize(("limit", "files"), [(100, 64), (1024, 512), (1_000_000, 20_000)])
def test_connections_keep_half_of_the_descriptors(limit: int, files: int) -> None:
    assert segment_files_limit(limit) == files
