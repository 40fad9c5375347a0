"""Commands that `fasti dead`, `fasti retry` and `fasti message` share: list, show, change by id or
selection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

import fasti

from .options import with_client
from .output import Format, Printer
from .ranges import DryRun

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of results.")]
Count = Annotated[bool, typer.Option("--count", help="Print only how many there are.")]


def add_ls(
    app: typer.Typer, noun: str, kind: Any, columns: Sequence[str], meaning: str, **other: Any
) -> None:
    """Add `ls`: list `client.{noun}` by a selection (`kind`, `other`: as for `with_client`)."""

    async def ls(
        client: fasti.Client, out: Printer, limit: Limit = 100, count: Count = False, **chosen: Any
    ) -> None:
        calls = getattr(client, noun)
        if count:
            out.count(await calls.count(**chosen))
            return
        found = calls.list(limit=limit, **chosen)
        if out.format is Format.ndjson:
            async for one in found:
                out.line(one.raw)
        else:
            out.many([one.raw async for one in found], columns)

    app.command("ls", help=meaning)(with_client(kind, **other)(ls))


def add_show(app: typer.Typer, noun: str, missing: str, meaning: str) -> None:
    """Add `show`: the entries of one message; exit code 1, with `missing` and its id, if there is none."""

    async def show(
        client: fasti.Client, out: Printer, message_id: Annotated[str, typer.Argument(metavar="ID")]
    ) -> None:
        found = await getattr(client, noun).get(message_id)
        if not found:
            out.complain(missing.format(message_id))
            raise typer.Exit(1)
        for entry in found:
            out.one(entry.raw)

    app.command("show", help=meaning)(with_client()(show))


def add_change(app: typer.Typer, noun: str, word: str, kind: Any, meaning: str) -> None:
    """Add a command that changes entries by id or selection and has no more options."""

    async def work(
        client: fasti.Client, out: Printer, ids: Ids = None, dry_run: DryRun = False, **chosen: Any
    ) -> None:
        await change(out, getattr(getattr(client, noun), word), ids, chosen, dry_run=dry_run)

    app.command(word, help=meaning)(with_client(kind)(work))


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
