"""`fasti message ...`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack

import typer

import fasti
from fasti.options import Due, Listed, MessageOptions, Selection

from .nouns import Ids, Noun, Verb
from .options import command_of
from .output import Format, Printer, Row, printable
from .ranges import DryRun, cancel_where, export, import_, shift
from .run import REFUSED

app = typer.Typer(no_args_is_help=True)

Topic = Annotated[
    str | None, typer.Argument(help="Optional with --deliver-to: one text alone is then the payload.")
]
Payload = Annotated[str | None, typer.Argument(help="Text, or JSON with --json.")]
File = Annotated[Path | None, typer.Option(help="Read the payload from this file, as bytes.")]
AsJson = Annotated[bool, typer.Option("--json", help="The payload is JSON.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--idempotency-key", "-k", help="Select by idempotency key; repeatable."),
]
Replace = Annotated[bool, typer.Option("--replace", help="Reuse the key if its message was cancelled.")]
KeyOnly = Annotated[
    bool,
    typer.Option("--key-only", help="Match by key only: treat a different message under it as this one."),
]

DELIVERY_COLUMNS = ("to", "filter", "state", "attempts", "retry_at", "reason")
_SHOWN = 60
"""Characters of a text that an error repeats."""
COLUMNS = ("id", "deliver_at", "state", "topic", "payload")


@command_of(app, kind=MessageOptions)
async def schedule(
    client: fasti.Client,
    out: Printer,
    topic: Topic = None,
    payload: Payload = None,
    file: File = None,
    as_json: AsJson = False,
    replace: Replace = False,
    key_only: KeyOnly = False,
    debounce: Annotated[
        str | None,
        typer.Option(metavar="WAIT,MOST", help="Due WAIT after the last one under the key: 30s,2m."),
    ] = None,
    **options: Unpack[MessageOptions],
) -> None:
    """Schedule one message; without --at or --in for now."""
    deliver_to = options.get("deliver_to")
    topic, content = sent_of(topic, payload, file, as_json, deliver_to)
    if payload is None and file is None and deliver_to is None:
        out.complain("there is no PAYLOAD, so the message is empty; give '' if that is meant")
    made = await client.messages.schedule(
        topic, content, replace=replace, key_only=key_only, debounce=_debounce_of(debounce), **options
    )
    replayed = {"replayed": True} if made.replayed else {}
    out.one({"id": made.id, "deliver_at": made.deliver_at, "state": made.state, **replayed})


@command_of(app, kind=MessageOptions)
async def put(
    client: fasti.Client,
    out: Printer,
    topic: Topic = None,
    payload: Payload = None,
    file: File = None,
    as_json: AsJson = False,
    cancelled: Annotated[bool, typer.Option("--cancel", help="Cancel the message under the key.")] = False,
    version: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Two integers: nothing changes if a higher or equal one is known."),
    ] = None,
    **options: Unpack[MessageOptions],
) -> None:
    """Make the message under --idempotency-key, or change or cancel it if it is pending.

    With --late drop and a time that has passed it is cancelled, and the state says so.
    """
    key, numbers = options.pop("key", None), None if version is None else _version_of(version)
    if key is None:
        raise ValueError("give --idempotency-key")
    named = client.messages.by_key(key)
    if cancelled:
        if topic is not None or file is not None or any(value is not None for value in options.values()):
            raise ValueError("--cancel goes with --idempotency-key and --version alone")
        is_cancelled = await named.cancel(strict=True, version=numbers)
        out.one({"key": key, "state": "cancelled"} if is_cancelled else {"key": key, "changed": False})
        return
    topic, content = sent_of(topic, payload, file, as_json, options.get("deliver_to"))
    left = await named.upsert(topic, content, version=numbers, **options)
    out.one({"id": left.id, "deliver_at": left.deliver_at, "state": left.state, "changed": left.changed})


def _debounce_of(text: str | None) -> tuple[str, str] | None:
    """Raises ValueError."""
    if text is None:
        return None
    wait, comma, most = text.partition(",")
    if not comma:
        raise ValueError(f"--debounce: give two spans, as 30s,2m, not {text[:_SHOWN]!r}")
    return wait.strip(), most.strip()


def _version_of(text: str) -> tuple[int, int]:
    """Raises ValueError."""
    try:
        first, second = map(int, text.split(","))
    except ValueError:
        raise ValueError(f"--version: give two integers, as 17,0, not {text[:_SHOWN]!r}") from None
    return first, second


@command_of(app, "show")
async def show(
    client: fasti.Client,
    out: Printer,
    message_id: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    key: Annotated[
        str | None, typer.Option("--idempotency-key", "-k", help="Select by idempotency key.")
    ] = None,
) -> None:
    """Show one message."""
    if message_id is not None and key is None:
        _show(out, await client.messages.get(message_id))
    elif key is not None and message_id is None:
        _show(out, await client.messages.by_key(key).get())
    else:
        raise ValueError("give an id, or --idempotency-key")


def _show(out: Printer, message: fasti.Message) -> None:
    """Print a message; a table has a line for each delivery behind it."""
    if out.format is not Format.table:
        out.one(message.raw)
        return
    deliveries = message.raw.get("deliveries", ())
    out.one({name: value for name, value in message.raw.items() if not name.startswith("deliveries")})
    if deliveries:
        out.text("")
        shown = [{"reason": one.get("withheld_by"), **one} for one in deliveries]
        out.many([{**one, "to": one.get("session") or one["group"]} for one in shown], DELIVERY_COLUMNS)
    if message.raw.get("deliveries_truncated"):
        out.errors.print("and more", style="dim")


@command_of(app)
async def why(
    client: fasti.Client, out: Printer, message_id: Annotated[str, typer.Argument(metavar="ID")]
) -> None:
    """Say what has happened to a message, and what it waits for."""
    told = await client.messages.why(message_id)
    if out.format is not Format.table:
        out.one({"sentences": told.sentences, "waits_for": told.waits_for})
        return
    for sentence in [*told.sentences, *([f"It waits for {told.waits_for}."] if told.waits_for else [])]:
        out.text(printable(sentence))


@command_of(app, "result")
async def result(
    client: fasti.Client,
    out: Printer,
    message_id: Annotated[str, typer.Argument(metavar="ID")],
    wait: Annotated[str, typer.Option(metavar="DURATION", help="Wait for it, at most 60 s.")] = "0",
    group: Annotated[str | None, typer.Option(help="Of this group, if several have one.")] = None,
) -> None:
    """Print the result that a worker has given of a message, as JSON. Exit code 1 if there is none."""
    out.line(await client.messages.result(message_id, wait=wait, group=group))


@command_of(app, kind=Selection)
async def cancel(
    client: fasti.Client,
    out: Printer,
    ids: Ids = None,
    keys: Keys = None,
    dry_run: DryRun = False,
    **chosen: Unpack[Selection],
) -> None:
    """Cancel messages by id or key, or all pending ones that --topic, --from and --to select.

    By id or key: exit code 1 if any was already dispatched.
    """
    if bool(ids or keys) == any(chosen.values()):
        raise ValueError("give ids, --idempotency-key, or --topic, --from and --to")
    if not (ids or keys):
        await cancel_where(client, out, dry_run=dry_run, **chosen)
        return
    if dry_run:
        raise ValueError("--dry-run goes with --topic, --from and --to")
    named: list[tuple[str, str, Callable[..., Awaitable[bool]]]]
    named = [("id", one, partial(client.messages.cancel, one)) for one in ids or ()]
    named += [("key", one, client.messages.by_key(one).cancel) for one in keys or ()]
    is_late = False
    for kind, name, cancel_ in named:
        try:
            await cancel_(strict=True)
            out.one({kind: name, "state": "cancelled"})
        except fasti.AlreadyDispatched as late:
            is_late = True
            _too_late(out, kind, name, late)
    if is_late:
        raise typer.Exit(REFUSED)


def _too_late(out: Printer, kind: str, name: str, late: fasti.AlreadyDispatched) -> None:
    """Explain what is left of a dispatched message, and which command ends it."""
    lines = [line for line in map(_left, late.deliveries) if line is not None]
    text = f"{name} was already dispatched"
    problem = {**(late.problem.raw or {}), "detail": text}  # which one, of several
    out.failed(": ".join([text, "; ".join(lines)]) if lines else text, problem)
    if any(one.get("state") in ("retry", "withheld") for one in late.deliveries):
        out.advise(shlex.join(["fasti", "retry", "drop", "--id" if kind == "id" else "-k", name]))


def _left(delivery: Row) -> str | None:
    """Who has it until when, or which try is next; None: nobody will get it from there."""
    group, topic_filter = delivery.get("group"), delivery.get("filter")
    who = f"group {group}" if group else f"session {delivery.get('session')}"
    who += f" ({topic_filter})" if topic_filter else ""
    match delivery.get("state"):
        case "in_flight":
            until = delivery.get("lease_until")
            return f"{who} has it" if until is None else f"{who} has it until {until}"
        case "retry":
            return f"{who} waits for try {(delivery.get('attempts') or 0) + 1} at {delivery.get('retry_at')}"
        case "waiting":
            return f"{who} has not read it yet"
        case "withheld":
            return f"{who} gets it when its sender may send it: {delivery.get('withheld_by', 'now')}"
    return None


@command_of(app, kind=Due)
async def move(
    client: fasti.Client, out: Printer, ids: Ids = None, keys: Keys = None, **when: Unpack[Due]
) -> None:
    """Move messages to another time, by id or key; their ids and keys stay."""
    if not (ids or keys):
        raise ValueError("give ids, or --idempotency-key")
    for message_id in ids or ():
        _print_moved(out, await client.messages.reschedule(message_id, **when))
    for key in keys or ():
        _print_moved(out, await client.messages.by_key(key).reschedule(**when))


Noun("message", "id", str, COLUMNS).add(app, Verb("ls", "List messages in order of time.", chosen=Listed))


@command_of(app, "count", kind=Listed)
async def count_(client: fasti.Client, out: Printer, **chosen: Unpack[Listed]) -> None:
    """Count messages, exactly."""
    out.count(await client.messages.count(**chosen))


def _print_moved(out: Printer, moved: fasti.Message) -> None:
    out.one({"id": moved.id, "deliver_at": moved.deliver_at, "state": moved.state})


def sent_of(
    topic: str | None, text: str | None, file: Path | None, as_json: bool, deliver_to: str | None
) -> tuple[str, Any]:
    """Topic and payload. With --deliver-to a text that stands alone is the payload. Raises ValueError."""
    if deliver_to is not None and text is None and file is None:
        topic, text = None, topic
    data: str | bytes = text or ""
    if file is not None:
        if text:
            raise ValueError("give a payload or --file, not both")
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ValueError(f"--file: {error}") from error
    return topic or "", _json_of(data, file) if as_json else data


def _json_of(data: str | bytes, file: Path | None) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        which = file or repr(data if len(data) <= _SHOWN else f"{str(data)[:_SHOWN]}...")
        raise ValueError(f"--json: {which} is not JSON: {error}") from error


app.command("import")(import_)
app.command("export")(export)
app.command("shift")(shift)
