"""Errors of configuration that a person reads: at start, in the CLI, before any request is involved.

Owns the two shapes a problem takes. Never carries a wire code: `tidelog.config.alter` turns a `SettingError` into the
`RequestError` that Kafka's broker would answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors import TidelogError


class SettingError(TidelogError):
    """One setting cannot have one value. The message names the setting, the value and what is allowed."""


class ConfigError(TidelogError):
    """A configuration that is refused as a whole. `problems` holds every reason, not only the first."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))
