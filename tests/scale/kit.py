"""What the tests of scale share."""

from __future__ import annotations

import sys
from pathlib import Path

from tidelog.testing import Cluster
from tools.peers.tidelog import TidelogPeer

_LIMITED = """
import os, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
os.execv(sys.argv[2], sys.argv[2:])
"""


class LimitedPeer(TidelogPeer):
    """A broker process that may have only so many descriptors."""

    def __init__(
        self, *, descriptors: int, durability: str = "fsync", settings: dict[str, str] | None = None
    ) -> None:
        super().__init__(durability=durability, settings=settings)
        self.descriptors = descriptors

    def command(self) -> list[str]:
        return [sys.executable, "-c", _LIMITED, str(self.descriptors), *super().command()]


def restarted_by_force(cluster: Cluster) -> None:
    """As after kill -9: nothing is made durable, and nothing marked clean."""
    cluster._stop(clean=False)
    cluster.start()


def metadata_dir(data_dir: Path) -> Path:
    return data_dir / "__cluster_metadata-0"


def snapshots(data_dir: Path) -> list[str]:
    return sorted(path.name for path in metadata_dir(data_dir).glob("*.checkpoint"))
