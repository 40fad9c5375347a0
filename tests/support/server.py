"""A server as a process of its own: started on free ports, waited for, asked, stopped, killed.

What the process prints goes into `server.log` beside its data, so that a test that fails can show it. A
process is only ever ended by the id that it was started with.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from .forked import Forked, can_fork
from .gauges import Gauges
from .parted import VARIABLE, is_part

ROOT = Path(__file__).parents[2]
READY_S = 120.0
STOP_S = 60.0
PARTED = ("tests.support.parted",)
FORKED = {
    ("server",): "server.__main__",
    PARTED: "tests.support.parted",
    ("tests.support.stepped",): "tests.support.stepped",
}
"""Programs that run as forks, and where their `main` is."""
LISTENING = re.compile(r"^listening http=(\S+) mqtt=(\S+)(?: .*)?$", re.MULTILINE)


class ServerProcess(Gauges):
    """One running server. `http` and `mqtt` are (host, port) once it is ready."""

    def __init__(
        self,
        data: Path,
        *arguments: str,
        settings: Mapping[str, object] | None = None,
        log: Path | None = None,
        program: Sequence[str] = ("server",),
    ) -> None:
        """Start it. `settings`: "limits.sessions" -> value, given by environment variables.

        `program`: module and first arguments, if it is not the plain server.
        """
        self.data = data
        self.log = log or data.parent / f"{data.name}.log"
        self.http: tuple[str, int] = ("", 0)
        self.mqtt: tuple[str, int] = ("", 0)
        self._seen = self.log.stat().st_size if self.log.exists() else 0
        self.process: subprocess.Popen[bytes] | Forked
        given, env = ("--data", str(data), *LOOPBACK, *arguments), environment(settings or {})
        if VARIABLE in env and program == ("server",):
            program = PARTED
        if (module := FORKED.get(tuple(program))) and can_fork(env):
            self.process = Forked(given, ROOT, env, self.log, module)
            return
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *program, *given],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def url(self) -> str:
        return f"http://{self.http[0]}:{self.http[1]}"

    @property
    def output(self) -> str:
        """What it has printed since it was started."""
        return self.log.read_bytes()[self._seen :].decode(errors="replace")

    def poll_ready(self) -> bool:
        """Whether it listens now. Raises RuntimeError if it has ended instead."""
        found = LISTENING.search(self.output)
        if found is None:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.output}")
            return False
        self.http, self.mqtt = address(found[1]), address(found[2])
        return True

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not self.poll_ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server is not ready:\n{self.output}")
            time.sleep(0.02)

    async def ready(self) -> None:
        """The same, while the loop goes on."""
        deadline = time.monotonic() + READY_S
        while not self.poll_ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server is not ready:\n{self.output}")
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code. Killed if it does not come."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    async def stopped(self) -> int:
        """The same, while the loop goes on."""
        return await asyncio.to_thread(self.stop)


BUILD = ("FASTI_FAST", "FASTI_PURE")
"""Whether compiled modules run, in a server as in the tests that start it."""
LOOPBACK = ("--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")


def environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Ours without any FASTI variable of the caller but those of the build, and with these settings."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FASTI") or name in BUILD}
    own["PYTHONPATH"] = str(ROOT)
    for key, value in settings.items():
        if not is_part(key):
            own["FASTI__" + key.upper().replace(".", "__")] = str(value)
    if parts := {key: value for key, value in settings.items() if is_part(key)}:
        own[VARIABLE] = json.dumps(parts)
    return own


def run(
    *arguments: str,
    settings: Mapping[str, object] | None = None,
    module: str = "server.__main__",
    within_s: float | None = READY_S,
) -> subprocess.CompletedProcess[str]:
    """A command of the server that ends by itself, or of another `module` with a `main`."""
    env = environment(settings or {})
    assert can_fork(env)
    with TemporaryDirectory(prefix="fasti-run-") as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        child = Forked(arguments, ROOT, env, out, module, err)
        try:
            code = child.wait(within_s)
        finally:
            child.kill()
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


@contextmanager
def served(
    data: Path, *arguments: str, settings: Mapping[str, object] | None = None
) -> Iterator[ServerProcess]:
    """A ready server; killed at the end if it still runs then."""
    server = ServerProcess(data, *arguments, settings=settings)
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def serving(
    data: Path,
    *arguments: str,
    settings: Mapping[str, object] | None = None,
    program: Sequence[str] = ("server",),
) -> AsyncIterator[ServerProcess]:
    """The same, while the loop goes on."""
    server = ServerProcess(data, *arguments, settings=settings, program=program)
    try:
        await server.ready()
        yield server
    finally:
        server.kill()
        await asyncio.sleep(0.01)  # the test's own connections see the end


def address(text: str) -> tuple[str, int]:
    """Of `host:port`."""
    host, _, port = text.rpartition(":")
    return host, int(port)
