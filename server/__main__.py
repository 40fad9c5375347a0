"""`python -m server`: run the server, or look at a stopped server's data.

    python -m server [--config FILE] [--data DIR] [--http HOST:PORT] [--mqtt HOST:PORT]
                     [--clock system|simulated] [--log text|json] [--check]
    python -m server inspect --data DIR
    python -m server verify [--repair] --data DIR
    python -m server retime --data DIR

Exit codes: 0 ended in order, 1 the data is damaged or the server could not go on, 2 wrong usage,
configuration, a data directory in use or of another format.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from shards.errors import ShardsError, StoreLocked, WrongFormat

from .bounds import told
from .config import Config, ConfigError, load, table
from .logs import configure_logging
from .offline import inspect, retime, verify
from .run import serve

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    options = _parser().parse_args(arguments)
    try:
        config, origins = load(options.config, os.environ, _overrides(options))
    except ConfigError as error:
        print(f"fasti-server: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    if options.check:
        print("\n".join([*table(config, origins), "", "RAM that these bounds allow:", *told(config)]))  # noqa: T201
        return 0
    configure_logging(options.log)
    try:
        return _run(options, config)
    except WrongFormat as error:
        print(f"fasti-server: {config.store.dir}: {error}; see docs/upgrade.md", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    except StoreLocked as error:
        print(f"fasti-server: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    except (ShardsError, OSError) as error:
        print(f"fasti-server: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED


def _run(options: argparse.Namespace, config: Config) -> int:
    path = Path(config.store.dir)
    if options.command == "inspect":
        return inspect(path, config.slices.max)
    if options.command == "verify":
        return verify(path, config.slices.max, repair=options.repair)
    if options.command == "retime":
        return retime(path, config)
    return serve(config, is_simulated=options.clock == "simulated")


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", type=Path, default=None, help="a config.toml; without one, the defaults")
    common.add_argument("--data", default=None, help="data directory, store.dir")
    parser = argparse.ArgumentParser(
        prog="fasti-server", description="Delayed and scheduled message queue.", parents=[common]
    )
    parser.add_argument("--http", default=None, metavar="HOST:PORT", help="http.listen; port 0: any")
    parser.add_argument("--mqtt", default=None, metavar="HOST:PORT", help="mqtt.listen; port 0: any")
    parser.add_argument("--clock", choices=("system", "simulated"), default="system")
    parser.add_argument("--log", choices=("text", "json"), default="text")
    parser.add_argument(
        "--check",
        action="store_true",
        help="show every setting, its origin and the sum of the bounds, and exit",
    )
    parser.set_defaults(repair=False)
    commands = parser.add_subparsers(dest="command", metavar="{inspect,verify,retime}")
    quiet = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    quiet.add_argument("--config", type=Path)
    quiet.add_argument("--data")
    commands.add_parser("inspect", parents=[quiet], help="slices, shards and sessions of a stopped server")
    check = commands.add_parser("verify", parents=[quiet], help="check counts and rows of a stopped server")
    commands.add_parser(
        "retime", parents=[quiet], help="recompute local wall times of a stopped server's data"
    )
    check.add_argument("--repair", action="store_true", help="write derived data again")
    return parser


def _overrides(options: argparse.Namespace) -> dict[str, object]:
    return {"store.dir": options.data, "http.listen": options.http, "mqtt.listen": options.mqtt}


if __name__ == "__main__":
    sys.exit(main())
