"""`fasti endpoint ...`: where messages with `deliver_to` are posted."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti
from fasti.options import RetryOptions

from .complete import endpoint_names
from .options import headers_of
from .output import Format, Printer
from .places import Expiry, Fate, Removing, Skipping, To, remove, shown, skip
from .run import run

app = typer.Typer(no_args_is_help=True)
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A-Z, a-z, 0-9, '.', '_', '-'.", autocompletion=endpoint_names),
]
COLUMNS = ("name", "url", "state", "concurrency", "rate", "timeout", "undone", "failing")


@app.command()
def ls(context: typer.Context) -> None:
    """List endpoints by name."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = [endpoint.raw async for endpoint in client.endpoints.list()]
        out.many([shown(raw) for raw in found] if out.format is Format.table else found, COLUMNS)

    run(context, work)


@app.command()
def put(
    context: typer.Context,
    name: Name,
    to: Annotated[str, typer.Argument(metavar="URL")],
    secret: Annotated[
        str | None, typer.Option(help="whsec_ and base64: what requests are signed with.")
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="NAME=VALUE, repeatable.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="So many requests at once.")] = None,
    rate: Annotated[float | None, typer.Option(help="So many requests a second.")] = None,
    timeout: Annotated[str | None, typer.Option(help="How long a request may take: 10s.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=0, help="Tries before it is a dead letter.")] = None,
    backoff: Annotated[
        str | None, typer.Option(help="How long to wait after each try: 1s,30s,5m; the last one repeats.")
    ] = None,
    expiry: Expiry = None,
) -> None:
    """Make an endpoint, or change it in place."""

    async def work(client: fasti.Client, out: Printer) -> None:
        retry = RetryOptions(max_attempts=max_attempts, backoff=backoff.split(",") if backoff else None)
        made = await client.endpoints.put(
            name,
            to,
            secret=secret,
            headers=headers_of(headers) if headers else None,
            concurrency=concurrency,
            rate=rate,
            timeout=timeout,
            retry=retry if any(value is not None for value in retry.values()) else None,
            expiry=expiry,
        )
        out.one(made.raw)

    run(context, work)


@app.command()
def show(context: typer.Context, name: Name) -> None:
    """Show one endpoint."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.endpoints.get(name)).raw)

    run(context, work)


@app.command()
def pause(context: typer.Context, name: Name) -> None:
    """Post nothing; its place stays."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.endpoints.pause(name)).raw)

    run(context, work)


@app.command()
def resume(context: typer.Context, name: Name) -> None:
    """Go on where it stood."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.endpoints.resume(name)).raw)

    run(context, work)


@app.command()
def replay(
    context: typer.Context,
    name: Name,
    since: Annotated[str, typer.Option("--from", help="An instant, or how far back (PT1H).")],
) -> None:
    """Set an endpoint back, so that it is posted messages again."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.endpoints.replay(name, since)).raw)

    run(context, work)


@app.command()
def test(context: typer.Context, name: Name) -> None:
    """Have the server post a message for trial now, and say what came of it."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one(await client.endpoints.test(name))

    run(context, work)


@app.command(name="skip")
def skip_(context: typer.Context, name: Name, to: To = "now", undone: Skipping = Fate.dead) -> None:
    """Leave the backlog of an endpoint behind."""

    async def work(client: fasti.Client, out: Printer) -> None:
        await skip(out, client.endpoints.skip(name, to, undone.value))

    run(context, work)


@app.command()
def rm(context: typer.Context, name: Name, undone: Removing = None) -> None:
    """Forget an endpoint and its place."""

    async def work(client: fasti.Client, out: Printer) -> None:
        deletion = client.endpoints.delete(name, undone=None if undone is None else undone.value)
        await remove(out, name, deletion, ["fasti", "endpoint", "rm", name])

    run(context, work)
