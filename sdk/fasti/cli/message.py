"""`fasti message ...`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Unpack

import typer

import fasti
from fasti.options import Due, Listed, MessageOptions, Selection

from .options import takes
from .output import Format, Printer, Row
from .ranges import DryRun, cancel_where
from .run import run, too_late

app = typer.Typer(no_args_is_help=True)

Ids = Annotated[list[str], typer.Argument(metavar="ID...")]

COLUMNS = ("id", "deliver_at", "state", "topic", "payload")


@app.command()
@takes(MessageOptions)
def schedule(
    context: typer.Context,
    topic: str,
    payload: Annotated[str, typer.Argument(help="Text, or JSON with --json.")] = "",
    file: Annotated[Path | None, typer.Option(help="Take the payload from here, as bytes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The payload is JSON.")] = False,
    **options: Unpack[MessageOptions],
) -> None:
    """Schedule one message; without --at or --in for now."""

    async def work(client: fasti.Client, out: Printer) -> None:
        made = await client.messages.schedule(topic, payload_of(payload, file, as_json), **options)
        replayed = {"replayed": True} if made.replayed else {}
        out.one({"id": made.id, "deliver_at": made.deliver_at, "state": made.state, **replayed})

    run(context, work)


@app.command()
def get(context: typer.Context, message_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Show one message."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.messages.get(message_id)).raw)

    run(context, work)


@app.command()
@takes(Selection)
def cancel(
    context: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None,
    dry_run: DryRun = False,
    **chosen: Unpack[Selection],
) -> None:
    """Cancel messages by id, or all pending ones that --topic, --from and --to select.

    By id: exit code 1 if any was already dispatched.
    """

    async def work(client: fasti.Client, out: Printer) -> None:
        if bool(ids) == any(chosen.values()):
            raise ValueError("give ids, or --topic, --from and --to")
        if not ids:
            await cancel_where(client, out, dry_run=dry_run, **chosen)
            return
        if dry_run:
            raise ValueError("--dry-run goes with --topic, --from and --to")
        failed = None
        for message_id in ids:
            if await client.messages.cancel(message_id):
                out.one({"id": message_id, "state": "cancelled"})
            else:
                failed = too_late(out, message_id)
        if failed is not None:
            raise failed

    run(context, work)


@app.command()
@takes(Due)
def move(context: typer.Context, ids: Ids, **when: Unpack[Due]) -> None:
    """Move messages to another time; their ids stay."""

    async def work(client: fasti.Client, out: Printer) -> None:
        for message_id in ids:
            moved = await client.messages.reschedule(message_id, **when)
            out.one({"id": moved.id, "deliver_at": moved.deliver_at, "state": moved.state})

    run(context, work)


@app.command()
@takes(Listed)
def ls(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
    **chosen: Unpack[Listed],
) -> None:
    """List messages in order of time."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = client.messages.list(limit=limit, **chosen)
        if out.format is Format.ndjson:
            async for message in found:
                out.line(message.raw)
        else:
            out.many([_row(m, out) async for m in found], COLUMNS)

    run(context, work)


@app.command()
@takes(Listed)
def count(context: typer.Context, **chosen: Unpack[Listed]) -> None:
    """Count messages, exactly."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = await client.messages.count(**chosen)
        out.text(str(found)) if out.format is Format.table else out.line({"count": found})

    run(context, work)


def _row(message: fasti.Message, out: Printer) -> Row:
    if out.format is Format.json:
        return message.raw
    return {**message.raw, "payload": _short(message.payload)}


def _short(payload: Any) -> str:
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


def payload_of(text: str, file: Path | None, as_json: bool) -> Any:
    data: str | bytes = text
    if file is not None:
        if text:
            raise ValueError("give a payload or --file, not both")
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ValueError(f"--file: {error}") from error
    return json.loads(data) if as_json else data
