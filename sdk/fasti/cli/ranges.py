"""`fasti message shift`, `import`, `export` and `cancel --topic ...`: many at once, with a progress bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
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
    with progress(out, "cancelling", total) as advance:
        found = await client.messages.cancel_where(dry_run=dry_run, on_progress=advance, **chosen)
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
    with progress(out, "moving", total) as advance:
        found = await client.messages.shift(by, dry_run=dry_run, on_progress=advance, **chosen)
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
    count = 0
    try:
        with progress(out, "exporting", total) as advance:
            async for item in client.messages.export(ids=ids, **chosen):
                stream.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")
                count += 1
                if count % 1_000 == 0:
                    advance(count)
    finally:
        if stream is sys.stdout:
            stream.flush()
        else:
            stream.close()
    if stream is not sys.stdout:
        out.one({"exported": count})


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
    total, accepted = None if str(file) == "-" else file.stat().st_size, 0
    with stream, progress(out, "importing", total) as advance:
        lines = _Lines(stream)

        def on_progress(count: int) -> None:
            nonlocal accepted
            accepted = count
            advance(lines.bytes_read, text=f"{count:,} messages")

        try:
            await client.messages.schedule_many(lines, batch=batch, on_progress=on_progress, ids=ids)
        except BaseException:
            out.complain(f"{accepted:,} messages were accepted before this:")
            raise
    out.one({"accepted": accepted})
