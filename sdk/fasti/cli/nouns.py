"""Commands that are one call of the SDK: a table of verbs for each noun.

    group = Noun("group", "name", Name, COLUMNS, _row).app(
        Verb("ls", "List groups."),
        Verb("replay", "Set a group back, so that it gets messages again.", (SINCE, FILTER)),
    )

A verb calls the method of `client.groups` that has its name, with the options as arguments. It prints the
answer: a list, one object, or for `rm` that it is removed.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import typer

import fasti

from .entries import Count, Limit
from .options import command
from .output import Format, Printer, Row
from .run import REFUSED

METHODS = {"ls": "list", "show": "get", "rm": "delete"}
"""Verb -> method, where their names differ."""

NEEDED = inspect.Parameter.empty
"""The default of an argument that has none."""


def option(name: str, kind: Any, default: Any = None) -> inspect.Parameter:
    """An option or argument of a verb; `kind`: its typer annotation."""
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)


LISTED = (option("limit", Limit), option("count", Count, default=False))
"""Of every list."""


class Verb(NamedTuple):
    """One command. `method`: of the SDK, if it is not in METHODS."""

    word: str
    help: str
    options: tuple[inspect.Parameter, ...] = ()
    method: str = ""
    columns: Sequence[str] = ()
    """Of its table, if they are not the noun's."""


@dataclass(frozen=True, slots=True)
class Noun:
    """`fasti {word}`. `key`: the SDK's word for the name of one; `kind`: its argument, as typer reads it."""

    word: str
    key: str
    kind: Any
    columns: Sequence[str]
    row: Callable[[Row], Row] = dict
    """Makes a row of a table."""

    def app(self, *verbs: Verb) -> typer.Typer:
        """The noun with these verbs."""
        app = typer.Typer(no_args_is_help=True)
        name = option(self.key, self.kind, NEEDED)
        for verb in verbs:
            options = LISTED if verb.word == "ls" else (name, *verb.options)
            app.command(verb.word, help=verb.help)(command(partial(self._call, verb), options))
        return app

    async def _call(self, verb: Verb, client: fasti.Client, out: Printer, **given: Any) -> None:
        method = getattr(getattr(client, f"{self.word}s"), verb.method or METHODS.get(verb.word, verb.word))
        if verb.word == "ls":
            await self._list(out, method(), **given)
            return
        name = given.pop(self.key)
        try:
            called = method(name, **given)
            found = tuple([one async for one in called]) if hasattr(called, "__aiter__") else await called
        except fasti.StillUndone as left:
            out.failed(f"{name} has unfinished messages: {left.undone}", left.problem.raw or {})
            which = ["--filter", given["filter"]] if given.get("filter") else []
            remove = ["fasti", self.word, "rm", name, *which, "--undone"]
            out.advise(*(shlex.join([*remove, fate]) for fate in ("dead", "drop")))
            raise typer.Exit(REFUSED) from left
        if found is None:
            out.one({self.key: name, "state": "removed"})
        elif not isinstance(found, tuple):
            self._one(out, found if isinstance(found, dict) else found.raw)
        elif verb.word == "show" and out.format is Format.table:
            for one in found:
                self._one(out, one.raw)
        else:
            self._many(out, [one.raw for one in found], verb.columns)

    async def _list(self, out: Printer, found: AsyncIterator[Any], limit: int | None, count: bool) -> None:
        rows: list[Row] = []
        async for one in found:
            if len(rows) == limit and not count:
                break
            rows.append(one.raw)
        out.count(len(rows)) if count else self._many(out, rows)

    def _one(self, out: Printer, raw: Row) -> None:
        out.one(self.row(raw) if out.format is Format.table else raw)

    def _many(self, out: Printer, found: list[Row], columns: Sequence[str] = ()) -> None:
        rows = [self.row(raw) for raw in found] if out.format is Format.table else found
        out.many(rows, columns or self.columns)
