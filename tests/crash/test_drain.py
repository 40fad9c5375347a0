"""SIGTERM with `--drain`: what is out is finished, clients come and go meanwhile, then the server stops."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from server.__main__ import main
from server.codec.packets import Publish
from tests.support.http import http
from tests.support.mqtt import Peer, dial, user
from tests.support.receiver import Got, answer, receiving
from tests.support.server import ServerProcess, serving

pytestmark = pytest.mark.short

LONG = ("--drain", "10m")
PULL = "/v1/groups/pull/messages"


async def working(server: ServerProcess) -> Peer:
    """A worker of a group."""
    worker = await dial(server.mqtt)
    await worker.connect("w", clean=False, session_expiry=600)
    await worker.subscribe("$share/g/t/#", user_properties=(("ack-timeout", "10m"),))
    return worker


async def drains(server: ServerProcess, number: signal.Signals = signal.SIGTERM) -> None:
    """Ask it to stop, and wait until it drains."""
    os.kill(server.pid, number)
    async with asyncio.timeout(60):
        while "drain: waiting" not in server.output:
            await asyncio.sleep(0.01)


async def ended(server: ServerProcess) -> str:
    """It ends by itself, in order; what it wrote."""
    assert await asyncio.to_thread(server.process.wait, 60) == 0
    assert "Traceback" not in server.output
    return server.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_ends_when_all_is_acked_and_serves_meanwhile(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    async with serving(data, *LONG) as server, http(server.url) as calls:
        worker = await working(server)
        await calls.call("PUT", "/v1/groups/pull", {"filter": "p/#"}, status=201)
        await calls.schedule("t/1", "first")
        await calls.schedule("p/1")
        first = await worker.take(Publish)
        leased = (await calls.call("POST", f"{PULL}:lease", {"max": 9}, status=200)).body["messages"]
        await drains(server, number)
        assert "drain: waiting 600 s at most for 2 messages that are out" in server.output
        ready = await calls.call("GET", "/readyz", status=200)
        assert ready.body == {"status": "draining", "draining": True}
        assert (await calls.call("POST", "/v1/drain:cancel", status=409)).slug == "wrong-state"
        session = await dial(server.mqtt)
        await session.connect("session")
        await session.subscribe("t/#")
        await calls.schedule("t/2", "second")
        assert (await session.take(Publish)).payload == b"second"
        await calls.call("POST", f"{PULL}:ack", {"lease_ids": [leased[0]["lease_id"]]}, status=200)
        assert server.is_running
        assert worker.inbox == []
        worker.ack(first)
        assert "0 messages are still out, 0 of them leased over the stop" in await ended(server)
    async with serving(data) as server:
        worker = await working(server)
        (second,) = await worker.take_many(1)
        assert (second.payload, user(second, "fasti-attempt") or "1") == (b"second", "1")
        await worker.silence(0.3)


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", *LONG) as server, http(server.url) as calls:
        worker = await working(server)
        await calls.schedule("t/1")
        await worker.take(Publish)
        await drains(server)
        os.kill(server.pid, signal.SIGINT)
        assert "1 messages are still out, 1 of them leased over the stop" in await ended(server)


async def test_what_takes_too_long_is_leased_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with serving(data, "--drain", "1s") as server, http(server.url) as calls:
        await calls.call("PUT", "/v1/groups/pull", {"filter": "p/#"}, status=201)
        await calls.schedule("p/1")
        asked = {"max": 9, "lease": "10m"}
        (leased,) = (await calls.call("POST", f"{PULL}:lease", asked, status=200)).body["messages"]
        began = time.monotonic()
        await drains(server)
        assert "1 messages are still out, 1 of them leased over the stop" in await ended(server)
        assert time.monotonic() - began >= 1
    async with serving(data) as server, http(server.url) as calls:
        empty = await calls.call("POST", f"{PULL}:lease", {"max": 9}, status=200)
        assert empty.body["messages"] == []
        acked = await calls.call("POST", f"{PULL}:ack", {"lease_ids": [leased["lease_id"]]}, status=200)
        assert acked.body == {"acked": 1, "gone": []}


async def test_a_post_under_way_is_finished(tmp_path: Path) -> None:
    """With a simulated clock too: a drain waits by the machine's time."""
    may_answer = asyncio.Event()

    async def late(got: Got, writer: asyncio.StreamWriter) -> bool:
        await may_answer.wait()
        return await answer(200)(got, writer)

    data, settings = tmp_path / "data", {"webhook.allow_private": "true"}
    async with (
        receiving() as receiver,
        serving(data, *LONG, "--clock", "simulated", settings=settings) as server,
        http(server.url) as calls,
    ):
        receiver.behave = late
        message = await calls.schedule("a", "x", deliver_to=receiver.url())
        await receiver.posts(1)
        await drains(server)
        await calls.schedule("a", "waits", deliver_to=receiver.url())
        may_answer.set()
        assert "0 messages are still out" in await ended(server)
        assert [one.body for one in receiver.got] == [b"x"]
        async with serving(data, "--clock", "simulated", settings=settings) as server:
            assert (await receiver.posts(2))[1].body == b"waits"
            async with http(server.url) as again:
                seen = (await again.call("GET", f"/v1/messages/{message}", status=200)).body
        assert [one["state"] for one in seen["deliveries"] if "group" in one] == ["done"]


async def test_with_nothing_out_it_ends_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", *LONG) as server, http(server.url) as calls:
        assert (await calls.call("POST", "/v1/drain", status=200)).body["out"] == 0
        os.kill(server.pid, signal.SIGTERM)
        assert "0 messages are still out" in await ended(server)


@pytest.mark.parametrize("given", ["soon", "-1", "1 month", ""])
def test_a_time_that_is_none_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([f"--drain={given}"])
    assert refused.value.code == 2
    assert "argument --drain: " in capsys.readouterr().err
