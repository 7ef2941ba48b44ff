"""Log lines of a simulation tell nothing that its trace does not, and formatting them would take most of its time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_log_lines() -> Iterator[None]:
    """Of this process, meanwhile. Whoever runs a simulation within a test session wants them back afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
