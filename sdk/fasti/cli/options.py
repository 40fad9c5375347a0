"""The options of the SDK's calls as options of the command line, each declared once.

A command takes them as a call does, and `with_client` tells typer which they are:

    @app.command()
    @with_client(Selection)
    async def shift(client: fasti.Client, out: Printer, by: str, **chosen: Unpack[Selection]) -> None:

so `--topic`, `--from` and `--to` come to the client under its own names for them. Times and spans stay text:
what they mean is for the server to say.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Annotated, Any, get_args

import typer

from fasti.options import Gap, Misfire, Overlap, State
from fasti.wire import KeyScope, Late

from .run import run

Command = Callable[..., None]
Work = Callable[..., Awaitable[None]]


def _one_of(name: str, words: Any) -> Any:
    """An enumeration of a Literal's words: all supported versions of typer know these."""
    return Enum(name, {word: word for word in get_args(words)}, type=str)


DECLARED: dict[str, Any] = {
    # Due
    "at": Annotated[
        str | None,
        typer.Option("--at", help="RFC 3339, or local time with zone: 2027-03-28T09:00[Europe/Bucharest]"),
    ],
    "delay": Annotated[
        str | None, typer.Option("--in", help="Delay by the server's clock: 15m, 90s, PT15M.")
    ],
    # Timing
    "cron": Annotated[
        str | None, typer.Option(help="Cron: 5 fields, 6 with seconds first, or a macro such as @daily.")
    ],
    "every": Annotated[str | None, typer.Option(help="Elapsed time between fires: 90s, PT15M.")],
    "rrule": Annotated[str | None, typer.Option("--rrule", help="RFC 5545: FREQ=MONTHLY;BYDAY=-1FR.")],
    "timezone": Annotated[str | None, typer.Option("--timezone", "-z", help="Europe/Bucharest, UTC.")],
    "start": Annotated[str | None, typer.Option(help="No fire before this instant.")],
    "end": Annotated[str | None, typer.Option(help="No fire after this instant.")],
    "limit": Annotated[int | None, typer.Option(min=1, help="Maximum number of fires.")],
    "jitter": Annotated[
        str | None, typer.Option(help="Maximum random delay of a fire, fixed for each fire.")
    ],
    "gap": Annotated[
        _one_of("Gap", Gap) | None,
        typer.Option(help="If the local time does not exist (DST). Default: after."),
    ],
    "overlap": Annotated[
        _one_of("Overlap", Overlap) | None,
        typer.Option(help="If the local time exists twice (DST). Default: first."),
    ],
    "misfire": Annotated[
        _one_of("Misfire", Misfire) | None,
        typer.Option(help="For fires missed while the server was down. Default: fire_once."),
    ],
    # of a message
    "key": Annotated[str | None, typer.Option("--idempotency-key", "-k")],
    "key_scope": Annotated[
        _one_of("KeyScope", KeyScope) | None,
        typer.Option(help="How long the key stays taken; pending: until nothing is undone."),
    ],
    "qos": Annotated[int | None, typer.Option(min=0, max=2)],
    "retain": Annotated[bool | None, typer.Option("--retain")],
    "expires_in": Annotated[str | None, typer.Option(help="Drop the message when it is this long past due.")],
    "late": Annotated[
        _one_of("Late", Late) | None, typer.Option(help="If the time has already passed. Default: deliver.")
    ],
    "spread": Annotated[str | None, typer.Option(help="Let the server choose the time within this span.")],
    "headers": Annotated[list[str] | None, typer.Option("--header", "-H", help="NAME=VALUE, repeatable.")],
    "content_type": Annotated[str | None, typer.Option()],
    "deliver_to": Annotated[
        str | None, typer.Option(help="Webhook target: an https URL or an endpoint name.")
    ],
    "ordering_key": Annotated[str | None, typer.Option(help="What the message belongs to: a customer.")],
    # Selection
    "topic": Annotated[str | None, typer.Option(help="Topic filter.")],
    "due_from": Annotated[
        str | None, typer.Option("--from", "--due-from", help="Due at or after this instant.")
    ],
    "due_to": Annotated[str | None, typer.Option("--to", "--due-to", help="Due before this instant.")],
    # Kept, DeadSelection
    "group": Annotated[str | None, typer.Option(help="A group or client id, or $share/GROUP/FILTER.")],
    "died_from": Annotated[str | None, typer.Option("--from", help="Died at or after this instant.")],
    "died_to": Annotated[str | None, typer.Option("--to", help="Died before this instant.")],
    # RetrySelection
    "reason": Annotated[str | None, typer.Option(help="Text that the reason contains.")],
    "id": Annotated[str | None, typer.Option("--id", help="Message id.")],
    "retry_from": Annotated[str | None, typer.Option("--from", help="Tried at or after this instant.")],
    "retry_to": Annotated[str | None, typer.Option("--to", help="Tried before this instant.")],
    "state": Annotated[_one_of("State", State) | None, typer.Option(help="Default: pending.")],
}
"""By name in `fasti.options`, in the order of `--help`."""


def with_client(kind: Any = None, **other: Any) -> Callable[[Work], Command]:
    """Make a command of `async def work(client, out, ...)`; `kind`: a TypedDict of `fasti.options` with its
    `**options`; `other`: options that this command spells another way.

    Raises KeyError, when the module is imported, for an option that is not declared here.
    """
    order = {name: n for n, name in enumerate(DECLARED)}
    names = sorted(kind.__optional_keys__, key=order.__getitem__) if kind else []
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name in names
        for annotation in (other.get(name, DECLARED[name]),)
    ]

    def declared(work: Work) -> Command:
        # The types of the first two stay unread: the client's would be imported.
        work.__annotations__ |= dict.fromkeys([*inspect.signature(work).parameters][:2], Any)
        _, _, *own = inspect.signature(work, eval_str=True).parameters.values()
        return command(work, [*(p for p in own if p.kind is not p.VAR_KEYWORD), *more])

    return declared


def command(work: Work, parameters: Sequence[inspect.Parameter]) -> Command:
    """A command that opens a client and does `work(client, out, **given)`; its options are the parameters."""

    @functools.wraps(work)
    def call(context: typer.Context, **given: Any) -> None:
        given = {n: v.value if isinstance(v, Enum) else v for n, v in given.items()}
        if given.get("headers"):
            given["headers"] = headers_of(given["headers"])
        run(context, lambda client, out: work(client, out, **given))

    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    vars(call)["__signature__"] = inspect.Signature([first, *parameters])
    call.__annotations__ = {p.name: p.annotation for p in (first, *parameters)}
    return call


def headers_of(pairs: list[str]) -> dict[str, str]:
    """The headers of NAME=VALUE texts. Raises BadParameter."""
    headers: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"must be NAME=VALUE, not {pair!r}", param_hint="--header")
        headers[name] = value
    return headers
