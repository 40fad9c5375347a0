"""The root command: global options, and the nouns under it.

Global options may stand anywhere (`fasti message ls -o json`), as people write them; they are moved to the
front before parsing. What follows `--` stays where it is.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Annotated, cast

import typer

import fasti
from fasti.signatures import ours_for

from . import (
    cluster,
    dead,
    job,
    message,
    places,
    ranges,
    retry,
    schedule,
    server,
    shard,
    slices,
    subscribe,
    timeline,
    transfer,
    work,
)
from .output import Format, Printer
from .profiles import Profile, ProfileError, chosen
from .run import USAGE, Settings, problem_document

_GLOBAL = ("--url", "--server", "--key", "--mqtt", "--ca", "--cert", "--profile", "--output", "-o")
_FLAGS = ("--wide", "--allow-plain")
_WRONG_USAGE = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""Base class of parsing errors: ClickException, of click or of typer's own copy."""
_PARSERS_OWN = "Value error, "
"""Prefix of the reason in some versions of typer."""

app = typer.Typer(
    name="fasti",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Schedule messages, receive them, inspect the timeline. Global options may appear anywhere.",
)
app.add_typer(message.app, name="message", help="Schedule, look up, cancel, move, list messages.")
app.add_typer(schedule.app, name="schedule", help="Recurring messages.")
app.command("subscribe")(subscribe.subscribe)
app.command("work")(work.work)
app.add_typer(timeline.app, name="timeline", help="Counts of pending messages by time.")
app.add_typer(slices.app, name="slice", help="Slices: the time spans in which messages are stored.")
app.add_typer(shard.app, name="shard", help="Shards: the size-limited parts of a slice.")
app.add_typer(places.session, name="session", help="Sessions: subscribers and their read positions.")
app.add_typer(places.group, name="group", help="Groups: shared subscriptions and their read positions.")
app.add_typer(places.endpoint, name="endpoint", help="Webhook endpoints.")
app.add_typer(retry.app, name="retry", help="Retries: messages that wait for their next try.")
app.add_typer(dead.app, name="dead", help="Dead letters: messages that were given up.")
app.add_typer(job.app, name="job", help="Spark jobs on whole slices.")
app.add_typer(server.app, name="server", help="The server itself.")
app.add_typer(cluster.app, name="cluster", help="Cluster nodes: the leader and the lag of the others.")
message.app.command("import")(transfer.import_)
message.app.command("export")(ranges.export)
message.app.command("shift")(ranges.shift)


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
    wide: Annotated[bool, typer.Option("--wide", help="Do not truncate tables.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback has ended it
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Find out which server, as whom, and how to print."""
    try:
        found = chosen(profile)
    except ProfileError as error:
        raise typer.BadParameter(str(error), param_hint="--profile") from error
    named = Profile(url, key, mqtt, ca, cert, allow_plain or None)
    settled = (named if profile else named.over(Profile.of_environment())).over(found)
    context.obj = Settings(settled, output, wide, context.obj or ())


def hoisted(arguments: list[str]) -> list[str]:
    """The arguments with the global options first."""
    front: list[str] = []
    back: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            back += [argument, *rest]
        elif argument in _FLAGS:
            front.append(argument)
        elif argument in _GLOBAL:
            front += [argument, *[value for value in [next(rest, None)] if value is not None]]
        elif argument.startswith(tuple(f"{name}=" for name in _GLOBAL if name != "-o")):
            front.append(argument)
        else:
            back.append(argument)
    return front + back


def start(arguments: list[str]) -> None:
    """Run and exit."""
    ordered = hoisted(arguments)
    try:
        code = app(ordered, prog_name="fasti", standalone_mode=False, obj=tuple(ordered))
    except typer.Abort:
        sys.exit(130)
    except _WRONG_USAGE as error:
        printed, told = _format_of(ordered), cast("typer.BadParameter", error)
        told.message = told.message.removeprefix(_PARSERS_OWN)
        _teach(told)
        if printed is Format.table:
            told.show()
        else:
            Printer(printed).failed("", problem_document(ValueError(told.format_message()), USAGE))
        sys.exit(told.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _teach(told: typer.BadParameter) -> None:
    """Our option in the error about one that there is not: `--in` for `--delay`."""
    option, context = getattr(told, "option_name", None), getattr(told, "ctx", None)
    if option is None or context is None:
        return
    options = {one.name: one.opts[0] for one in context.command.params}
    name = option.lstrip("-").replace("-", "_")
    if ours := options.get(name) or options.get(ours_for(name, options)):
        told.message = f"No such option: {option}; fasti calls it {ours if ours[0] == '-' else ours.upper()}"
        vars(told)["possibilities"] = None


def _format_of(arguments: list[str]) -> Format:
    """The value of `-o`, found without the parser, which has just refused something."""
    for argument, value in pairwise([*arguments, ""]):
        named = value if argument in ("-o", "--output") else argument.removeprefix("--output=")
        if argument.startswith(("-o", "--output")) and named in list(Format):
            return Format(named)
    return Format.table
