"""`fasti-server`: run the server, or work on a stopped server's data.

    fasti-server [--config FILE] [--data DIR] [--http HOST:PORT] [--mqtt HOST:PORT]
                 [--clock system|simulated] [--clock-start INSTANT] [--drain DURATION]
                 [--log text|json] [--check] [--version]
    fasti-server inspect [-o json] [--summary] --data DIR
    fasti-server verify [--repair] --data DIR
    fasti-server leave --data DIR
    fasti-server cluster init | heal [--accept-loss]
    fasti-server keys add NAME --scope SCOPE ... | ls | revoke NAME | rotate NAME   [--file FILE]

Exit codes: 0 ended in order; 1 the data is damaged or the server could not continue; 2 wrong usage or
configuration, an address that cannot be listened at, or a data directory that is in use, of another format,
of a cluster or not ours.

Imports for a single command are made where it begins: most of a start is imports.
"""

import argparse
import gc
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from shards.errors import NotOurs, ShardsError, SharedData, StoreLocked, WrongFormat, WrongNumber
from shards.private import private

from .auth.keys_file import RULES, KeysFileError
from .auth.rights import BOUNDS
from .observe.logs import EACH, configure_logging
from .observe.version import server_version
from .settings.config import Config, ConfigError
from .settings.durations import TimeError, parse_delay
from .settings.kinds import CannotListen
from .settings.memory import part_lines
from .settings.reading import exposed, load, remarks, table
from .settings.times import parse_deliver_at

log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2
USAGE: Mapping[type[Exception], str] = {
    ConfigError: "{}",
    KeysFileError: "{}",
    StoreLocked: "{}",
    CannotListen: "{listen}: {}",
    NotOurs: "store.dir: {}",
    WrongNumber: "store.number is {}",
    WrongFormat: "{folder}: {}; see docs/deploy.md, Upgrade",
    SharedData: "{folder}: {}; see docs/failures.md, A node's data",
}
"""What EXIT_USAGE is for, and the text of each."""
SWITCH_S = 0.001
"""How long a thread that wants the interpreter lets the loop keep it. The loop releases it briefly in each
callback and has it again before the thread wakes, which then begins to wait again: with Python's 5 ms, and
shorter callbacks, a sync took 100 ms more, and a POST 150 to 400 ms beside a flood (35 to 70 now).
"""
COLLECT_AFTER = 100_000, 50, 100
"""Thresholds of the garbage collector. The wheel and the tail hold up to 100,000 objects that live for
seconds and contain no cycles, and sessions many more: visiting them at the default rate costs a drain 5 to
8 % of its time, and a start with many sessions a third.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.clock_start is not None and options.clock != "simulated":
        parser.error("--clock-start needs --clock simulated")
    try:
        config, origins = load(options.config, os.environ, _overrides(options))
    except ConfigError as error:
        return _refused(error)
    warnings = [*remarks(config, origins), *exposed(config, origins, options.config)]
    if options.check:
        return _check(config, origins, warnings)
    if options.command == "keys":
        return _keys(options, config)
    configure_logging(options.log, config.log.level, is_limited=options.command is None)
    for line in warnings:
        log.warning("%s", line, extra=EACH)
    try:
        return _run(options, config)
    except (ConfigError, KeysFileError, ShardsError, OSError) as error:
        kind = next((kind for kind in USAGE if isinstance(error, kind)), None)
        if kind is None:
            return _refused(error, EXIT_FAILED)
        listen = "http.listen" if getattr(error, "address", None) == config.http.listen else "mqtt.listen"
        return _refused(USAGE[kind].format(error, folder=config.store.dir, listen=listen))


def _refused(why: object, code: int = EXIT_USAGE) -> int:
    _warn(f"fasti-server: {why}")
    return code


def _warn(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201


def _run(options: argparse.Namespace, config: Config) -> int:
    path = Path(config.store.dir)
    with private(path) as umask:
        return _serve(options, config, umask) if options.command is None else _offline(options, config, path)


def _offline(options: argparse.Namespace, config: Config, path: Path) -> int:
    if options.command == "cluster":
        from .cluster.healing import run

        return run(config, options.verb, accepts_loss=options.accept_loss)
    from .offline import inspect, leave, verify

    if options.command == "inspect":
        return inspect(
            path,
            config.slices.max,
            split_above=config.slices.split_above,
            is_json=options.output == "json",
            is_summary=options.summary,
        )
    if options.command == "verify":
        return verify(path, config.slices.max, repair=options.repair)
    return leave(path)


def _serve(options: argparse.Namespace, config: Config, umask: int) -> int:
    # Imported modules contain no garbage, and collecting takes a seventh of the start.
    gc.disable()
    sys.setswitchinterval(SWITCH_S)
    from shards.ours import check_ours

    from .run import serve

    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()
    named = (config.auth.keys_file, config.mqtt.password_file, config.mqtt.acl_file)
    check_ours(Path(config.store.dir), [Path(one) for one in (options.config, *named) if one])
    is_simulated = options.clock == "simulated"
    start_ms, drain_ms = options.clock_start, options.drain
    return serve(config, is_simulated=is_simulated, start_ms=start_ms, drain_ms=drain_ms, umask=umask)


def _check(config: Config, origins: Mapping[str, str], warnings: Sequence[str]) -> int:
    """Print every setting with its origin; checks the files of certificates and keys, too."""
    from .auth.checking import at_once
    from .auth.keyring import Keyring
    from .engine.clock import SystemClock
    from .jobs.launch import check_archive
    from .net.tls import http_certificates, mqtt_certificates

    lines = part_lines(config.limits.memory)
    print("\n".join([*table(config, origins), "", "Parts of limits.memory:", *lines]))  # noqa: T201
    for line in warnings:
        _warn(f"fasti-server: {line}")
    try:
        http_certificates(config), mqtt_certificates(config)
        check_archive(config)
        Keyring(config, SystemClock(), at_once)
    except (ConfigError, KeysFileError) as error:
        return _refused(error)
    return 0


def _keys(options: argparse.Namespace, config: Config) -> int:
    """Run `keys`, on the keys file alone: the server may be running."""
    from .auth import commands as keys

    file = options.file or config.auth.keys_file
    if not file:
        return _refused("auth.keys_file is not set: name the file with --file")
    path = Path(file)
    try:
        if options.verb == "add":
            key = keys.add(
                path,
                options.name,
                scopes=options.scope,
                filters={what: getattr(options, what) for what in RULES},
                client_ids=options.client_ids,
                bounds={bound.name: getattr(options, bound.name) for bound in BOUNDS},
            )
            print(key)  # noqa: T201
            _warn("The key is shown only once; the file contains its hash.")
        elif options.verb == "rotate":
            key, effects = keys.rotate(path, options.name, options.overlap)
            print(key)  # noqa: T201
            _warn(effects)
        elif options.verb == "revoke":
            print(keys.revoke(path, options.name))  # noqa: T201
        else:
            data = Path(config.store.dir)
            print("\n".join(keys.listed(path, data)))  # noqa: T201
            if unknown := keys.unknown_use(data):
                _warn(unknown)
    except KeysFileError as error:
        return _refused(error)
    return 0


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--config", type=Path, default=None, help="config.toml to read; default: the built-in defaults"
    )
    common.add_argument("--data", default=None, help="data directory, store.dir")
    parser = argparse.ArgumentParser(
        prog="fasti-server", description="Delayed and scheduled message queue.", parents=[common]
    )
    parser.add_argument("--http", default=None, metavar="HOST:PORT", help="http.listen; port 0: any")
    parser.add_argument("--mqtt", default=None, metavar="HOST:PORT", help="mqtt.listen; port 0: any")
    parser.add_argument("--clock", choices=("system", "simulated"), default="system")
    parser.add_argument(
        "--clock-start",
        type=partial(_ms, parse_deliver_at),
        default=None,
        metavar="INSTANT",
        help="start of a simulated clock, unless the stored one is later; default: the machine's time",
    )
    parser.add_argument(
        "--drain",
        type=partial(_ms, parse_delay),
        default=0,
        metavar="DURATION",
        help="at SIGTERM, wait so long for what workers and endpoints have, before the stop; default: 0",
    )
    parser.add_argument("--log", choices=("text", "json"), default="text")
    parser.add_argument(
        "--check",
        action="store_true",
        help="show every setting with its origin and the sum of the bounds, then exit",
    )
    parser.add_argument("--version", action="version", version=f"fasti-server {server_version()}")
    parser.set_defaults(repair=False, accept_loss=False)
    commands = parser.add_subparsers(dest="command", metavar="{inspect,verify,leave,cluster,keys}")
    quiet = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    quiet.add_argument("--config", type=Path)
    quiet.add_argument("--data")
    look = commands.add_parser(
        "inspect", parents=[quiet], help="show slices, shards and sessions of a stopped server"
    )
    look.add_argument("-o", "--output", choices=("text", "json"), default="text")
    look.add_argument("--summary", action="store_true", help="only totals and overfull slices")
    check = commands.add_parser(
        "verify", parents=[quiet], help="check the counts and rows of a stopped server"
    )
    commands.add_parser("leave", parents=[quiet], help="detach a stopped node's data from the cluster's log")
    several = commands.add_parser("cluster", parents=[quiet], help="begin a cluster's log, or begin it anew")
    verbs = several.add_subparsers(dest="verb", metavar="{init,heal}", required=True)
    verbs.add_parser("init", parents=[quiet], help="make the log of a new timeline")
    heal = verbs.add_parser(
        "heal", parents=[quiet], help="show what would be lost if the log went on from the nodes that answer"
    )
    heal.add_argument("--accept-loss", action="store_true", help="let it go on from there")
    check.add_argument("--repair", action="store_true", help="rebuild derived data")
    _add_keys(commands.add_parser("keys", parents=[quiet], help="add, list, rotate and revoke keys"), quiet)
    return parser


def _add_keys(parser: argparse.ArgumentParser, quiet: argparse.ArgumentParser) -> None:
    """`quiet`: options of every command."""
    there = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    there.add_argument("--file", help="keys file; default: auth.keys_file")
    parser.set_defaults(file=None)
    verbs = parser.add_subparsers(dest="verb", metavar="{add,ls,revoke,rotate}", required=True)
    add = verbs.add_parser("add", parents=[quiet, there], help="create a key and print it once")
    add.add_argument("name")
    add.add_argument(
        "--scope", action="append", required=True, help="schedule, read or admin (admin includes both)"
    )
    for what, why in (
        ("publish", "the key may send to; default: all"),
        ("subscribe", "the key may subscribe to; default: all"),
        ("deliver", "the key may receive; default: those of --subscribe"),
    ):
        add.add_argument(
            f"--{what}",
            action="append",
            default=None,
            metavar="FILTER",
            help=f"topics that {why}",
        )
    for bound in BOUNDS:
        add.add_argument(
            f"--{bound.name.replace('_', '-')}",
            type=int,
            default=0,
            metavar="N",
            help=f"{bound.of_what}; default: {bound.otherwise}",
        )
    add.add_argument(
        "--client-ids",
        action="append",
        default=[],
        metavar="PATTERN",
        help="client ids that its MQTT clients may use, such as 'meter-*'; default: any",
    )
    verbs.add_parser("ls", parents=[quiet, there], help="list the keys")
    revoke = verbs.add_parser("revoke", parents=[quiet, there], help="revoke a key and close its connections")
    revoke.add_argument("name")
    rotate = verbs.add_parser("rotate", parents=[quiet, there], help="replace a key, print the new one once")
    rotate.add_argument("name")
    rotate.add_argument("--overlap", default="1d", help="how long the former key stays valid; default: 1d")


def _ms(parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text)
    except TimeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _overrides(options: argparse.Namespace) -> dict[str, object]:
    return {"store.dir": options.data, "http.listen": options.http, "mqtt.listen": options.mqtt}


if __name__ == "__main__":
    sys.exit(main())
