"""The options of the SDK's calls as options of the command line, each declared once.

A command takes them as a call does, and `command_of` tells typer which they are:

    @command_of(app, kind=Selection)
    async def shift(client: fasti.Client, out: Printer, by: str, **chosen: Unpack[Selection]) -> None:

so `--topic`, `--from` and `--to` come to the client under its own names for them. Times and spans stay text:
what they mean is for the server to say.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from fasti.options import Body, Gap, Misfire, OnDead, Outcome, Overlap, State
from fasti.wire import KeyScope, Late

from .run import run

Command = Callable[..., None]
Work = Callable[..., Awaitable[None]]


_TEXTS: dict[str, tuple[str, ...]] = {
    # Due
    "at": ("RFC 3339, or local time with zone: 2027-03-28T09:00[Europe/Bucharest]",),
    "delay": ("--in", "Delay by the server's clock: 15m, 90s, PT15M."),
    # Timing
    "cron": ("Cron: 5 fields, 6 with seconds first, or a macro such as @daily.",),
    "every": ("Elapsed time between fires: 90s, PT15M.",),
    "rrule": ("RFC 5545: FREQ=MONTHLY;BYDAY=-1FR.",),
    "timezone": ("--timezone", "-z", "Europe/Bucharest, UTC."),
    "start": ("No fire before this instant.",),
    "end": ("No fire after this instant.",),
    "limit": ("Maximum number of fires.",),
    "jitter": ("Maximum random delay of a fire, fixed for each fire.",),
    "gap": ("If the local time does not exist (DST). Default: after.",),
    "overlap": ("If the local time exists twice (DST). Default: first.",),
    "misfire": ("For fires missed while the server was down. Default: fire_once.",),
    # of a message
    "key": ("--idempotency-key", "-k", ""),
    "key_scope": ("How long the key stays taken; pending: until nothing is undone.",),
    "qos": ("",),
    "retain": ("--retain", ""),
    "expires_in": ("Drop the message when it is this long past due.",),
    "late": ("If the time has already passed. Default: deliver.",),
    "spread": ("Let the server choose the time within this span.",),
    "headers": ("--header", "-H", "NAME=VALUE, repeatable."),
    "content_type": ("",),
    "deliver_to": ("Webhook target: an https URL or an endpoint name.",),
    "ordering_key": ("What the message belongs to: a customer.",),
    # Selection
    "topic": ("Topic filter.",),
    "due_from": ("--from", "--due-from", "Due at or after this instant."),
    "due_to": ("--to", "--due-to", "Due before this instant."),
    # Kept, DeadSelection
    "group": ("A group or client id, or $share/GROUP/FILTER.",),
    "died_from": ("--from", "Died at or after this instant."),
    "died_to": ("--to", "Died before this instant."),
    # RetrySelection
    "reason": ("Text that the reason contains.",),
    "id": ("Message id.",),
    "retry_from": ("--from", "Tried at or after this instant."),
    "retry_to": ("--to", "Tried before this instant."),
    "state": ("Default: pending.",),
    "outcome": ("What has become of it.",),
    # of a group or endpoint
    "ack_timeout": ("A message not acked for this time goes to another member.",),
    "secret": ("Signing secret: whsec_ and base64.",),
    "concurrency": ("Maximum concurrent requests.",),
    "timeout": ("Request timeout: 10s.",),
    "body": ("Body of the request.",),
    "rate": ("Maximum rate: 10 a second, 100/m, 5/h.",),
    "order": ("--order/--no-order", "Order messages by ordering key."),
    "on_dead": ("What a dead letter does to its ordering key.",),
    "per_key_concurrency": ("Maximum messages of an ordering key at a time.",),
    "per_key_rate": ("Maximum rate of an ordering key: 10 a second, 100/m, 5/h.",),
    "fair": ("--fair/--no-fair", "Ordering keys take turns."),
    "keep": ("Finished deliveries that keep their story: failed (the default), all, none, or all for 2d.",),
    "result_ttl": ("How long results are kept. Default: 1h.",),
    "alerts": ("Endpoint that is told of dead letters and withheld messages.",),
    "max_attempts": ("Attempts before a message becomes a dead letter; 0: no limit.",),
    "backoff": ("Waits after failed attempts: 1s,30s,5m; the last one repeats.",),
}
"""By name in `fasti.options`, in the order of `--help`: other names than that, and the help."""
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("retain", "order", "fair"), bool),
    **dict.fromkeys(("limit", "qos", "concurrency", "per_key_concurrency", "max_attempts"), int),
    "headers": list[str],
    "gap": Gap,
    "overlap": Overlap,
    "misfire": Misfire,
    "key_scope": KeyScope,
    "late": Late,
    "state": State,
    "outcome": Outcome,
    "body": Body,
    "on_dead": OnDead,
}
_LEAST = {"limit": 1, "qos": 0, "concurrency": 1, "per_key_concurrency": 1, "max_attempts": 0}


def one_of(name: str, words: Iterable[str]) -> Any:
    """An enumeration of these words: all supported versions of typer know one."""
    return Enum(name, {word: word for word in words}, type=str)


def _declared(name: str) -> Any:
    """An option as typer reads it."""
    *flags, text = _TEXTS[name]
    kind = _KINDS.get(name, str)
    kind = one_of(name, get_args(kind)) if get_origin(kind) is Literal else kind
    most = 2 if name == "qos" else None
    return Annotated[kind | None, typer.Option(*flags, min=_LEAST.get(name), max=most, help=text or None)]


Expiry = Annotated[
    str | None, typer.Option(help="How long it stays without members: 2d, or never (the default).")
]
DECLARED = {**{name: _declared(name) for name in _TEXTS}, "expiry": Expiry}


def options_of(kind: Any, **other: Any) -> list[inspect.Parameter]:
    """The options in a TypedDict of `fasti.options`; `other`: those that a command spells another way.

    Raises KeyError, when the module is imported, for an option that is not declared here.
    """
    order = {name: n for n, name in enumerate(DECLARED)}
    names = sorted(kind.__optional_keys__, key=order.__getitem__) if kind else []
    declared = DECLARED | other
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=declared[name])
        for name in names
    ]


def with_client(kind: Any = None) -> Callable[[Work], Command]:
    """Make a command of `async def work(client, out, ...)`; `kind`: of its `**options`."""

    def declared(work: Work) -> Command:
        # The types of the first two stay unread: the client's would be imported.
        work.__annotations__ |= dict.fromkeys([*inspect.signature(work).parameters][:2], Any)
        _, _, *own = inspect.signature(work, eval_str=True).parameters.values()
        return command(work, [*(p for p in own if p.kind is not p.VAR_KEYWORD), *options_of(kind)])

    return declared


def command_of(app: typer.Typer, name: str | None = None, kind: Any = None) -> Callable[[Work], Command]:
    """`with_client`, and the command is added to the app."""
    return lambda work: app.command(name)(with_client(kind)(work))


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
