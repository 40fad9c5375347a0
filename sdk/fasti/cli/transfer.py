"""`fasti message import`: NDJSON in, with a progress bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

import fasti

from .options import with_client
from .output import Printer


class _Lines:
    """The objects of an NDJSON stream, and how many bytes of it were read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.bytes_read = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(self._stream, 1):
            self.bytes_read += len(line)
            if line.strip():
                yield _object(line, number)


def _object(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"line {number}: expected an object")  # noqa: TRY004 - the user's input, not a type
    return found


@with_client()
async def import_(
    client: fasti.Client,
    out: Printer,
    file: Annotated[Path, typer.Argument(help="NDJSON, one message a line; - for stdin.")],
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Messages per atomic batch.")] = 1000,
    ids: Annotated[
        bool, typer.Option("--ids", help="Keep the ids of an export; a taken one is refused.")
    ] = False,
) -> None:
    """Schedule many messages. Messages accepted before a failure stay scheduled, and are counted in the
    output.

    Lines with a `key` of their own can be imported again without harm.
    """
    try:
        stream: IO[bytes] = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    except OSError as error:
        raise ValueError(str(error)) from error
    total = None if str(file) == "-" else file.stat().st_size
    with stream:
        await _import(client, out, _Lines(stream), total, batch, ids=ids)


async def _import(
    client: fasti.Client, out: Printer, lines: _Lines, total: int | None, batch: int, *, ids: bool
) -> None:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

    accepted = 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=out.errors, transient=True, disable=not out.errors.is_terminal) as bar:
        task = bar.add_task("importing", total=total)

        def on_progress(count: int) -> None:
            nonlocal accepted
            accepted = count
            bar.update(task, completed=lines.bytes_read, description=f"{count:,} messages")

        try:
            await client.messages.schedule_many(lines, batch=batch, on_progress=on_progress, ids=ids)
        except BaseException:
            out.complain(f"{accepted:,} messages were accepted before this:")
            raise
    out.one({"accepted": accepted})
