"""Runs a command: open a client, run, report errors, exit code."""

from __future__ import annotations

import gc
import os
import re
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import typer

import fasti

from .output import Format, Printer, Row
from .profiles import Profile

REFUSED, USAGE, UNREACHABLE = 1, 2, 3
_REFUSED = ("refused", "Refused")
_OWN = {
    USAGE: ("usage", "Invalid arguments"),
    UNREACHABLE: ("unreachable", "Server not reachable"),
}
"""Maps exit codes to a problem's slug and title, for errors raised on the client."""


_NAME = re.compile(r"(?:\w+\.)?(\w+)(?=:? )")
_QUOTED = re.compile(r"`(\w+)`")
_FIELDS = {"deliver_in": "delay", "deliver_at": "at", "shift": "by", "from": "since"}
"""Names of the server's fields that are not those of the SDK."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Global options; `server`: combined with the profile. The command line as it was given."""

    server: Profile
    output: Format
    wide: bool = False
    arguments: Sequence[str] = ()


Work = Callable[["fasti.Client", Printer], Awaitable[None]]  # as text: help needs no client


def run(context: typer.Context, work: Work) -> None:
    """Run `work` with a client and a printer; exit 1, 2 or 3 when it fails."""
    settings = context.find_object(Settings)
    assert settings is not None
    printer = Printer(settings.output, wide=settings.wide)
    _import_client()
    import asyncio  # not before there is work: help needs none

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda warning, *_, **__: printer.complain(str(warning))
            asyncio.run(_with_client(settings, work, printer))
    except fasti.Unreachable as error:
        raise _failed(printer, context, error, UNREACHABLE) from error
    except fasti.Error as error:
        raise _failed(printer, context, error, REFUSED) from error
    except (ValueError, TypeError) as error:
        raise _failed(printer, context, error, USAGE) from error
    except BrokenPipeError as error:  # `| head`
        raise typer.Exit(0) from error


def _import_client() -> None:
    """Import aiohttp without the system's CAs: it would read them twice, a seventh of a command's time.

    The client does not use that context: `tls` makes its own where an address has TLS.
    """
    hidden = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    os.environ |= dict.fromkeys(hidden, os.devnull)
    try:
        import_module("aiohttp")
    finally:
        for name, value in hidden.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


async def _with_client(settings: Settings, work: Work, printer: Printer) -> None:
    async with settings.server.client(fasti.Retry(attempts=3), printer.complain) as client:
        gc.freeze()
        gc.enable()
        await work(client, printer)


def _failed(printer: Printer, context: typer.Context, error: Exception, code: int) -> typer.Exit:
    printer.failed(as_typed(context, str(error)), problem_document(error, code))
    return typer.Exit(code)


def as_typed(context: typer.Context, text: str) -> str:
    """The text of an error, with what was typed in place of the arguments that it opens with or quotes.

    `deliver_in: '5 moons' is not a delay` becomes `--in: '5 moons' is not a delay`.
    """
    if text.startswith("per_key."):
        text = text.replace(".", "_", 1)  # of a mapping of the SDK, an option for each member
    named = _NAME.match(text)
    source = context.get_parameter_source(_FIELDS.get(named[1], named[1])) if named else None
    if named and source and source.name == "COMMANDLINE":
        text = _typed(context, named[1]) + text[named.end() :]
    return _QUOTED.sub(lambda quoted: _typed(context, quoted[1]), text)


def _typed(context: typer.Context, name: str) -> str:
    """The option for that argument or field, as it was typed; its first name if it was not."""
    name = _FIELDS.get(name, name)
    settings = context.find_object(Settings)
    option = next((each for each in context.command.params if each.name == name), None)
    if settings is None or option is None:
        return name
    typed = (one for argument in settings.arguments for one in option.opts if _is_option(argument, one))
    return next(typed, option.opts[0] if option.opts[0].startswith("-") else name.upper())


def _is_option(argument: str, option: str) -> bool:
    """Whether an argument as it was typed is that option: `--in`, `--in=5m`, `-z`, `-zUTC`."""
    if option.startswith("--"):
        return argument.partition("=")[0] == option
    return argument.startswith(option) and not argument.startswith("--")


def problem_document(error: Exception, code: int) -> Row:
    """The server's problem as it came, or one of our own: `/problems/usage`, `/problems/unreachable`."""
    if isinstance(error, fasti.Error) and error.problem.raw:
        return error.problem.raw
    slug, title = _OWN.get(code, _REFUSED)
    return {"type": f"/problems/{slug}", "title": title, "detail": str(error)}
