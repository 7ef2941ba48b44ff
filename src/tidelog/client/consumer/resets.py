"""`auto.offset.reset`: where to begin when nobody knows."""

from __future__ import annotations

import re
import time
from typing import Final, NamedTuple

from tidelog.client.errors import SettingsError

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_BY_DURATION: Final = "by_duration:"


class Reset(NamedTuple):
    text: str
    fixed: int | None
    back_ms: int = 0

    def __str__(self) -> str:
        return self.text

    def timestamp(self) -> int:
        """As ListOffsets takes it."""
        return time.time_ns() // 1_000_000 - self.back_ms if self.fixed is None else self.fixed

    @classmethod
    def parse(cls, text: str) -> Reset | None:
        """None for `none`."""
        if text == "earliest":
            return cls(text, -2)
        if text == "latest":
            return cls(text, -1)
        if text == "none":
            return None
        if text.startswith(_BY_DURATION):
            return cls(text, None, duration_ms(text[len(_BY_DURATION) :]))
        raise SettingsError(
            f"auto.offset.reset is earliest, latest, none or by_duration:PT1H (ISO 8601), not {text!r}"
        )


def duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groupdict().values()):
        raise SettingsError(
            f"{text!r} is no duration: days, hours, minutes and seconds as in P1DT2H30M10S (ISO 8601)"
        )
    days, hours, minutes, seconds = (
        float(found[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
