"""`fasti message shift`, `export` and `cancel --topic ...`: many messages at once, with a progress bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Annotated, Any, Unpack

import typer

import fasti
from fasti.options import Selection

from .options import with_client
from .output import Printer, progress

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count, change nothing.")]


async def cancel_where(
    client: fasti.Client, out: Printer, *, dry_run: bool, **chosen: Unpack[Selection]
) -> None:
    """Cancel by filter; print the numbers."""
    total = await client.messages.count(**chosen)
    with progress(out, "cancelling", total) as told:
        found = await client.messages.cancel_where(dry_run=dry_run, on_progress=told, **chosen)
    out.one({"matched": found.matched, "changed": found.changed})


@with_client(Selection)
async def shift(
    client: fasti.Client,
    out: Printer,
    by: Annotated[str, typer.Argument(metavar="BY", help="PT1H, 15m, 90s; -PT1H needs -- before it.")],
    dry_run: DryRun = False,
    **chosen: Unpack[Selection],
) -> None:
    """Move every pending message that matches by a duration, each once; their ids stay.

    At least one of --topic, --from and --to has to be given.
    """
    total = await client.messages.count(**chosen)
    with progress(out, "moving", total) as told:
        found = await client.messages.shift(by, dry_run=dry_run, on_progress=told, **chosen)
    out.one({"matched": found.matched, "changed": found.changed})


@with_client(Selection)
async def export(
    client: fasti.Client,
    out: Printer,
    file: Annotated[Path, typer.Argument(help="Output file; - for stdout.")] = Path("-"),
    ids: Annotated[bool, typer.Option("--ids", help="Include ids, for `message import --ids`.")] = False,
    **chosen: Unpack[Selection],
) -> None:
    """Write pending messages as NDJSON that `message import` takes back, while the server runs."""
    total = await client.messages.count(**chosen)
    try:
        stream: IO[str] = sys.stdout if str(file) == "-" else file.open("w", encoding="utf-8")
    except OSError as error:
        raise ValueError(str(error)) from error
    found = client.messages.export(ids=ids, **chosen)
    count = 0
    try:
        with progress(out, "exporting", total) as told:
            async for item in found:
                count += 1
                _write(stream, item, count, told)
    finally:
        if stream is sys.stdout:
            stream.flush()
        else:
            stream.close()
    if stream is not sys.stdout:
        out.one({"exported": count})


def _write(stream: IO[str], item: Any, count: int, told: Callable[[int], None]) -> None:
    stream.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")
    if count % 1_000 == 0:
        told(count)
