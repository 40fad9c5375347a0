"""Shared by `fasti dead` and `fasti retry`: listing entries, and changing them by id or selection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

import fasti

from .output import Format, Printer

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of results.")]
Count = Annotated[bool, typer.Option("--count", help="Print only how many there are.")]


async def print_all(
    out: Printer, found: AsyncIterator[fasti.DeadLetter] | AsyncIterator[fasti.WaitingRetry], time: str
) -> None:
    """Print a list; `time`: the field that orders it."""
    if out.format is Format.ndjson:
        async for entry in found:
            out.line(entry.raw)
    else:
        columns = ("id", time, "group", "attempts", "reason", "topic", "payload")
        out.many([entry.raw async for entry in found], columns)


def print_each(out: Printer, found: Sequence[fasti.DeadLetter | fasti.WaitingRetry], missing: str) -> None:
    """Print the entries of one message; exit code 1 if there is none."""
    if not found:
        out.complain(missing)
        raise typer.Exit(1)
    for entry in found:
        out.one(entry.raw)


async def change(
    out: Printer,
    call: Callable[..., Awaitable[fasti.BulkResult]],
    ids: list[str] | None,
    chosen: Mapping[str, Any],
    **more: Any,
) -> None:
    """Change the selected entries and print the numbers. Raises ValueError, which is wrong usage, without a
    selection."""
    if not ids and not any(chosen.values()):
        raise ValueError("give ids, or at least one option that selects, such as --group and --topic")
    done = await call(ids or None, **more, **chosen)
    out.one({"matched": done.matched, "changed": done.changed})
