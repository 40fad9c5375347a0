"""`fasti subscribe FILTER`: print each arrival, with its lateness, and ack it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, cast

import typer

import fasti
from fasti.wire import Qos, put_payload

from .output import Format, Printer, payload_text, printable
from .run import run


def subscribe(
    context: typer.Context,
    topic_filter: Annotated[str, typer.Argument(metavar="FILTER")],
    session: Annotated[
        str | None, typer.Option(help="Persistent session with this name: continue where it stopped.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Shared subscription with this name: each message goes to one member.")
    ] = None,
    expiry: Annotated[
        str | None, typer.Option(help="How long the group stays without members: 2d, never.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many messages.")
    ] = None,
    qos: Annotated[int, typer.Option(min=0, max=2)] = 1,
    replay_from: Annotated[
        str | None, typer.Option(help="Start of a new subscription: an instant, or a duration back (PT1H).")
    ] = None,
) -> None:
    """Receive messages until Ctrl-C, or until --count."""
    if session is not None and group is not None:
        raise typer.BadParameter("give --session or --group, not both")
    if expiry is not None and group is None:
        raise typer.BadParameter("is only for groups", param_hint="--expiry")

    async def work(client: fasti.Client, out: Printer) -> None:
        received = 0
        async with client.subscribe(
            topic_filter,
            session=session,
            group=group,
            qos=cast("Qos", qos),
            replay_from=replay_from,
            expiry=expiry,
        ) as deliveries:
            if out.format is Format.table:
                out.errors.print(f"subscribed to {topic_filter}", markup=False, style="dim")
            async for delivery in deliveries:
                _show(out, delivery)
                if not await delivery.ack():
                    out.complain("not acked, as the connection was lost: the message may come again")
                received += 1
                if received == count:
                    return

    try:
        run(context, work)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _show(out: Printer, delivery: fasti.Delivery) -> None:
    if out.format is not Format.table:
        out.line(_object(delivery))
        return
    late = "" if delivery.lateness is None else f"  +{delivery.lateness.total_seconds() * 1000:.1f} ms"
    again = f"  attempt {delivery.attempt}" if delivery.attempt > 1 else ""
    now = datetime.now(UTC).strftime("%H:%M:%S.%f")[:-3]
    out.cut(f"{now}{late}{again}  {printable(delivery.topic)}  {payload_text(delivery.payload)}")


def _object(delivery: fasti.Delivery) -> dict[str, Any]:
    late = delivery.lateness
    content: dict[str, Any] = {"payload": "", "encoding": "text"}
    try:
        put_payload(content, delivery.payload.decode())
    except UnicodeDecodeError:
        put_payload(content, delivery.payload)
    return {
        "id": delivery.id,
        "topic": delivery.topic,
        **content,
        "due": delivery.due,
        "late_ms": None if late is None else late.total_seconds() * 1000,
        "attempt": delivery.attempt,
        "schedule": delivery.schedule,
        "headers": dict(delivery.headers),
    }
