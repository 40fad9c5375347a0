"""The stand-in server and a mosquitto broker, each on a free port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

import fasti
from tests.sdk.fake import Fake
from tests.support.ports import free_port
from tests.support.sdk_forked import forked  # noqa: F401

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/sbin")
QUICK = fasti.Retry(attempts=4, first_s=0.01, cap_s=0.05)


async def until(true: Callable[[], bool]) -> None:
    """Poll: what is waited for happens in another process."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
async def url(fake: Fake) -> AsyncIterator[str]:
    runner = web.AppRunner(fake.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def client(url: str) -> AsyncIterator[fasti.Client]:
    async with fasti.Client(url, retry=QUICK) as made:
        yield made


@dataclass
class Broker:
    """A mosquitto child that keeps its sessions on disk, so that it can be killed and come back."""

    home: Path
    port: int = field(default_factory=free_port)
    child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        config = self.home / "mosquitto.conf"
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            f"user {getpass.getuser()}",  # else it gives up root, and with it the right to write here
            "persistence true",
            f"persistence_location {self.home}/",
            "autosave_interval 1",
            "autosave_on_changes true",
            "max_queued_messages 100000",
        ]
        if not config.exists():
            config.write_text("\n".join(lines) + "\n")
        self.child = subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL)
        self._wait()

    def stop(self, *, kill: bool = False) -> None:
        """End it: by default so that it saves its sessions first."""
        if self.child is not None:
            child, self.child = self.child, None
            child.kill() if kill else child.terminate()
            child.wait(60)

    def _wait(self) -> None:
        for _ in range(3_000):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError("mosquitto did not come up")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    made = Broker(tmp_path)
    made.start()
    yield made
    made.stop()
