"""A fasti server for your own tests: on free ports, with a clock that you move.

    # conftest.py
    pytest_plugins = ["fasti.testing"]

    # test_reminders.py
    async def test_a_reminder_comes_after_a_month(fasti_server):
        async with fasti_server.client() as c:
            await c.messages.schedule("orders/17/remind", "soon", delay=timedelta(days=30))
            await fasti_server.advance(days=30)
            ...

The server is `fasti-server` from PATH, or the command in FASTI_SERVER (a path, or `python -m server`).
Without one a test that asks for it is skipped and says so. Each test has a server with an empty data
directory of its own, which takes about a second; it is killed at the end, since nothing of it is kept. Needs
pytest, which this package does not install.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from . import sync as _sync
from .client import Client

READY_S = 30.0
_POLL_S = 0.02
_LISTENING = re.compile(r"^listening http=(\S+) mqtt=(\S+)", re.MULTILINE)


class FastiServer:
    """One server process with a simulated clock. `with FastiServer(...)` runs it without pytest too."""

    def __init__(self, command: list[str], home: Path, settings: Mapping[str, object] | None = None) -> None:
        """Start it with its data and log in `home`. `settings`: "sessions.max_attempts" -> value.

        Raises RuntimeError with its output if it does not come up.
        """
        self.log = home / "server.log"
        arguments = ("--data", str(home / "data"), "--clock", "simulated")
        listeners = ("--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*command, *arguments, *listeners],
                env=_environment(settings or {}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            http, self.mqtt = self._addresses()
        except BaseException:
            self.close()
            raise
        self.url = f"http://{http}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def client(self, **options: Any) -> Client:
        """A client of this server; the options of `fasti.Client`."""
        return Client(self.url, mqtt=self.mqtt, **options)

    def sync_client(self, **options: Any) -> _sync.Client:
        """The blocking one."""
        return _sync.Client(self.url, mqtt=self.mqtt, **options)

    async def advance(self, by: timedelta | None = None, **parts: float) -> datetime:
        """Move the clock: `advance(days=30)`. Everything due on the way has been dispatched on return.

        Gives the server's new time.
        """
        async with self.client() as client:
            return await client.advance(_span(by, parts))

    def advance_sync(self, by: timedelta | None = None, **parts: float) -> datetime:
        """The same for code without an event loop."""
        with self.sync_client() as client:
            return client.advance(_span(by, parts))

    def close(self) -> None:
        """Kill it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _addresses(self) -> tuple[str, str]:
        deadline = time.monotonic() + READY_S
        while True:
            said = self.log.read_text(encoding="utf-8", errors="replace")
            found = _LISTENING.search(said)
            if found:
                return found[1], found[2]
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the fasti server did not come up:\n{said}")
            time.sleep(_POLL_S)


def server_command() -> list[str] | None:
    """How to start a server here; None if there is none."""
    told = os.environ.get("FASTI_SERVER")
    if told:
        return shlex.split(told)
    found = shutil.which("fasti-server")
    return [found] if found else None


@pytest.fixture
def fasti_settings() -> Mapping[str, object]:
    """Settings as in the server's config.toml, `{"sessions.max_attempts": 3}`. Override it for others."""
    return {}


@pytest.fixture
def fasti_server(
    tmp_path_factory: pytest.TempPathFactory, fasti_settings: Mapping[str, object]
) -> Iterator[FastiServer]:
    """A server with an empty timeline and a clock that stands still."""
    command = server_command()
    if command is None:
        pytest.skip("there is no fasti-server on PATH; install it or set FASTI_SERVER to its command")
    with FastiServer(command, tmp_path_factory.mktemp("fasti"), fasti_settings) as server:
        yield server


def _span(by: timedelta | None, parts: Mapping[str, float]) -> timedelta:
    return (by or timedelta()) + timedelta(**parts)


def _environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Ours, but for settings of another server."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FASTI__")}
    for key, value in settings.items():
        own["FASTI__" + key.upper().replace(".", "__")] = str(value)
    return own
