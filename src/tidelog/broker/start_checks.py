"""What a broker looks at before it starts, and says in its log: things that work and will surprise later.

Nothing here refuses a start. Limits of open files are raised as far as the system allows, because each connection and
each segment in use takes one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from tidelog.config.footguns import topic_warnings
from tidelog.config.resolve import BrokerConfig, TopicConfig

NETWORK_FILE_SYSTEMS = frozenset(
    ("9p", "afs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "nfs",
     "nfs4", "smb3", "smbfs", "vboxsf", "virtiofs")
)  # fmt: skip
MOUNTS = "/proc/self/mounts"
FILES_FOR_CONNECTIONS = 0.5
FILES_MIN = 64
FILES_MAX = 20_000


def raise_open_files_limit() -> int:
    """Lift the soft limit of open files to the hard one; returns the limit that now counts."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return soft
        return hard
    return soft


def segment_files_limit(open_files: int) -> int:
    """How many of the open files segments may hold; the rest is for connections."""
    return max(FILES_MIN, min(FILES_MAX, int(open_files * (1 - FILES_FOR_CONNECTIONS))))


def file_system_of(path: str, mounts: str) -> str | None:
    """The type of the file system that holds `path`, from a table like /proc/self/mounts."""
    best, kind = -1, None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) > best:
            best, kind = len(point), fields[2]
    return kind


def network_file_system_warnings(paths: Iterable[str], mounts: str) -> list[str]:
    warnings = []
    for path in paths:
        kind = file_system_of(os.path.realpath(path), mounts)
        if kind in NETWORK_FILE_SYSTEMS:
            warnings.append(
                f"log directory {path} is on a network file system ({kind}): fdatasync and locks may not keep their promises "
                "there, and a slow server stops the broker; use a local disk"
            )
    return warnings


def start_warnings(config: BrokerConfig, open_files: int) -> list[str]:
    """Everything worth a line in the log of this start."""
    warnings = [f"setting without effect: {sentence}" for sentence in config.without_effect()]
    try:
        with open(MOUNTS, encoding="utf-8") as table:
            warnings += network_file_system_warnings(config.log_dirs, table.read())
    except OSError:
        pass  # no such table on this system: nothing can be said
    given = [
        name for name in config.static if name.startswith("log.") and name not in ("log.dir", "log.dirs")
    ]
    if given:
        warnings += [
            f"default for new topics: {sentence}"
            for sentence in topic_warnings(
                TopicConfig.resolve({}, config),
                replication_factor=config.int("default.replication.factor"),
                partitions=1,
                open_files=open_files,
            )
        ]
    return warnings
