"""`fasti message ...`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import fasti

from .output import Format, Printer, Row
from .ranges import DryRun, From, To, Topic, cancel_where
from .run import run, too_late

app = typer.Typer(no_args_is_help=True)

At = Annotated[
    str | None,
    typer.Option("--at", help="RFC 3339, or local time with zone: 2027-03-28T09:00[Europe/Bucharest]"),
]
In = Annotated[str | None, typer.Option("--in", help="From now, by the server's clock: 15m, 90s, PT15M.")]
State = Annotated[str | None, typer.Option(help="pending (default), dispatched, cancelled, expired or all.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID...")]

COLUMNS = ("id", "deliver_at", "state", "topic", "payload")


@app.command()
def schedule(
    context: typer.Context,
    topic: str,
    payload: Annotated[str, typer.Argument(help="Text, or JSON with --json.")] = "",
    file: Annotated[Path | None, typer.Option(help="Take the payload from here, as bytes.")] = None,
    at: At = None,
    delay: In = None,
    as_json: Annotated[bool, typer.Option("--json", help="The payload is JSON.")] = False,
    idempotency_key: Annotated[str | None, typer.Option("--idempotency-key", "-k")] = None,
    qos: Annotated[int | None, typer.Option(min=0, max=2)] = None,
    retain: Annotated[bool, typer.Option("--retain")] = False,
    expires_in: Annotated[str | None, typer.Option(help="Drop it if it is that long past due.")] = None,
    late: Annotated[
        str | None, typer.Option(help="If the time has passed: deliver (default) or drop.")
    ] = None,
    spread: Annotated[
        str | None, typer.Option(help="Let the server choose the time within this span.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="NAME=VALUE, repeatable.")
    ] = None,
    content_type: str | None = None,
) -> None:
    """Schedule one message; without --at or --in for now."""

    async def work(client: fasti.Client, out: Printer) -> None:
        made = await client.messages.schedule(
            topic,
            payload_of(payload, file, as_json),
            at=at,
            delay=delay,
            key=idempotency_key,
            qos=qos,
            retain=retain or None,
            expires_in=expires_in,
            late=late,
            spread=spread,
            headers=headers_of(header or []),
            content_type=content_type,
        )
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
def cancel(
    context: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None,
    topic: Topic = None,
    due_from: From = None,
    due_to: To = None,
    dry_run: DryRun = False,
) -> None:
    """Cancel messages by id, or all pending ones that --topic, --from and --to select.

    By id: exit code 1 if any was already dispatched.
    """

    async def work(client: fasti.Client, out: Printer) -> None:
        if bool(ids) == any((topic, due_from, due_to)):
            raise ValueError("give ids, or --topic, --from and --to")
        if not ids:
            await cancel_where(client, out, topic=topic, due_from=due_from, due_to=due_to, dry_run=dry_run)
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
def move(context: typer.Context, ids: Ids, at: At = None, delay: In = None) -> None:
    """Move messages to another time; their ids stay."""

    async def work(client: fasti.Client, out: Printer) -> None:
        for message_id in ids:
            moved = await client.messages.reschedule(message_id, at=at, delay=delay)
            out.one({"id": moved.id, "deliver_at": moved.deliver_at, "state": moved.state})

    run(context, work)


@app.command()
def ls(
    context: typer.Context,
    due_from: From = None,
    due_to: To = None,
    topic: Topic = None,
    state: State = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
) -> None:
    """List messages in order of time."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = client.messages.list(due_from=due_from, due_to=due_to, topic=topic, state=state, limit=limit)
        if out.format is Format.ndjson:
            async for message in found:
                out.line(message.raw)
        else:
            out.many([_row(m, out) async for m in found], COLUMNS)

    run(context, work)


@app.command()
def count(
    context: typer.Context, due_from: From = None, due_to: To = None, topic: Topic = None, state: State = None
) -> None:
    """Count messages, exactly."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = await client.messages.count(due_from=due_from, due_to=due_to, topic=topic, state=state)
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


def headers_of(pairs: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise ValueError(f"--header must be NAME=VALUE, not {pair!r}")
        headers[name] = value
    return headers
