"""What `fasti group`, `endpoint` and `session` share: what a place has undone, and what becomes of it."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable
from enum import StrEnum
from typing import Annotated

import typer

import fasti
from fasti.places import undone_of

from .output import Format, Printer, Row
from .run import REFUSED


class Fate(StrEnum):
    """`--undone`."""

    dead = "dead"
    drop = "drop"


To = Annotated[str, typer.Option("--to", help="Where it goes on: now, an instant, or how far back (PT1H).")]
Skipping = Annotated[
    Fate, typer.Option("--undone", help="Make dead letters of what is left out, or drop it.")
]
Removing = Annotated[
    Fate | None,
    typer.Option("--undone", help="Make dead letters of what is undone, or drop it. Without: refuse."),
]
Expiry = Annotated[
    str | None, typer.Option(help="How long it stays with nobody there: 2d, or never (the default).")
]


def shown(place: Row) -> Row:
    """A row of a table: what is undone, and how an endpoint fails, in words."""
    undone, failing = undone_of(dict(place)), place.get("failing")
    told = {} if undone is None else {"undone": str(undone) if undone else "nothing"}
    if failing:
        share = f"{failing['share']:.0%} of {failing['of']}" if failing["of"] else "nothing posted"
        told["failing"] = f"{share}: {failing['last_reason']}" if failing.get("last_reason") else share
    return {**place, **told}


async def skip(out: Printer, skipped: Awaitable[fasti.Skipped]) -> None:
    """Print where a place was and is, and what it has left behind."""
    raw = (await skipped).raw
    out.one(shown(raw) if out.format is Format.table else raw)


async def remove(out: Printer, name: str, deletion: Awaitable[None], command: list[str]) -> None:
    """Print that it is gone. If something is undone: what, and the commands that decide of it; exit code 1.

    `command`: what deletes it, without `--undone`.
    """
    try:
        await deletion
    except fasti.StillUndone as left:
        out.failed(f"{name} is not done: {left.undone}", left.problem.raw or {})
        out.advise(*(shlex.join([*command, "--undone", fate]) for fate in Fate))
        raise typer.Exit(REFUSED) from left
    out.one({"name": name, "state": "removed"})
