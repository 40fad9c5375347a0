"""How long the tests may take: `make soak` sets FASTI_SOAK=1, `make quick` FASTI_QUICK=1."""

import os

SOAK = bool(os.environ.get("FASTI_SOAK"))
"""What takes too long for every change is asked for."""
QUICK = bool(os.environ.get("FASTI_QUICK"))
"""Nothing but what is quick is asked for."""
