"""A post may take half an hour: what it holds meanwhile, and what becomes of it when the server stops."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from server.engine.clock import SimulatedClock
from server.settings.config import Config
from server.webhook import webhooks
from server.webhook.targets import KEEP_ALIVE_S, Sockets
from shards.errors import StoreFailed
from tests.server.conftest import MINUTE_MS, Running, Start, running, until, with_settings
from tests.support.receiver import Receiver, answer, receiving, silent

from .conftest import put, settled, shown

CUT_S = 0.2


async def hanging(server: Running, receiver: Receiver, count: int = 1, **members: object) -> list[str]:
    """So many messages whose posts are under way, to a receiver that says nothing."""
    receiver.behave = silent
    await put(server, receiver, timeout="30m", concurrency=count, **members)
    names = [await server.schedule("a", n, deliver_to="billing") for n in range(count)]
    await receiver.posts(count)
    return names


async def test_a_timeout_may_be_half_an_hour(server: Running, receiver: Receiver) -> None:
    assert (await put(server, receiver, timeout="30m"))["timeout"] == 1_800.0


@pytest.mark.long
async def test_long_posts_hold_up_no_other_endpoint(server: Running, receiver: Receiver) -> None:
    async with receiving() as quick:
        await hanging(server, receiver, 100)
        await server.schedule("a", "beyond", deliver_to="billing")
        await put(server, quick, "quick")
        for n in range(50):
            await server.schedule("a", n, deliver_to="quick")
        await quick.posts(50)
        assert len(receiver.got) == 100, "its concurrency is taken"
        view = await shown(server)
        assert (view["in_flight"], view["undone"]["lag"]) == (100, 1)


@with_settings(sessions={"ack_timeout_ms": MINUTE_MS})
class TestAckTimeout:
    """The server gives everybody a minute to ack in."""

    async def test_nobody_else_gets_what_is_being_posted(
        self, server: Running, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await hanging(server, receiver)
        monkeypatch.setattr(server.clock, "mono", lambda: time.monotonic() + 1_800)
        await server.pass_time(30 * MINUTE_MS)
        assert len(receiver.got) == 1
        view = await shown(server)
        assert (view["in_flight"], view["undone"]["retries"]) == (1, 0)


async def test_a_test_answers_in_a_minute(
    server: Running, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert webhooks.TRY_S == 60
    monkeypatch.setattr(webhooks, "TRY_S", 0.1)
    await put(server, receiver, timeout="30m")
    receiver.behave = silent
    tried = (await server.call("POST", "/v1/endpoints/billing:test")).body
    assert (tried["ok"], tried["reason"]) == (False, "timed out after 0.1 s")


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_the_posts_of_a_deleted_endpoint_are_cut(
    server: Running, receiver: Receiver, *, is_made_again: bool
) -> None:
    """They would be under way beside those of the next endpoint of that name."""
    await hanging(server, receiver, 3)
    calls = [server.call("DELETE", "/v1/endpoints/billing?undone=drop", status=204)]
    if is_made_again:
        calls.append(server.call("PUT", "/v1/endpoints/billing", {"url": receiver.url()}, status=None))
    await asyncio.gather(*calls)
    await until(lambda: not server.app.webhooks.under_way)


async def test_a_receiver_that_vanished_is_noticed_by_tcp() -> None:
    made = Sockets(allow_private=True)((2, 1, 6, "", ("127.0.0.1", 80)))
    with made:
        assert made.getsockopt(1, 9) == 1  # SOL_SOCKET, SO_KEEPALIVE
        assert made.getsockopt(6, 4) == KEEP_ALIVE_S  # IPPROTO_TCP, TCP_KEEPIDLE


# -- the stop


@pytest.fixture
def cut_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "FINISH_S", CUT_S)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """It outlives its server."""
    async with receiving() as made:
        yield made


def test_posts_have_ten_seconds() -> None:
    assert webhooks.FINISH_S == 10


@pytest.mark.usefixtures("cut_soon")
@pytest.mark.parametrize("ack_timeout_ms", [0, 60_000])
@pytest.mark.parametrize(("target", "tries"), [("billing", 1), ("billing", 2), ("url", 2)])
async def test_a_post_that_the_stop_cuts_comes_again(
    tmp_path: Path,
    config: Config,
    clock: SimulatedClock,
    receiver: Receiver,
    target: str,
    tries: int,
    ack_timeout_ms: int,
) -> None:
    """As after a kill it was a try: its receiver may be busy with it. It is leased to nobody."""
    config = replace(config, sessions=replace(config.sessions, ack_timeout_ms=ack_timeout_ms))
    deliver_to = receiver.url() if target == "url" else target
    async with running(tmp_path, config, clock) as server:
        receiver.behave = silent
        await put(server, receiver, timeout="30m", retry={"max_attempts": tries})
        name = await server.schedule("a", "x", deliver_to=deliver_to)
        await receiver.posts(1)
        began = time.monotonic()
        await server.app.webhooks.stop()
        assert CUT_S <= time.monotonic() - began < CUT_S + 60
        await server.app.quiet()
        assert server.app.core.opened.waiting.retries == 0, "no try has failed"
        assert (await server.call("GET", "/v1/dead")).body["messages"] == []
        (group,) = [one for one in server.app.core.groups if one.session.flights]
        (flight,) = group.session.flights.values()
        assert (flight.attempts, flight.returns, flight.is_leased) == (1, 0, False)
    receiver.behave = answer(200)
    async with running(tmp_path, config, clock) as server:
        if tries > 1:
            again = (await receiver.posts(2))[1]
            said = [again.headers[one] for one in ("webhook-id", "fasti-attempt", "fasti-redelivered")]
            assert said == [name, "2", "true"]
        await settled(server)
        told = (await server.call("GET", f"/v1/messages/{name}")).body["deliveries"]
        assert [one["state"] for one in told] == ["done" if tries > 1 else "dead"]
    assert len(receiver.got) == tries


@pytest.mark.usefixtures("cut_soon")
async def test_what_is_answered_meanwhile_is_done(
    start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "FINISH_S", 600.0)
    asked = asyncio.Event()

    async def late(got: object, writer: asyncio.StreamWriter) -> bool:
        await asked.wait()
        return await answer(200)(got, writer)  # type: ignore[arg-type]

    async with start() as server:
        receiver.script = [late]
        await put(server, receiver, timeout="30m")
        await server.schedule("a", "x", deliver_to="billing")
        await receiver.posts(1)
        asyncio.get_running_loop().call_later(0.05, asked.set)
        began = time.monotonic()
        await server.app.webhooks.stop()
        assert time.monotonic() - began < 60
        await server.schedule("a", "later", deliver_to="billing")
        await server.app.quiet()
        assert len(receiver.got) == 1, "nothing more is begun"
    async with start() as server:
        assert (await receiver.posts(2))[1].body == b"later"
        await settled(server)
    assert len(receiver.got) == 2


async def test_who_can_note_no_answer_waits_for_none(
    server: Running, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that leads no longer: the next leader posts it again."""
    monkeypatch.setattr(webhooks, "FINISH_S", 600.0)
    await hanging(server, receiver)
    writer = server.app.core.writer
    writer.fail(StoreFailed("told to"))
    began = time.monotonic()
    await server.app.webhooks.stop()
    assert time.monotonic() - began < 60
