"""The places a static setting can be given, and how they combine: file, environment, command line.

Owns the mapping TIDELOG_LOG_RETENTION_MS → log.retention.ms and the order in which sources overrule each other. It
reads nothing by itself: the file's text, the environment and the arguments are handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.config.broker_settings import BROKER_SETTINGS, FAMILIES
from tidelog.config.errors import ConfigError
from tidelog.config.names import nearest
from tidelog.config.properties import read_properties

ENVIRONMENT_PREFIX = "TIDELOG_"


class Given(NamedTuple):
    """Settings as text, and for each the place it was given, for error messages."""

    values: dict[str, str]
    origins: dict[str, str]


def from_properties(text: str, *, file: str = "server.properties") -> Given:
    """The settings of a properties file."""
    try:
        entries = read_properties(text)
    except ConfigError as error:
        raise ConfigError([f"{file}, {problem}" for problem in error.problems]) from None
    return Given(
        {entry.name: entry.value for entry in entries},
        {entry.name: f"{file}, line {entry.line}" for entry in entries},
    )


def environment_name(name: str) -> str:
    """The variable for a setting: dots and dashes become underscores."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_").replace("-", "_")


def from_environment(environ: Mapping[str, str], *, ignore: Iterable[str] = ()) -> Given:
    """The settings among the variables of an environment. A TIDELOG_ variable that is none is an error.

    `ignore` lists the variables of that prefix that mean something else to the caller.
    """
    table = {environment_name(name): name for name in BROKER_SETTINGS}
    given = Given({}, {})
    problems = []
    skipped = frozenset(ignore)
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in skipped:
            continue
        name = table.get(variable)
        if name is None:
            problems.append(_unknown_variable(variable, table))
            continue
        given.values[name] = value
        given.origins[name] = f"environment variable {variable}"
    if problems:
        raise ConfigError(problems)
    return given


def _unknown_variable(variable: str, table: Mapping[str, str]) -> str:
    near = nearest(variable, table)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"Environment variable {variable} is no setting of Tidelog.{hint}"


def from_assignments(assignments: Iterable[str], *, option: str = "--set") -> Given:
    """The settings of name=value arguments."""
    given = Given({}, {})
    problems = []
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            problems.append(f"{option} {assignment!r} is not of the form name=value")
            continue
        given.values[name.strip()] = value
        given.origins[name.strip()] = f"{option} {name.strip()}"
    if problems:
        raise ConfigError(problems)
    return given


def combine(*sources: Given) -> Given:
    """One set of settings; later sources overrule earlier ones.

    A later source also overrules other names for the same thing: `--set log.retention.hours=1` wins over
    log.retention.ms in the file, although within one source milliseconds win over hours.
    """
    combined = Given({}, {})
    for source in sources:
        for family in FAMILIES:
            if any(name in source.values for name in family):
                for name in family:
                    combined.values.pop(name, None)
                    combined.origins.pop(name, None)
        combined.values.update(source.values)
        combined.origins.update(source.origins)
    return combined
