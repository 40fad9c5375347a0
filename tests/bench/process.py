"""Processes under measurement: a server, a broker to compare with, a peer that does next to nothing.

Each is a process of its own, so that the load beside it has another core, and is ended only by the id that
it was started with. What it prints goes into a file beside its data. Its processor time is told as well: on
a machine that others use too it says more than the clock on the wall.
"""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.support import server as support
from tests.support.gauges import Gauges
from tests.support.parted import VARIABLE
from tests.support.server import LISTENING, ROOT, address

START_S = 120.0
STOP_S = 20.0

Address = tuple[str, int]


class Spends(Protocol):
    """Something that runs."""

    def cpu_s(self) -> float:
        """Processor time so far."""


class Listens(Protocol):
    """A server of fasti."""

    @property
    def http(self) -> Address: ...

    @property
    def mqtt(self) -> Address: ...


class Process(Gauges):
    """One child. `started` is the monotonic time of its start."""

    STOP = signal.SIGTERM
    """What asks it to end."""

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        environment: Mapping[str, str],
        root: Path = ROOT,
        user: str | None = None,
    ) -> None:
        self.log = log
        self.started = time.monotonic()
        with log.open("wb") as out:
            self._child = subprocess.Popen(
                arguments,
                cwd=root,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                user=user,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait for a line. Raises RuntimeError if the process ends before it, or is too slow."""
        while (found := pattern.search(self.output)) is None:
            self.check()
            time.sleep(0.005)
        return found

    def check(self) -> None:
        """Raises RuntimeError unless it runs, and has not been starting for too long."""
        if self._child.poll() is not None:
            raise RuntimeError(f"ended with {self._child.returncode}:\n{self.output}")
        if time.monotonic() - self.started > START_S:
            raise RuntimeError(f"not ready in {START_S:.0f} s:\n{self.output}")

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait(STOP_S)

    def stop(self) -> None:
        """Ask it to end; killed if it does not."""
        if self._child.poll() is None:
            self._child.send_signal(self.STOP)
        try:
            self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


class Running(NamedTuple):
    """A peer that is up, and where it listens."""

    process: Process
    at: Address


class Server(Process):
    """fasti on free ports, of the checkout in `root`. `http` and `mqtt` are known once it listens."""

    def __init__(self, data: Path, settings: Mapping[str, object], root: Path = ROOT) -> None:
        self.data = data
        listen = ["--data", str(data), "--http", "127.0.0.1:0"]
        if "mqtt__listen" not in settings:
            listen += ["--mqtt", "127.0.0.1:0"]
        environ = environment(settings, root)
        super().__init__(
            [sys.executable, "-m", "tests.support.parted" if VARIABLE in environ else "server", *listen],
            data.with_suffix(".log"),
            environ,
            root,
        )
        self.http: Address = ("", 0)
        self.mqtt: Address = ("", 0)

    def listening(self) -> None:
        found = self.until(LISTENING)
        self.http, self.mqtt = address(found[1]), address(found[2])

    def build(self) -> str:
        """Which one runs, "pure" or "compiled"."""
        with urllib.request.urlopen(f"http://{self.http[0]}:{self.http[1]}/v1/info") as answer:
            return str(json.load(answer).get("build", "pure"))

    def address_of(self, transport: str) -> Address:
        """Of a further MQTT listener: tls, ws, wss."""
        return address(self.until(re.compile(rf"^listening .* {transport}=(\S+)", re.MULTILINE))[1])

    def data_bytes(self) -> int:
        """Size of the data directory."""
        return sum(path.stat().st_size for path in self.data.rglob("*") if path.is_file())


@contextmanager
def serving(data: Path, /, *roots: Path, **settings: object) -> Iterator[Server]:
    """A server that listens, ended at the end; `settings`: limits__queued=1000. `roots`: another checkout."""
    server = Server(data, settings, *roots)
    try:
        server.listening()
        yield server
    finally:
        server.stop()


@contextmanager
def peering(folder: Path, *arguments: str) -> Iterator[Address]:
    """The peer of tests/bench/peer.py; where it listens."""
    process = Process(
        [sys.executable, "-m", "tests.bench.peer", *arguments], folder / "peer.log", environment({})
    )
    try:
        yield address(process.until(re.compile(r"^listening (\S+)$", re.MULTILINE))[1])
    finally:
        process.stop()


@contextmanager
def answering(process: Process, at: Address) -> Iterator[None]:
    """Until `process` listens there, and stopped at the end."""
    try:
        while not _is_open(at):
            process.check()
            time.sleep(0.01)
        yield
    finally:
        process.stop()


def environment(settings: Mapping[str, object], root: Path = ROOT) -> dict[str, str]:
    """That of a server of the checkout in `root`, with settings as `serving` takes them.

    What is compiled is of ROOT. Python may keep its byte code, as it does unless it is told not to: compiling
    all sources makes a start half as long again.
    """
    own = support.environment({key.replace("__", "."): value for key, value in settings.items()})
    own["PYTHONPATH"] = str(root)
    for name in ("PYTHONDONTWRITEBYTECODE", *(("FASTI_FAST",) if root != ROOT else ())):
        own.pop(name, None)
    return own


def _is_open(at: Address) -> bool:
    try:
        socket.create_connection(at, 1.0).close()
    except OSError:
        return False
    return True
