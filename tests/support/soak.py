"""`make soak` sets FASTI_SOAK=1."""

import os

SOAK = bool(os.environ.get("FASTI_SOAK"))
"""What takes too long for every change is asked for."""
