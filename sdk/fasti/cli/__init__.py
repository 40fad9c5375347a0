"""The command `fasti`.

Exit codes: 0 done, 1 the server said no (also: a cancel that came too late), 2 wrong usage, 3 no server
there.

    __main__.py     `python -m fasti.cli`
    app.py          the root command: global options, and the nouns under it
    run.py          from a command to an exit code: a client, a printer, what to say of an error
    options.py      the options of the SDK's calls, each declared once
    output.py       values as a table, JSON or NDJSON; progress bars
    profiles.py     named servers in ~/.config/fasti/config.toml
    complete.py     what the shell's completion offers: names that the server knows
    message.py      `fasti message`: one at a time
    ranges.py       `fasti message shift`, `import`, `export`, `cancel --topic`: many at once
    schedule.py     `fasti schedule`
    subscribe.py    `fasti subscribe`
    work.py         `fasti work`: a worker of yours, with logs and a progress line
    logs.py         its log: one line an event, text or JSON
    timeline.py     `fasti timeline`
    slices.py       `fasti slice`, `fasti shard`, `fasti job`, and following a job to its end
    nouns.py        verbs that are one call of the SDK, from a table
    places.py       `fasti session`, `fasti group`, `fasti endpoint`
    kept.py         `fasti dead`, `fasti retry`
    server.py       `fasti server`, `fasti cluster`
"""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Entry point. Says what to install if the extra is missing.

    Nothing is collected until there is a client (`run`): that would be a sixth of the time of the imports.
    """
    gc.disable()
    try:
        from .app import start
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write(
            f"fasti: {error.name} is missing; install the command line: pip install 'fasti-client[cli]'\n"
        )
        sys.exit(2)
    start(sys.argv[1:])
