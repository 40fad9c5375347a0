"""`fasti.testing` itself: settings, the clock, a server that does not come up."""

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import fasti
from fasti.testing import FastiServer, server_command, until
from tests.sdk.conftest import ROOT, taken

COMMAND = [sys.executable, "-m", "server"]
START = datetime(2024, 2, 28, 9, tzinfo=UTC)
"""In the past, and before a leap day."""


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
                await c.messages.schedule("a", "", delay=timedelta(days=11))


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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FastiServer]:
    with FastiServer(COMMAND, tmp_path, start=START) as made:
        yield made


async def test_it_begins_when_it_is_told_and_goes_where_it_is_told(
    server: FastiServer, tmp_path: Path
) -> None:
    async with server.client() as c:
        assert (await c.info()).now == START
        await c.schedules.put("nine", cron="0 9 * * *", timezone="UTC", topic="t/nine", payload="x")
        nine = datetime(2024, 3, 1, 9, tzinfo=UTC)
        async with c.subscribe("t/nine") as s:
            assert await server.advance_to(nine) == nine
            got = await taken(s, 2)
            assert [d.due for d in got] == [nine - timedelta(days=1), nine]
            assert [d.lateness for d in got] == [timedelta(), timedelta()]
        there = nine.astimezone(timezone(timedelta(hours=-11)))
        assert await server.advance_to(there) == nine, "it is there"
        nine += timedelta(milliseconds=1)
        assert await server.advance_to(nine - timedelta(microseconds=999)) == nine, "not before"
        with pytest.raises(fasti.BadArgument, match=r"^to .*2024-03-01T09:00:00\.001") as refused:
            await server.advance_to(nine - timedelta(microseconds=1))
        assert refused.value.argument == "to"
        naive, back = datetime(2030, 1, 1), timedelta(seconds=-1)
        with pytest.raises(fasti.BadArgument, match=r"^start .*time zone"):
            FastiServer(COMMAND, tmp_path / "other", start=naive)
        with pytest.raises(fasti.BadArgument, match=r"^to .*time zone"):
            await server.advance_to(naive)
        with pytest.raises(fasti.BadArgument, match=r"^by .*negative"):
            await server.advance(back)
        with pytest.raises(fasti.BadArgument, match=r"^down_for .*negative"):
            await server.restart(kill=True, down_for=back)
        assert (await c.info()).now == nine, "it was neither ended nor moved"


async def test_a_restart(server: FastiServer) -> None:
    addresses = server.url, server.mqtt
    async with server.client() as c, c.subscribe("t/#", session="worker") as s:
        for misfire in ("fire_once", "fire_all", "skip"):
            await c.schedules.put(misfire, every=3600, topic=f"t/{misfire}", payload="x", misfire=misfire)
        await c.messages.schedule("t/kept", "x", delay=timedelta(hours=3))
        dropped = await c.messages.schedule("t/dropped", "x", delay=timedelta(hours=3), late="drop")
        now = START + timedelta(minutes=30)
        assert await c.advance(timedelta(minutes=30)) == now, "by whomever"
        restarting = asyncio.create_task(server.restart())
        meanwhile = await c.messages.schedule("u", "waits for it", delay=1)
        assert await restarting == now, "no time has passed"
        assert (server.url, server.mqtt) == addresses
        assert meanwhile.deliver_at == now + timedelta(seconds=1)
        assert await c.messages.count() == 6

        now += timedelta(hours=4)
        assert await server.restart(kill=True, down_for=timedelta(hours=4)) == now
        assert (await dropped.refresh()).state == "expired"
        got = await taken(s, 6)
        late = [timedelta(hours=n, minutes=30) for n in range(4)]
        assert {(d.topic.removeprefix("t/"), d.lateness) for d in got} == {
            ("kept", late[1]),
            ("fire_once", late[3]),
            *(("fire_all", each) for each in late),
        }
        assert s.connections == 2, "it came back by itself, when the loop asked for the next one"
        await server.advance(minutes=30)
        assert {(d.topic.removeprefix("t/"), d.lateness) for d in await taken(s, 3)} == {
            (misfire, timedelta()) for misfire in ("fire_once", "fire_all", "skip")
        }


def test_without_an_event_loop(server: FastiServer, tmp_path: Path) -> None:
    with server.sync_client() as c, c.subscribe("t", session="worker") as s:
        late = c.messages.schedule("t", "late", delay=60)
        server.close()  # as if it had ended by itself
        assert server.restart_sync(down_for=timedelta(minutes=2)) == START + timedelta(minutes=2)
        d = next(s)
        assert (d.id, d.lateness, d.ack()) == (late.id, timedelta(minutes=1), True)
        on_time = c.messages.schedule("t", "on time", delay=60)
        assert server.advance_to_sync(START + timedelta(minutes=3)) == START + timedelta(minutes=3)
        d = next(s)
        assert (d.id, d.lateness) == (on_time.id, timedelta())
    (tmp_path / "data" / "CURRENT").write_text("nonsense")
    with pytest.raises(RuntimeError, match=r"did not come up") as failed:
        server.restart_sync(kill=True)
    assert "listening" not in str(failed.value), "what it says is of this start"


async def test_until() -> None:
    """Takes the bound by place, too; says what was waited for in vain; a TimeoutError of the test's own goes
    through."""
    seen = iter([False, True])
    await until(lambda: next(seen), 30)

    async def soon() -> bool:
        return next(seen, True)

    await until(soon, within_s=30)
    with pytest.raises(TimeoutError, match=r"not true within 0\.01 s"):
        await until(lambda: False, 0.01)
    with pytest.raises(fasti.BadArgument, match="true must be a function, such as lambda: True"):
        await until(True, 30)  # type: ignore[arg-type]

    def own() -> bool:
        raise TimeoutError("own")

    with pytest.raises(TimeoutError, match="own"):
        await until(own)
