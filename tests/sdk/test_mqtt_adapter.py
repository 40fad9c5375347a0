"""What goes over the wire, against a scripted peer: refusals, takeover, whose ack goes where, QoS 2."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import fasti
from tests.sdk.conftest import QUICK, until
from tests.sdk.scripted import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Act,
    Peer,
    Script,
)


def client(script: Script, key: str | None = None) -> fasti.Client:
    return fasti.Client(mqtt=script.address, retry=QUICK, key=key)


async def rest(peer: Peer) -> None:
    """Read until the other side goes."""
    while True:
        await peer.read()


async def test_connect_says_who_and_for_how_long() -> None:
    seen: list[bytes] = []

    async def act(peer: Peer) -> None:
        seen.append(await peer.welcome())
        seen.append(await peer.subscribed())
        await rest(peer)

    async with Script(act) as script, client(script, key="secret") as c:
        async with c.subscribe("t/#", session="audit", max_in_flight=7, expiry=timedelta(hours=1)):
            pass
        async with c.subscribe("t/#", replay_from=timedelta(hours=1)):
            pass
    kept, _, clean, subscribe = seen
    # flags: user name, password, no clean start; session expiry 3,600 s; receive maximum 7
    assert kept[7] == 0b1100_0000
    assert b"\x11\x00\x00\x0e\x10" in kept
    assert b"\x21\x00\x07" in kept
    assert b"\x00\x05audit" in kept
    assert b"\x00\x06secret" in kept
    assert clean[7] == 0b1100_0010
    assert b"\x11\x00\x00\x00\x00" in clean
    assert b"replay-from\x00\x04PT1H" in subscribe


async def test_replay_from_is_said_once() -> None:
    seen: list[bytes] = []

    async def act(peer: Peer) -> None:
        await peer.welcome()
        seen.append(await peer.subscribed())
        if len(seen) == 1:
            return
        peer.publish(1, b"x")
        await rest(peer)

    async with Script(act) as script, client(script) as c:
        async for _ in c.subscribe("t", replay_from="PT1H"):
            break
    assert [b"replay-from" in s for s in seen] == [True, False]


async def test_suback_names_its_reason() -> None:
    filters: list[bytes] = []

    async def act(peer: Peer) -> None:
        await peer.welcome()
        filters.append(await peer.subscribed(code=0x9E))
        await rest(peer)

    async with Script(act) as script, client(script) as c:
        with pytest.raises(fasti.Refused, match=r"Shared subscription.* not supported") as refused:
            await anext(c.subscribe("t/#", group="workers"))
    assert refused.value.reason_code == 0x9E
    assert refused.value.slug.startswith("mqtt-shared-subscription")
    assert b"$share/workers/t/#" in filters[0]


@pytest.mark.parametrize("code", [0x86, 0x87, 0x8A])
async def test_connack_refusal_is_final(code: int) -> None:
    async def act(peer: Peer) -> None:
        await peer.welcome(code=code)
        await rest(peer)

    async with Script(act) as script, client(script) as c:
        with pytest.raises(fasti.Refused) as refused:
            await anext(c.subscribe("t"))
        assert script.connections == 1
    assert refused.value.reason_code == code


async def test_busy_is_tried_again() -> None:
    async def busy(peer: Peer) -> None:
        await peer.welcome(code=0x89)
        await rest(peer)

    async def open_(peer: Peer) -> None:
        await peer.welcome()
        await peer.subscribed()
        peer.publish(1, b"x")
        await rest(peer)

    async with Script(busy, busy, open_) as script, client(script) as c:
        assert (await anext(c.subscribe("t"))).text() == "x"
    async with Script(busy) as script, client(script) as c:
        with pytest.raises(fasti.Unreachable, match="0x89"):
            await anext(c.subscribe("t"))
        assert script.connections == QUICK.attempts


async def test_taken_over_is_final() -> None:
    async def act(peer: Peer) -> None:
        await peer.welcome()
        await peer.subscribed()
        peer.send(DISCONNECT, b"\x8e\x00")
        await rest(peer)

    async with Script(act) as script, client(script) as c:
        subscription = c.subscribe("t", session="audit")
        with pytest.raises(fasti.Refused, match="taken over") as refused:
            await anext(subscription)
        assert refused.value.reason_code == 0x8E
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)
        assert script.connections == 1


async def test_shutting_down_is_not() -> None:
    async def act(peer: Peer) -> None:
        await peer.welcome()
        await peer.subscribed()
        peer.send(DISCONNECT, b"\x8b\x00")
        await rest(peer)

    async def later(peer: Peer) -> None:
        await peer.welcome()
        await peer.subscribed()
        peer.publish(1, b"x")
        await rest(peer)

    async with Script(act, later) as script, client(script) as c:
        assert (await anext(c.subscribe("t"))).text() == "x"


async def test_an_ack_goes_out_after_the_users_code_and_on_its_own_connection() -> None:
    acks: list[tuple[int, int, bytes]] = []

    def act(number: int, *, dup: bool) -> Act:
        async def play(peer: Peer) -> None:
            await peer.welcome(session_present=dup)
            await peer.subscribed()
            for mid in (1, 2, 3):
                peer.publish(mid, b"%d" % mid, dup=dup)
            while True:
                first, body = await peer.read()
                acks.append((number, first, body))
                if number == 1:
                    return

        return play

    script = Script(act(1, dup=False), act(2, dup=True))
    async with script, client(script) as c, c.subscribe("t", session="audit") as s:
        one, two = await anext(s), await anext(s)
        await asyncio.sleep(0.1)
        assert not acks, "nothing is acked by itself"
        assert await one.ack()
        await until(lambda: s._connection is None or not s._connection.is_open)
        assert not await two.ack(), "its connection has ended"
        again = [await anext(s) for _ in range(3)]
        assert [d.text() for d in again] == ["1", "2", "3"], "3 waited here and is not handed out twice"
        assert not await two.ack()
        assert await again[1].ack()
        assert await again[1].ack()
        await asyncio.sleep(0.1)
    assert acks[:2] == [(1, PUBACK, b"\x00\x01"), (2, PUBACK, b"\x00\x02")]
    assert [a[1] for a in acks[2:]] == [DISCONNECT]


async def test_qos_2_over_a_lost_connection() -> None:
    said: list[tuple[int, int]] = []

    async def act(peer: Peer) -> None:
        number = script.connections
        await peer.welcome(session_present=number > 1)
        await peer.subscribed(code=2)
        peer.publish(1, b"1", qos=2, dup=number > 1)
        if number == 2:
            peer.send(PUBREL, b"\x00\x09")  # of an exchange that we know nothing of: PUBCOMP all the same
        while True:
            first, body = await peer.read()
            said.append((number, first))
            if first == PUBREC and number == 1:
                return  # the PUBREC is lost
            if first == PUBREC:
                peer.send(PUBREL, body)
            if first == PUBCOMP and body == b"\x00\x01":
                peer.publish(1, b"next", qos=2)

    script = Script(act)
    async with script, client(script) as c, c.subscribe("t", session="audit", qos=2) as s:
        first = await anext(s)
        assert not said
        assert await first.ack()
        assert (await anext(s)).text() == "next", "the second copy of 1 was not handed out"
    assert said[0] == (1, PUBREC)
    assert sorted(said[1:4]) == [(2, PUBREC), (2, PUBCOMP), (2, PUBCOMP)]
    assert said[4:] == [(2, DISCONNECT)]


async def test_a_close_sees_the_acks_through() -> None:
    heard: list[int] = []

    async def act(peer: Peer) -> None:
        await peer.welcome()
        await peer.subscribed()
        peer.publish(1, b"x")
        while True:
            heard.append((await peer.read(answer_pings=False))[0])
            if heard[-1] == PINGREQ:
                await asyncio.sleep(0.1)
                heard.append(PINGRESP)
                peer.send(PINGRESP, b"")

    async with Script(act) as script, client(script) as c:
        async with c.subscribe("t") as s:
            await (await anext(s)).ack()
        assert heard[:3] == [PUBACK, PINGREQ, PINGRESP], "only then comes the end"
