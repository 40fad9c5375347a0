"""What `ack()` says is true: against the real server, ended and killed with messages in hand and waiting."""

import asyncio
import socket
from datetime import timedelta
from typing import cast

import pytest

import fasti
from fasti.testing import FastiServer
from tests.sdk.conftest import until


def waiting(s: fasti.Subscription) -> int:
    """How many messages have come and are not in the loop's hands."""
    return 0 if s._connection is None else len(s._connection._arrived)


def cut(s: fasti.Subscription) -> None:
    """The network is gone; neither side has said goodbye."""
    assert s._connection is not None
    cast("socket.socket", s._connection._paho.socket()).shutdown(socket.SHUT_RDWR)


async def work(s: fasti.Subscription, done: list[str], last: str = "") -> None:
    """Handle messages, up to the `last`. What an ack fails for is not done, and stands there so."""
    async for d in s:
        done.append(d.text() if await d.ack() else f"not acked: {d.text()}")
        if d.text() == last:
            break


async def connected(c: fasti.Client) -> set[str]:
    return {s.client_id async for s in c.sessions.list() if s.connected}


async def schedule(c: fasti.Client, topic: str, *texts: str) -> None:
    for text in texts:
        await c.messages.schedule(topic, text)


@pytest.mark.parametrize("kill", [False, True])
async def test_over_a_restart(server: FastiServer, kill: bool) -> None:
    async with (
        server.client() as c,
        c.subscribe("s/#", session="worker") as session,
        c.subscribe("g/#", group="workers") as member,
        c.subscribe("p/#") as plain,
    ):
        subscriptions = {"s/1": session, "g/1": member, "p/1": plain}
        acked, held = [], []
        away = timedelta(minutes=2)
        for topic, s in subscriptions.items():
            await c.messages.schedule(topic, "falls due meanwhile", delay=timedelta(minutes=1))
            await schedule(c, topic, "acked", "held", "waits 1", "waits 2")
            acked.append(await anext(s))
            assert await acked[-1].ack()
            held.append(await anext(s))
            await until(lambda s=s: waiting(s) == 2)  # type: ignore[misc]
        if kill:
            server.close()  # and the loop has not had a turn since
        else:
            await server.restart(down_for=away)
        if kill:
            assert [await d.ack() for d in (held[0], held[2])] == [False] * 2, "nobody will read it"
        nexts = [asyncio.ensure_future(anext(s)) for s in subscriptions.values()]
        if kill:
            await server.restart(down_for=away)
        got = [await d for d in nexts]
        if kill:  # it may not have stored what it had read
            assert got[0].text() in ("held", "acked")
            assert got[1].text() in ("waits 1", "acked")
        else:
            # What waits here of a group is held for us, and what is in our hands does not come again.
            assert [(d.text(), d.attempt) for d in got[:2]] == [("held", 2), ("waits 1", 1)]
        assert [await d.ack() for d in got] == [True, True, False], "without a place nobody sends it again"
        assert got[2].text() == "waits 1"
        assert [await d.ack() for d in (held[0], held[2])] == [False] * 2, (
            "of a connection that has ended; there are new ones"
        )
        assert [await d.ack() for d in acked] == [True] * 3, "it was, and nothing is sent"
        rest = await anext(plain)
        assert (rest.text(), await rest.ack()) == ("waits 2", False)
        for s, first in zip((session, member), got, strict=False):
            done = [first.text()]
            async with asyncio.timeout(60):
                await work(s, done, "falls due meanwhile")
            each = ["held", "waits 1", "waits 2", "falls due meanwhile"][s is member :]
            assert done[-len(each) :] == each, "each once, in order"
            assert kill or len(done) == len(each)
            assert s.connections == 2
        assert await held[1].ack(), "a member's counts over the next connection"
    assert not await held[0].ack()
    assert await acked[0].ack()


async def test_what_waits_for_a_member_of_a_group_goes_to_another(server: FastiServer) -> None:
    async with (
        server.client() as c,
        c.subscribe("g/#", group="workers") as one,
        c.subscribe("g/#", group="workers") as other,
    ):
        await schedule(c, "g/1", *(str(n) for n in range(8)))
        await until(lambda: (waiting(one), waiting(other)) == (4, 4))
        held = await anext(one)
        before = await connected(c)
        cut(one)
        assert await held.ack(), "by its id, over the next connection"
        done: list[str] = []
        working = [asyncio.create_task(work(s, done)) for s in (one, other)]
        await until(lambda: len(done) >= 4)
        assert one.connections == 2
        await server.advance(
            timedelta(seconds=2)
        )  # the connection was lost: what it had comes again a little later
        await until(lambda: len(done) >= 7)
        await schedule(c, "g/1", "8")
        await until(lambda: "8" in done)
        assert sorted([*done, held.text()]) == [str(n) for n in range(9)], "each once"
        assert await connected(c) == before
        await other.aclose()
        assert len(await connected(c)) == len(before) - 1
        await one.aclose()
        await asyncio.gather(*working)
    async with server.client() as c:
        assert [s async for s in c.sessions.list()] == [], "they have left nothing behind"
        assert [g.name async for g in c.groups.list()] == ["workers"], "the group keeps its place"


@pytest.mark.parametrize("kill", [False, True])
async def test_what_was_in_hand_is_finished_over_the_next_connection(server: FastiServer, kill: bool) -> None:
    """And what came again meanwhile and waits here is not handed out."""
    async with server.client() as c, c.subscribe("g/#", group="workers") as member:
        await schedule(c, "g/1", "job")
        held = await anext(member)
        if kill:
            await server.restart(kill=True)
        else:
            cut(member)
        assert await held.ack()
        assert await held.ack(), "the answer stays"
        assert member.connections == 2
        await server.advance(seconds=10)
        await schedule(c, "g/1", "next")
        async with asyncio.timeout(60):
            after = await anext(member)
            assert (after.text(), await after.ack()) == ("next", True)

        async def is_settled() -> bool:
            (group,) = await c.groups.get("workers")
            return (group.in_flight, group.lag_messages) == (0, 0)

        await until(is_settled)
        assert [each.reason async for each in c.dead.list()] == []


async def test_an_ack_without_a_next_connection_or_an_id_is_none(
    server: FastiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fasti.subscribe, "LATE_S", 0.1)
    async with server.client() as c, c.subscribe("g/#", group="workers") as member:
        await schedule(c, "g/1", "job")
        held = await anext(member)
        server.close()
        assert not await held.ack()


async def test_a_close_while_it_reconnects_ends_the_loop_and_leaves_no_member(server: FastiServer) -> None:
    async with server.client() as c:
        member = c.subscribe("g/#", group="workers")
        await member.__aenter__()
        server.close()
        waits = asyncio.ensure_future(anext(member, None))
        await asyncio.sleep(0.1)
        await member.aclose()
        await server.restart(kill=True)
        async with asyncio.timeout(30):
            assert await waits is None
        (group,) = await c.groups.get("workers")
        assert group.raw["members"] == []
        with pytest.raises(fasti.Unreachable, match="closed"):
            await member.__aenter__()
