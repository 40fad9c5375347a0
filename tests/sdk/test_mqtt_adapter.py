"""What goes over the wire, against a scripted peer: refusals, takeover, whose ack goes where, QoS 2."""

import asyncio
import threading
from datetime import timedelta

import pytest

import fasti
from tests.sdk.conftest import QUICK, taken, until
from tests.sdk.scripted import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Act,
    Peer,
    Script,
    giving,
    hearing,
    rest,
    saying,
    soon,
)


def client(script: Script, key: str | None = None) -> fasti.Client:
    return fasti.Client(mqtt=script.address, retry=QUICK, key=key)


def is_over(s: fasti.Subscription) -> bool:
    """Whether it knows that its connection has ended."""
    return s._connection is None or not s._connection.is_open


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

    async with Script(busy, busy, giving(b"x")) as script, client(script) as c:
        assert (await anext(c.subscribe("t"))).text() == "x"
    async with Script(busy) as script, client(script) as c:
        with pytest.raises(fasti.Unreachable, match="0x89"):
            await anext(c.subscribe("t"))
        assert script.connections == QUICK.attempts


async def test_taken_over_is_final() -> None:
    act = giving(then=saying(DISCONNECT, b"\x8e\x00"))
    async with Script(act) as script, client(script) as c:
        subscription = c.subscribe("t", session="audit")
        with pytest.raises(fasti.Refused, match="taken over") as refused:
            await anext(subscription)
        assert refused.value.reason_code == 0x8E
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)
        assert script.connections == 1


async def test_shutting_down_is_not() -> None:
    act = giving(then=saying(DISCONNECT, b"\x8b\x00"))
    async with Script(act, giving(b"x")) as script, client(script) as c:
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
        await until(lambda: is_over(s))
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
    assert (said[0], sorted(said[1:4])) == ((1, PUBREC), [(2, PUBREC), (2, PUBCOMP), (2, PUBCOMP)])
    assert said[4:] == [(2, DISCONNECT)]


async def test_a_close_sees_the_acks_through() -> None:
    heard: list[int] = []

    async def hear(peer: Peer) -> None:
        while True:
            heard.append((await peer.read(answer_pings=False))[0])
            if heard[-1] == PINGREQ:
                await soon(peer)
                heard.append(PINGRESP)
                peer.send(PINGRESP, b"")

    async with Script(giving(b"x", then=hear)) as script, client(script) as c:
        async with c.subscribe("t") as s:
            await (await anext(s)).ack()
        assert heard[:3] == [PUBACK, PINGREQ, PINGRESP], "only then comes the end"


@pytest.mark.parametrize("qos", [1, 2])
async def test_an_ack_is_said_once(qos: int) -> None:
    heard: list[tuple[int, bytes]] = []
    async with Script(giving(b"x", qos=qos, then=hearing(heard))) as script, client(script) as c:
        async with c.subscribe("t", session="audit", qos=qos) as s:
            d = await anext(s)
            assert await asyncio.gather(d.ack(), d.ack(), d.ack()) == [True] * 3
            assert await d.ack()
        assert await d.ack(), "it was acked, and still is"
        await until(lambda: bool(heard) and heard[-1][0] == DISCONNECT)
    assert [first for first, _ in heard] == [PUBACK if qos == 1 else PUBREC, DISCONNECT]


@pytest.mark.parametrize("qos", [1, 2])
async def test_an_ack_after_the_close_is_none(qos: int) -> None:
    heard: list[tuple[int, bytes]] = []
    async with Script(giving(b"x", qos=qos, then=hearing(heard))) as script, client(script) as c:
        async with c.subscribe("t", session="audit", qos=qos) as s:
            d = await anext(s)
        assert not await d.ack()
        await until(lambda: bool(heard) and heard[-1][0] == DISCONNECT)
    assert [first for first, _ in heard] == [DISCONNECT]


@pytest.mark.parametrize("qos", [1, 2])
async def test_an_ack_while_it_closes_is_none(qos: int) -> None:
    heard: list[int] = []
    is_closing, may_go_on = asyncio.Event(), asyncio.Event()

    async def hear(peer: Peer) -> None:
        while True:
            heard.append((await peer.read(answer_pings=False))[0])
            if heard[-1] == PINGREQ:
                is_closing.set()
                await may_go_on.wait()
                peer.send(PINGRESP, b"")

    async with Script(giving(b"1", b"2", qos=qos, then=hear)) as script, client(script) as c:
        s = c.subscribe("t", session="audit", qos=qos)
        one, two = await anext(s), await anext(s)
        assert await one.ack()
        closing = asyncio.create_task(s.aclose())
        await is_closing.wait()
        assert not await two.ack(), "nobody would wait until it is read"
        may_go_on.set()
        await closing
        await until(lambda: heard[-1] == DISCONNECT)
    assert heard == [PUBACK if qos == 1 else PUBREC, PINGREQ, DISCONNECT]


async def test_an_ack_that_the_peer_can_no_longer_read_is_none() -> None:
    """The loop was held up by a user's code, so that it has not seen the end of the connection."""
    gone = threading.Event()

    async def end(peer: Peer) -> None:
        await asyncio.to_thread(held.wait)
        peer.cut()
        await asyncio.sleep(0.05)
        gone.set()

    def serve() -> None:
        async def main() -> None:
            async with Script(giving(b"1", b"2", then=end), rest) as script:
                ports.append(script.port)
                ready.set()
                await asyncio.to_thread(done.wait)

        asyncio.run(main())

    held, ready, done = threading.Event(), threading.Event(), threading.Event()
    ports: list[int] = []
    peer = threading.Thread(target=serve)
    peer.start()
    ready.wait(60)
    try:
        async with fasti.Client(mqtt=f"127.0.0.1:{ports[0]}", retry=QUICK) as c:
            s = c.subscribe("t", session="audit")
            one = await anext(s)
            held.set()
            gone.wait(60)
            assert not await one.ack()
            assert not await one.ack()
            await s.aclose()
    finally:
        done.set()
        await asyncio.to_thread(peer.join)


@pytest.mark.parametrize("ends", [False, True])
async def test_an_ack_waits_until_the_socket_has_taken_it(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[int, bytes]] = []
    async with Script(giving(b"x", then=hearing(heard))) as script, client(script) as c:
        s = c.subscribe("t", session="audit")
        d = await anext(s)
        assert s._connection is not None
        paho = s._connection._paho
        send = paho._sock_send

        def one_byte(data: bytes) -> int:
            if sent:
                raise BlockingIOError
            sent.append(data[0])
            return send(data[:1])

        sent: list[int] = []
        monkeypatch.setattr(paho, "_sock_send", one_byte)
        first, second = asyncio.create_task(d.ack()), asyncio.create_task(d.ack())
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.sleep(0.05)
        assert not second.done(), "the socket has one byte of it"
        if ends:
            paho._sock_close()
            await s.aclose()
        else:
            monkeypatch.undo()
        assert await second is not ends
        assert await d.ack() is not ends
        await s.aclose()
    assert heard[:1] == ([] if ends else [(PUBACK, b"\x00\x01")])


async def test_at_qos_2_without_a_session_an_ack_is_not_kept() -> None:
    async with Script(giving(b"x", qos=2, then=soon)) as script, client(script) as c:
        s = c.subscribe("t", qos=2)
        d = await anext(s)
        await until(lambda: is_over(s))
        assert not await d.ack()
        await s.aclose()


async def test_at_qos_0_there_is_nothing_to_ack() -> None:
    async def end(peer: Peer) -> None:
        peer.send(PUBLISH, b"\x00\x01t\x00x")
        await soon(peer)

    async with Script(giving(then=end)) as script, client(script) as c:
        s = c.subscribe("t", session="audit")
        d = await anext(s)
        await until(lambda: is_over(s))
        assert (d.qos, await d.ack()) == (0, True), "it does not come again"
        await s.aclose()
        assert await d.ack()


async def test_an_old_packet_id_acks_nothing_on_a_new_connection() -> None:
    heard: list[tuple[int, bytes]] = []

    async def act(peer: Peer) -> None:
        number = script.connections
        await peer.welcome(session_present=number > 1)
        await peer.subscribed(code=2)
        # in between another process had the session: the packet id is another message's now
        peer.publish(7, b"old" if number == 1 else b"new", qos=2)
        await (soon if number == 1 else hearing(heard))(peer)

    script = Script(act)
    async with script, client(script) as c, c.subscribe("t", session="audit", qos=2) as s:
        old = await anext(s)
        await until(lambda: is_over(s))
        new = await anext(s)
        assert new.text() == "new", "it is not taken for the old one"
        assert not await old.ack()
        await asyncio.sleep(0.05)
        assert not heard
        assert await new.ack()
        await until(lambda: bool(heard))
        assert heard[0] == (PUBREC, b"\x00\x07")


@pytest.mark.parametrize("session_present", [False, True])
async def test_what_waited_here_is_not_handled_twice(session_present: bool) -> None:
    async def act(peer: Peer) -> None:
        number = script.connections
        await peer.welcome(session_present=session_present and number > 1)
        await peer.subscribed()
        for mid in (1, 2):
            if number == 1 or session_present:
                peer.publish(mid, b"%d" % mid, dup=number > 1)
        if number > 1:
            peer.publish(3, b"3")
        await (soon if number == 1 else rest)(peer)

    script = Script(act)
    async with script, client(script) as c, c.subscribe("t", session="audit") as s:
        first = await anext(s)
        await until(lambda: is_over(s))
        assert not await first.ack()
        got = await taken(s, 3 if session_present else 2, ack=False)
        texts = ["1", "2", "3"] if session_present else ["2", "3"]
        assert [d.text() for d in got] == texts, "of 2, which waited here, one copy"
        assert [await d.ack() for d in got] == ([True] * 3 if session_present else [False, True])


async def test_without_a_session_what_had_come_is_handed_out_before_there_is_a_connection_again() -> None:
    """Nobody will send it again."""
    script = Script(giving(b"1", b"2", then=soon), giving(b"3"))
    async with script, client(script) as c, c.subscribe("t") as s:
        assert (await anext(s)).text() == "1"
        await until(lambda: is_over(s))
        assert ((await anext(s)).text(), s.connections) == ("2", 1)
        assert ((await anext(s)).text(), s.connections) == ("3", 2)


@pytest.mark.parametrize("answered", [b"", b"\x20\x03", b"\x20\x03\x00\x00\x00", None])
async def test_a_connection_that_is_cut_while_it_comes_up_is_seen_at_once(answered: bytes | None) -> None:
    """Before, in the middle of, and right behind CONNACK; behind SUBSCRIBE. It is then made again."""
    acts = []

    async def cut(peer: Peer) -> None:
        acts.append(peer)
        if len(acts) > 3:
            await giving()(peer)
        elif answered is None:
            await peer.welcome()
            await peer.read()
        else:
            await peer.read()
            peer._writer.write(answered)

    async with Script(cut) as script, client(script) as c, asyncio.timeout(30), c.subscribe("t") as s:
        assert s.connections == 1
    assert len(acts) == 4
