"""`make soak` sets FASTI_SOAK=1."""

import os
import random

SOAK = bool(os.environ.get("FASTI_SOAK"))
"""What takes too long for every change is asked for."""


def first_seed() -> int:
    """The soak begins elsewhere each time; before a change is taken the same is done each time. FASTI_SEED=n
    begins there."""
    return int(os.environ.get("FASTI_SEED") or (random.randrange(1 << 32) if SOAK else 0))
