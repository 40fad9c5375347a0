"""The stand-in server, the real one and a mosquitto broker, each on a free port of 127.0.0.1."""

import asyncio
import functools
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import fasti
import fasti.testing
from tests.sdk.fake import Fake
from tests.support.http import open_site
from tests.support.ports import free_port
from tests.support.sdk_forked import forked  # noqa: F401

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/sbin")
QUICK = fasti.Retry(attempts=4, first_s=0.01, cap_s=0.05)
PATIENT = fasti.Retry(attempts=25, first_s=0.05, cap_s=1)
"""Over a restart of the server."""
ROOT = Path(__file__).parents[2]
until = functools.partial(fasti.testing.until, within_s=60)
"""What is waited for happens in another process."""


async def taken(
    deliveries: AsyncIterator[fasti.Delivery], count: int, *, ack: bool = True
) -> list[fasti.Delivery]:
    got: list[fasti.Delivery] = []
    async with asyncio.timeout(60):
        while len(got) < count:
            got.append(await anext(deliveries))
            assert not ack or await got[-1].ack()
    return got


async def take(deliveries: AsyncIterator[fasti.Delivery], count: int, *, ack: bool = True) -> list[str]:
    return [d.text() for d in await taken(deliveries, count, ack=ack)]


async def quiet(deliveries: AsyncIterator[fasti.Delivery], seconds: float = 0.3) -> None:
    """Nothing comes."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await anext(deliveries)


@pytest.fixture(autouse=True)
def no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of who runs the tests; and a child that imports fasti finds it."""
    monkeypatch.setenv("FASTI_CONFIG", "/nonexistent/config.toml")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYTHONPATH", "sdk")


@pytest.fixture
def settings() -> dict[str, object]:
    """Those of `server`."""
    return {}


@pytest.fixture
def server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    forked: None,  # noqa: F811
) -> Iterator[fasti.testing.FastiServer]:
    """The real one, on a clock that tests move."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'sdk'}")
    with fasti.testing.FastiServer([sys.executable, "-m", "server"], tmp_path, settings) as made:
        yield made


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
async def url(fake: Fake) -> AsyncIterator[str]:
    async with open_site(fake.app()) as made:
        yield made


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
