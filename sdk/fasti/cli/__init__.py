"""The command `fasti`. One file per noun; `run` turns errors into exit codes, `output` values into text.

Exit codes: 0 done, 1 the server said no (also: a cancel that came too late), 2 wrong usage, 3 no server
there.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point. Says what to install where the extra is missing."""
    try:
        from .app import start
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write(
            f"fasti: {error.name} is missing; install the command line with: pip install 'fasti[cli]'\n"
        )
        sys.exit(2)
    start(sys.argv[1:])
