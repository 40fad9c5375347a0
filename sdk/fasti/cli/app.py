"""The root command: global options, and the nouns under it.

Global options may stand anywhere (`fasti message ls -o json`), as people write them; they are moved to the
front before parsing. What follows `--` stays where it is.

A noun's commands are imported when one of them is asked for: `fasti --help` reads no client, and a call reads
only what it needs.
"""

from __future__ import annotations

import copy
import re
import sys
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

import fasti
from fasti.signatures import ours_for

from .output import Format, Printer
from .profiles import Profile, ProfileError, settled
from .run import USAGE, Settings, problem_document
from .subscribe import subscribe
from .work import work

_GLOBAL = ("--url", "--server", "--key", "--mqtt", "--ca", "--cert", "--profile", "--output", "-o")
_FLAGS = ("--wide", "--allow-plain", "--json")
_OWN = {
    **dict.fromkeys(("message schedule", "message put", "schedule put"), "--json"),
    "dead ls": "--key",
}
"""Commands that give a global option another meaning when it follows them."""
_WRONG_USAGE = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""Base class of parsing errors: ClickException, of click or of typer's own copy."""
_PARSERS_OWN = "Value error, "
"""Prefix of the reason in some versions of typer."""

_NO_COMMAND = re.compile(r"No such command '([^']*)'")
_THEIRS = {
    **dict.fromkeys(("list", "find", "query"), "ls"),
    **dict.fromkeys(("delete", "remove", "del", "drop"), "rm drop cancel"),
    **dict.fromkeys(("create", "add", "set", "update", "new"), "put schedule"),
    **dict.fromkeys(("publish", "send", "pub", "enqueue", "post"), "schedule message"),
    **dict.fromkeys(("describe", "inspect", "view", "info"), "show status server"),
    **dict.fromkeys(("reschedule", "retry", "redrive"), "move requeue try"),
    **dict.fromkeys(("status", "health", "version"), "server"),
    **dict.fromkeys(("sub", "consume", "receive", "tail"), "subscribe"),
}
"""Command names of other tools, with ours."""

app = typer.Typer(
    name="fasti",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Schedule messages, receive them, inspect the timeline. Global options may appear anywhere.",
)
app.command("subscribe")(subscribe)
app.command("work")(work)
_NOUNS = {
    "message": ("message.app", "Schedule, look up, cancel, move, list messages."),
    "schedule": ("schedule.app", "Recurring messages."),
    "timeline": ("timeline.app", "Counts of pending messages by time."),
    "slice": ("slices.app", "Slices: the time spans in which messages are stored."),
    "shard": ("slices.shard", "Shards: the size-limited parts of a slice."),
    "session": ("places.session", "Sessions: subscribers and their read positions."),
    "group": ("places.group", "Groups: shared subscriptions and their read positions."),
    "endpoint": ("places.endpoint", "Webhook endpoints."),
    "retry": ("kept.retry", "Retries: messages that wait for their next try."),
    "dead": ("kept.dead", "Dead letters: messages that were given up."),
    "job": ("slices.job", "Spark jobs on whole slices."),
    "server": ("server.app", "The server itself."),
    "cluster": ("server.cluster", "Cluster nodes: the leader and the lag of the others."),
}
"""Name -> module and variable, help."""


@cache
def _commands_of(noun: str) -> dict[str, Any]:
    """The commands of a noun, by name. `show` and `get` are two names of one; help lists the first."""
    module, _, variable = _NOUNS[noun][0].partition(".")
    commands = typer.main.get_group(getattr(import_module(f".{module}", __package__), variable)).commands
    first = next(commands[name] for name in ("show", "status", "density") if name in commands)
    for name in {"show", "get"} - commands.keys():
        commands[name] = copy.copy(first)
        commands[name].name, commands[name].hidden = name, True
    return cast("dict[str, Any]", commands)


class _Noun(TyperGroup):
    """A noun whose commands are imported on first use."""

    @property
    def commands(self) -> dict[str, Any]:
        return _commands_of(str(self.name))

    @commands.setter
    def commands(self, _: object) -> None:
        """Whoever makes the group has none yet."""


for _name, (_, _help) in _NOUNS.items():
    app.add_typer(typer.Typer(no_args_is_help=True, cls=_Noun), name=_name, help=_help)


def _say_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"fasti {fasti.__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "--server",
            help="Server URL; of a cluster several, with commas. Default: FASTI_URL, profile, localhost.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="API key. Default: FASTI_KEY, the profile.")] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(help="MQTT host:port, or mqtt://, mqtts://, ws:// or wss://. Default: ask the server."),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="CA certificates to trust. Default: FASTI_CA, the system's."),
    ] = None,
    cert: Annotated[
        str | None,
        typer.Option(metavar="FILE[,KEY]", help="Client certificate, with its key in the same file or KEY."),
    ] = None,
    allow_plain: Annotated[
        bool,
        typer.Option(
            "--allow-plain", help="Send the key without TLS too, such as over plain MQTT beside https."
        ),
    ] = False,
    profile: Annotated[
        str | None, typer.Option(help="[profiles.NAME] of ~/.config/fasti/config.toml. Default: `default`.")
    ] = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="Output format.")] = Format.table,
    json: Annotated[bool, typer.Option("--json", help="JSON, as -o json.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Do not truncate tables.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback has ended it
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Find out which server, as whom, and how to print."""
    try:
        server = settled(Profile(url, key, mqtt, ca, cert, allow_plain or None), profile)
    except ProfileError as error:
        raise typer.BadParameter(str(error), param_hint="--profile") from error
    context.obj = Settings(server, Format.json if json else output, wide, context.obj or ())


def hoisted(arguments: list[str]) -> list[str]:
    """The arguments with the global options first."""
    front: list[str] = []
    back: list[str] = []
    words: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            back += [argument, *rest]
        elif argument.partition("=")[0] == _OWN.get(" ".join(words[:2])):
            back.append(argument)
        elif argument in _FLAGS:
            front.append(argument)
        elif argument in _GLOBAL:
            front += [argument, *[value for value in [next(rest, None)] if value is not None]]
        elif argument.startswith(tuple(f"{name}=" for name in _GLOBAL if name != "-o")):
            front.append(argument)
        else:
            back.append(argument)
            words += [argument] if argument[:1] != "-" else []
    return front + back


def start(arguments: list[str]) -> None:
    """Run and exit."""
    ordered = hoisted(arguments)
    try:
        code = app(ordered, prog_name="fasti", standalone_mode=False, obj=tuple(ordered))
    except typer.Abort:
        sys.exit(130)
    except _WRONG_USAGE as error:
        printed, usage = _format_of(ordered), cast("typer.BadParameter", error)
        usage.message = usage.message.removeprefix(_PARSERS_OWN)
        _teach(usage)
        _teach_command(usage)
        if printed is Format.table:
            usage.show()
        else:
            Printer(printed).failed("", problem_document(ValueError(usage.format_message()), USAGE))
        sys.exit(usage.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _teach(usage: typer.BadParameter) -> None:
    """Our option in the error about one that there is not: `--in` for `--delay`."""
    option, context = getattr(usage, "option_name", None), getattr(usage, "ctx", None)
    if option is None or context is None:
        return
    options = {one.name: one.opts[0] for one in context.command.params}
    name = option.lstrip("-").replace("-", "_")
    if ours := options.get(name) or options.get(ours_for(name, options)):
        usage.message = f"No such option: {option}; fasti calls it {ours if ours[0] == '-' else ours.upper()}"
        vars(usage)["possibilities"] = None


def _teach_command(usage: typer.BadParameter) -> None:
    """Names the nearest command in the error about an unknown one, or all commands if none is near."""
    missing, context = _NO_COMMAND.match(str(usage.message)), getattr(usage, "ctx", None)
    if missing and context:
        names = [name for name, command in context.command.commands.items() if not command.hidden]
        meant = [ours for ours in _THEIRS.get(missing[1].lower(), "").split() if ours in names]
        near = meant or get_close_matches(missing[1], names, 1, 0.5)
        usage.message = f"No such command '{missing[1]}'. " + (
            f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(names)}."
        )


def _format_of(arguments: list[str]) -> Format:
    """The value of `-o`, found without the parser, which has just refused something."""
    for argument, value in pairwise([*arguments, ""]):
        if argument in _NOUNS:
            break
        if argument == "--json":
            return Format.json
        named = value if argument in ("-o", "--output") else argument.removeprefix("--output=")
        if argument.startswith(("-o", "--output")) and named in list(Format):
            return Format(named)
    return Format.table
