"""The `tidelog` command. One file per command group; anything heavy is imported by the command that needs it."""

from __future__ import annotations

import time

STARTED_AT = time.monotonic()
"""When this process began to be `tidelog`: what a broker's start-up time is counted from."""
