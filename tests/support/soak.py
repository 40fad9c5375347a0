"""Whether what takes too long for every change is asked for: FASTI_SOAK=1, as `make soak` sets it."""

import os

SOAK = bool(os.environ.get("FASTI_SOAK"))
