"""How much fuzzing is done, and where it starts.

`TIDELOG_TEST_EFFORT=n` does n times the work of `make test`; `TIDELOG_FUZZ_SEED` is the first seed, fixed in `make test` so that two
runs are the same, drawn anew by `make fuzz`. A failure prints its seed and frame.
"""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))
FIRST_SEED = int(os.environ.get("TIDELOG_FUZZ_SEED", "1"))


def seeds(count: int) -> range:
    return range(FIRST_SEED, FIRST_SEED + count * EFFORT)
