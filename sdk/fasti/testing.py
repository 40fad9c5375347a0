"""A fasti server for your own tests: on free ports, with a clock that you move.

    # conftest.py
    pytest_plugins = ["fasti.testing"]

    # test_reminders.py
    async def test_a_reminder_comes_after_a_month(fasti_server):
        async with fasti_server.client() as c:
            await c.messages.schedule("orders/17/remind", "soon", delay=timedelta(days=30))
            await fasti_server.advance(days=30)
            ...

The server is `fasti-server` from PATH, or the command in FASTI_SERVER (a path, or `python -m server`
of a checkout).
Without one a test that asks for it is skipped and says so. Each test has a server with an empty data
directory of its own, which takes about a second; it is killed at the end, since nothing of it is kept. Needs
pytest, which this package does not install.

Three things can happen to time. It passes with the server there (`advance`, `advance_to`): everything due on
the way is dispatched at its instant, nothing is late. It stands still while the server is away (`restart`).
Or it passes while the server is away (`restart(down_for=...)`): what fell due meanwhile is late, and rules
for what was missed apply. It never goes back.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from . import sync as _sync
from .client import Client
from .errors import BadArgument
from .transport import Retry
from .wire import instant

READY_S = 30.0
"""Maximum time for a server to start, and to stop in order."""
RETRY = Retry(attempts=80, first_s=0.02, cap_s=0.5)
"""Default of the clients made here: a request waits as long as a restart may take."""
_POLL_S = 0.02
_LISTENING = re.compile(r"^listening http=(\S+) mqtt=(\S+)", re.MULTILINE)


class FastiServer:
    """One server process with a simulated clock. `with FastiServer(...)` runs it without pytest too."""

    def __init__(
        self,
        command: list[str],
        home: Path,
        settings: Mapping[str, object] | None = None,
        *,
        start: datetime | None = None,
    ) -> None:
        """Start it with its data and log in `home`. `settings`: "sessions.max_attempts" -> value.

        `start`: where its clock begins, an aware datetime, also one in the past; else now. Data that is there
        already and has seen a later time goes on from there. Raises BadArgument for a naive `start`,
        RuntimeError with the server's output if it does not come up.
        """
        self.log = home / "server.log"
        self._command = [*command, "--data", str(home / "data"), "--clock", "simulated"]
        self._environment = _environment(settings or {})
        self._now = _aware("start", start or datetime.now(UTC))
        http, self.mqtt = self._run("127.0.0.1:0", "127.0.0.1:0")
        self.url = f"http://{http}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self, **options: Any) -> Client:
        """A client of this server; the options of `fasti.Client`. Its requests wait while it restarts."""
        return Client(self.url, mqtt=self.mqtt, **{"retry": RETRY, **options})

    def sync_client(self, **options: Any) -> _sync.Client:
        """The blocking one."""
        return _sync.Client(self.url, mqtt=self.mqtt, **{"retry": RETRY, **options})

    async def advance(self, by: timedelta | None = None, **parts: float) -> datetime:
        """Move the clock: `advance(days=30)`. Everything due on the way has been dispatched on return.

        Gives the server's new time. Raises BadArgument for less than nothing: time does not go back.
        """
        return await asyncio.to_thread(self.advance_sync, by, **parts)

    def advance_sync(self, by: timedelta | None = None, **parts: float) -> datetime:
        """`advance` for code without an event loop."""
        span = _forward("by", (by or timedelta()) + timedelta(**parts))
        with self.sync_client() as client:
            self._now = client.advance(span)
        return self._now

    async def advance_to(self, to: datetime) -> datetime:
        """Move the clock to an instant, an aware datetime, as `advance` does; gives the server's new time.

        Where the clock stands already it stays. Raises BadArgument for an instant before that, and for a
        naive datetime. The way is reckoned from where the clock stands at the call: let no other `advance`
        run beside it.
        """
        return await asyncio.to_thread(self.advance_to_sync, to)

    def advance_to_sync(self, to: datetime) -> datetime:
        """`advance_to` for code without an event loop."""
        to = _aware("to", to)
        with self.sync_client() as client:
            self._now = client.advance(_way(to, client.info().now))
        return self._now

    async def restart(self, *, kill: bool = False, down_for: timedelta | None = None) -> datetime:
        """End the server and start it again on its data, at the same addresses; gives its new time.

        It ends in order, or as by kill -9 with `kill`; one that has ended by itself is just started. Its
        clock goes on where it stood, or later by `down_for`: so long it was away. What fell due in that time
        has been dispatched on return, late, as have been the fires that schedules missed, by their `misfire`.
        Clients come back by themselves; who has no session was not there, and gets none of it.

        Raises BadArgument for a `down_for` below zero, RuntimeError with the server's output if it does not
        end in order or does not come up.
        """
        return await asyncio.to_thread(self.restart_sync, kill=kill, down_for=down_for)

    def restart_sync(self, *, kill: bool = False, down_for: timedelta | None = None) -> datetime:
        """`restart` for code without an event loop."""
        away = _forward("down_for", down_for or timedelta())
        if self._process.poll() is None:
            with self.sync_client() as client:
                self._now = client.info().now
            self._end(kill=kill)
        self._now += away
        self._run(self.url.removeprefix("http://"), self.mqtt)
        return self.advance_sync()

    def close(self) -> None:
        """Kill it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _run(self, http: str, mqtt: str) -> tuple[str, str]:
        """Start a process with its clock at `_now`, and say where it listens."""
        with self.log.open("ab") as out:
            begin = out.tell()
            self._process = subprocess.Popen(
                [*self._command, "--clock-start", instant(self._now), "--http", http, "--mqtt", mqtt],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            return self._addresses(begin)
        except BaseException:
            self.close()
            raise

    def _end(self, *, kill: bool) -> None:
        """Stop the process. Raises RuntimeError if it does not end in order, unless it is killed."""
        if kill:
            self.close()
            return
        self._process.terminate()
        try:
            code: int | str = self._process.wait(READY_S)
        except subprocess.TimeoutExpired:
            self.close()
            code = f"none in {READY_S:g} s"
        if code != 0:
            output = self.log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"the fasti server did not end in order, exit code {code}:\n{output}")

    def _addresses(self, begin: int) -> tuple[str, str]:
        """The addresses in its log from the byte `begin` on."""
        deadline = time.monotonic() + READY_S
        while True:
            output = self.log.read_bytes()[begin:].decode(errors="replace")
            found = _LISTENING.search(output)
            if found:
                return found[1], found[2]
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the fasti server did not come up:\n{output}")
            time.sleep(_POLL_S)


async def until(true: Callable[[], Any], within_s: float = 30.0) -> None:
    """Wait until `true()` is true, in real time, since a worker runs beside the test. `true` may be async.

    Raises BadArgument, TimeoutError.
    """
    if not callable(true):
        raise BadArgument("true", f"must be a function, such as lambda: {true!r:.40}")
    try:
        async with asyncio.timeout(within_s) as bound:
            while True:
                found = true()
                if await found if inspect.isawaitable(found) else found:
                    return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        if not bound.expired():
            raise
        raise TimeoutError(f"not true within {within_s:g} s") from None


def server_command() -> list[str] | None:
    """The command that starts a server here; None if there is none."""
    command = os.environ.get("FASTI_SERVER")
    if command:
        return shlex.split(command)
    found = shutil.which("fasti-server")
    return [found] if found else None


@pytest.fixture
def fasti_settings() -> Mapping[str, object]:
    """Settings as in the server's config.toml, `{"sessions.max_attempts": 3}`. Override it for others."""
    return {}


@pytest.fixture
def fasti_start() -> datetime | None:
    """Start of the clock, an aware datetime; None: now. Override it for tests of certain days."""
    return None


@pytest.fixture
def fasti_server(
    tmp_path_factory: pytest.TempPathFactory,
    fasti_settings: Mapping[str, object],
    fasti_start: datetime | None,
) -> Iterator[FastiServer]:
    """A server with an empty timeline and a clock that stands still."""
    command = server_command()
    if command is None:
        pytest.skip("there is no fasti-server on PATH; install it or set FASTI_SERVER to its command")
    with FastiServer(command, tmp_path_factory.mktemp("fasti"), fasti_settings, start=fasti_start) as server:
        yield server


def _forward(argument: str, span: timedelta) -> timedelta:
    if span < timedelta():
        raise BadArgument(argument, f"must not be negative: time does not go back, not by {-span} either")
    return span


def _aware(argument: str, at: datetime) -> datetime:
    if at.utcoffset() is None:
        raise BadArgument(argument, f"has no time zone: {at!r}; give it one, such as tzinfo=UTC")
    return at.astimezone(UTC)


def _way(to: datetime, now: datetime) -> timedelta:
    if to < now:
        raise BadArgument("to", f"is {to.isoformat()}, and the server's clock stands at {now.isoformat()}")
    return to - now


def _environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Ours, but for settings of another server."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FASTI__")}
    for key, value in settings.items():
        own["FASTI__" + key.upper().replace(".", "__")] = str(value)
    return own
