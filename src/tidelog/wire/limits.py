"""How much a request may hold, beyond what its bytes alone allow (I53)."""

from __future__ import annotations

from typing import Final

REQUEST_ENTRIES_MAX: Final = 40_000
"""Elements in all arrays of a request together: twice what a reader of 10,000 topics with one partition each names.

An entry can be three bytes long, and costs the broker some 20 µs: without this limit one frame would keep it busy for minutes.
"""
