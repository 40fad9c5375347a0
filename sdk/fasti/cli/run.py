"""Runs a command: open a client, run, report errors, exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import typer

import fasti

from .output import Format, Printer, Row

REFUSED, USAGE, UNREACHABLE = 1, 2, 3
_REFUSED = ("refused", "Refused")
_OWN = {
    USAGE: ("usage", "Invalid arguments"),
    UNREACHABLE: ("unreachable", "Server not reachable"),
}
"""Maps exit codes to a problem's slug and title, for errors raised on the client."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Global options combined with the profile."""

    url: str | None
    key: str | None
    mqtt: str | None
    output: Format
    wide: bool = False


Work = Callable[[fasti.Client, Printer], Awaitable[None]]


def run(context: typer.Context, work: Work) -> None:
    """Run `work` with a client and a printer; exit 1, 2 or 3 when it fails."""
    settings = context.find_object(Settings)
    assert settings is not None
    printer = Printer(settings.output, wide=settings.wide)
    try:
        asyncio.run(_with_client(settings, work, printer))
    except fasti.Unreachable as error:
        raise _failed(printer, error, UNREACHABLE) from error
    except fasti.Error as error:
        raise _failed(printer, error, REFUSED) from error
    except (ValueError, TypeError) as error:
        raise _failed(printer, error, USAGE) from error
    except BrokenPipeError as error:  # `| head`
        raise typer.Exit(0) from error


async def _with_client(settings: Settings, work: Work, printer: Printer) -> None:
    retry = fasti.Retry(attempts=3)
    async with fasti.Client(settings.url, key=settings.key, mqtt=settings.mqtt, retry=retry) as client:
        await work(client, printer)


def _failed(printer: Printer, error: Exception, code: int) -> typer.Exit:
    printer.failed(str(error), problem_document(error, code))
    return typer.Exit(code)


def problem_document(error: Exception, code: int) -> Row:
    """The server's problem as it came, or one of our own: `/problems/usage`, `/problems/unreachable`."""
    if isinstance(error, fasti.Error) and error.problem.raw:
        return error.problem.raw
    slug, title = _OWN.get(code, _REFUSED)
    return {"type": f"/problems/{slug}", "title": title, "detail": str(error)}
