"""Which Tidelog this is, as its package metadata says."""

from __future__ import annotations

UNKNOWN = "unknown"


def tidelog_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tidelog")
    except PackageNotFoundError:
        return UNKNOWN
