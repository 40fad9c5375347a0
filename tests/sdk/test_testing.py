"""`fasti.testing` itself: settings, the clock, a server that does not come up."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest

from fasti.testing import FastiServer, server_command

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "server"]


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


async def test_settings_and_clock(tmp_path: Path) -> None:
    with FastiServer(COMMAND, tmp_path, {"limits.max_delay": "10d"}) as server:
        async with server.client() as c:
            before = (await c.info()).now
            assert await server.advance(days=1, hours=1) == before + timedelta(hours=25)
            assert await server.advance(timedelta(minutes=1)) == before + timedelta(hours=25, minutes=1)
            with pytest.raises(Exception, match="max_delay"):
                await c.messages.schedule("a", delay=timedelta(days=11))


def test_a_server_that_does_not_come_up(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)did not come up.*max_delay"):
        FastiServer(COMMAND, tmp_path, {"limits.max_delay": "nonsense"})


def test_which_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FASTI_SERVER", "python -m 'server'")
    assert server_command() == ["python", "-m", "server"]
    monkeypatch.delenv("FASTI_SERVER")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server_command() is None
    (tmp_path / "fasti-server").touch(mode=0o755)
    assert server_command() == [str(tmp_path / "fasti-server")]
