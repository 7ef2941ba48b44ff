"""The broker's loggers as a config resource: kafka-configs --entity-type broker-loggers shows and changes their levels."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

ROOT = "root"
# Kafka's level names, and Python's for each.
LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
_NAMES = {level: name for name, level in reversed(LEVELS.items())}
SET, DELETE = 0, 1


def levels() -> dict[str, str]:
    """Every logger of ours with the level that counts for it."""
    names = [name for name in list(logging.root.manager.loggerDict) if name.split(".")[0] == "tidelog"]
    return {ROOT: _level(logging.root)} | {name: _level(logging.getLogger(name)) for name in sorted(names)}


def _level(logger: logging.Logger) -> str:
    return _NAMES.get(logger.getEffectiveLevel(), "INFO")


def alter(changes: Iterable[tuple[str, int, str | None]], *, validate_only: bool) -> None:
    """Apply (logger, operation, level) changes, all or none."""
    known = levels()
    decided: list[tuple[str, int]] = []
    for name, operation, value in changes:
        if name not in known:
            raise RequestError(
                ErrorCode.INVALID_CONFIG, f"there is no logger {name!r}; there are {', '.join(known)}"
            )
        if operation == SET and value in LEVELS:
            decided.append((name, LEVELS[value]))
        elif operation == DELETE and name != ROOT:
            decided.append((name, logging.NOTSET))
        elif operation == SET:
            raise RequestError(
                ErrorCode.INVALID_CONFIG, f"{value!r} is no level of {name}; allowed: {', '.join(LEVELS)}"
            )
        else:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, f"the level of {name} can be set, and removed except for {ROOT}"
            )
    if not validate_only:
        for name, level in decided:
            (logging.root if name == ROOT else logging.getLogger(name)).setLevel(level)
