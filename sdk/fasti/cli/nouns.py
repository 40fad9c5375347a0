"""Commands that are one call of the SDK: a table of verbs for each noun.

    group = Noun("group", "name", Name, COLUMNS, _row).app(
        Verb("ls", "List groups."),
        Verb("replay", "Set a group back, so that it gets messages again.", (SINCE, FILTER)),
    )

A verb calls the method of `client.groups` that has its name, with the options as arguments. It prints the
answer: a list, one object, or for `rm` that it is removed. A verb with `chosen` lists what these options
select, or changes that, or what is named by id, and prints the numbers.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

import fasti

from .options import command, one_of, options_of
from .output import Format, Printer, Row
from .ranges import DryRun
from .run import REFUSED

METHODS = {"ls": "list", "show": "get", "rm": "delete", "try": "try_"}
"""Verb -> method, where their names differ."""

NEEDED = inspect.Parameter.empty
"""The default of an argument that has none."""
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of results.")]
Count = Annotated[bool, typer.Option("--count", help="Print only how many there are.")]


def option(name: str, kind: Any, default: Any = None) -> inspect.Parameter:
    """An option or argument of a verb; `kind`: its typer annotation."""
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)


def text(name: str, flag: str, help: str, default: Any = None, words: str = "") -> inspect.Parameter:  # noqa: A002
    """An option of a verb that takes text, or one of these words."""
    kind = one_of(name, words.split()) if words else str
    default = kind(default) if words and default else default
    return option(
        name, Annotated[kind | None if default is None else kind, typer.Option(flag, help=help)], default
    )


class Verb(NamedTuple):
    """One command."""

    word: str
    help: str
    options: tuple[inspect.Parameter, ...] = ()
    method: str = ""
    """Of the SDK, if it is not in METHODS."""
    columns: Sequence[str] = ()
    """Of its table, if they are not the noun's."""
    chosen: Any = None
    """A TypedDict of `fasti.options`."""
    others: Mapping[str, Any] = {}
    """Those of its options that this command spells another way."""
    names: Mapping[str, str] = {}
    """Options -> arguments of the SDK, where their names differ."""


@dataclass(frozen=True, slots=True)
class Noun:
    """`fasti {word}`. `key`: the SDK's word for the name of one; `kind`: its argument, as typer reads it."""

    word: str
    key: str
    kind: Any
    columns: Sequence[str]
    row: Callable[[Row], Row] = dict
    """Makes a row of a table."""
    part: str = ""
    """Of the client, if it is not the plural."""
    missing: str = ""
    """What to say, with exit code 1, of a name that has nothing."""

    def app(self, *verbs: Verb) -> typer.Typer:
        """The noun with these verbs."""
        app = typer.Typer(no_args_is_help=True)
        for verb in verbs:
            self.add(app, verb)
        return app

    def add(self, app: typer.Typer, verb: Verb) -> None:
        """Add a verb."""
        most = None if verb.chosen is None else 100
        if verb.word == "ls":
            own = [option("limit", Limit, most), option("count", Count, default=False)]
        elif verb.chosen is None:
            own = [option(self.key, self.kind, NEEDED), *verb.options]
        else:
            own = [option("ids", Ids), *verb.options, option("dry_run", DryRun, default=False)]
        parameters = [*own, *options_of(verb.chosen, **verb.others)]
        app.command(verb.word, help=verb.help)(command(partial(self._call, verb), parameters))

    async def _call(self, verb: Verb, client: fasti.Client, out: Printer, **given: Any) -> None:
        calls = getattr(client, self.part or f"{self.word}s")
        method = getattr(calls, verb.method or METHODS.get(verb.word, verb.word))
        given = {verb.names.get(name, name): value for name, value in given.items()}
        if verb.word == "ls":
            await self._list(out, calls, **given)
        elif verb.chosen is not None:
            chosen = [given[name] for name in verb.chosen.__optional_keys__]
            if not given["ids"] and not any(chosen):
                raise ValueError("give ids, or at least one option that selects, such as --group and --topic")
            done = await method(given.pop("ids") or None, **given)
            out.one({"matched": done.matched, "changed": done.changed})
        else:
            await self._one_of(out, verb, method, given.pop(self.key), given)

    async def _list(self, out: Printer, calls: Any, limit: int | None, count: bool, **chosen: Any) -> None:
        if chosen and count:
            out.count(await calls.count(**chosen))
            return
        rows: list[Row] = []
        async for one in calls.list(limit=limit, **chosen) if chosen else calls.list():
            if len(rows) == limit and not count:
                break
            if chosen and out.format is Format.ndjson:
                out.line(one.raw)
            else:
                rows.append(one.raw)
        if count:
            out.count(len(rows))
        elif not chosen or out.format is not Format.ndjson:
            self._many(out, rows)

    async def _one_of(
        self, out: Printer, verb: Verb, method: Callable[..., Any], name: str, given: Mapping[str, Any]
    ) -> None:
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
        elif self.missing and not found:
            out.complain(self.missing.format(name))
            raise typer.Exit(REFUSED)
        elif self.missing or (verb.word == "show" and out.format is Format.table):
            for one in found:
                self._one(out, one.raw)
        else:
            self._many(out, [one.raw for one in found], verb.columns)

    def _one(self, out: Printer, raw: Row) -> None:
        out.one(raw, self.row(raw) if out.format is Format.table else None)

    def _many(self, out: Printer, found: list[Row], columns: Sequence[str] = ()) -> None:
        rows = [self.row(raw) for raw in found] if out.format is Format.table else found
        out.many(rows, columns or self.columns)
