"""`nack()` and `extend()` of a delivery, byte by byte, and what waits here for too long."""

import asyncio
import json
from datetime import timedelta

import pytest

import fasti
from fasti.delivery import reason_of
from fasti.subscribe import SubscribeRequest
from tests.sdk.conftest import QUICK, taken, until
from tests.sdk.scripted import PUBACK, PUBLISH, PUBREC, PUBREL, Peer, Script, giving, hearing, rest
from tests.sdk.test_mqtt_adapter import client

Heard = list[tuple[int, bytes]]


def user_property(name: str, value: str) -> bytes:
    said = b"".join(len(text).to_bytes(2, "big") + text.encode() for text in (name, value))
    return b"\x26" + said


def leased(mid: int, payload: bytes, ms: int) -> bytes:
    """A PUBLISH at QoS 1 that is ours for so long."""
    said = user_property("fasti-ack-timeout", str(ms))
    return b"\x00\x01t" + mid.to_bytes(2, "big") + bytes((len(said),)) + said + payload


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
async def test_a_nack_says_when_again_and_why(qos: int, kind: int) -> None:
    heard: Heard = []
    act = giving(*[b"x"] * 3, qos=qos, then=hearing(heard))
    async with Script(act) as script, client(script) as c:
        async with c.subscribe("t", session="s", qos=qos) as s:
            one, two, three = [await anext(s) for _ in range(3)]
            assert await one.nack()
            assert await two.nack(timedelta(minutes=5), "no paper")
            assert not await two.ack(), "the first answer counts"
            assert await two.nack(), "said once"
            assert await three.ack()
            assert not await three.nack()
            await until(lambda: len(heard) == 3)
        late = one
    assert await late.nack(), "it was"
    again, why = user_property("retry-in", "auto"), user_property("retry-in", "PT5M")
    why += user_property("reason", "no paper")
    assert heard[:3] == [
        (kind, b"\x00\x01\x80" + bytes((len(again),)) + again),
        (kind, b"\x00\x02\x80" + bytes((len(why),)) + why),
        (kind, b"\x00\x03"),
    ]


async def test_a_rejection_says_never() -> None:
    heard: Heard = []
    script = Script(giving(b"x", b"x", then=hearing(heard)))
    async with script, client(script) as c, c.subscribe("t", session="s") as s:
        one, two = [await anext(s) for _ in range(2)]
        assert await one.reject("no such order")
        assert not await one.nack(), "the first answer counts"
        assert await two.nack()
        assert not await two.reject()
        await until(lambda: len(heard) == 2)
    said = user_property("retry-in", "never") + user_property("reason", "no such order")
    assert heard[0] == (PUBACK, b"\x00\x01\x80" + bytes((len(said),)) + said)


async def test_at_qos_2_a_packet_id_is_free_after_a_nack() -> None:
    heard: Heard = []

    async def act(peer: Peer) -> None:
        await peer.welcome()
        await peer.subscribed(code=2)
        peer.publish(1, b"a", qos=2)
        heard.append(await peer.read())
        peer.publish(1, b"a", qos=2, dup=True)
        heard.append(await peer.read())
        peer.send(PUBREL, b"\x00\x01")
        heard.append(await peer.read())

    async with Script(act) as script, client(script) as c, c.subscribe("t", session="s", qos=2) as s:
        assert await (await anext(s)).nack(3)
        again = await anext(s)
        assert again.text() == "a"
        assert await again.ack()
        await until(lambda: len(heard) == 3)


async def test_a_nack_without_a_connection_is_none() -> None:
    for qos in (1, 2):
        async with Script(giving(b"x", qos=qos)) as script, client(script) as c:
            s = c.subscribe("t", group="g", qos=qos)
            d = await anext(s)
            await s.aclose()
            assert not await d.nack(5)
            assert not await d.extend(5)
            if qos == 2:
                continue
            for bad in (-1, timedelta(seconds=-1)):
                with pytest.raises(ValueError, match="negative"):
                    await d.nack(bad)


def test_a_reason_is_what_mqtt_and_the_server_can_say() -> None:
    assert reason_of("a\0b") == "a b"
    assert reason_of("é" * 200) == "é" * 127
    assert reason_of("\ud800") == "?"


async def test_extend_asks_and_says_what_it_was_told() -> None:
    asked: list[object] = []
    answers = [b"\x00", b"\x83\x00", b"\x97" + bytes((8,)) + b"\x1f\x00\x05above"]

    async def answer(peer: Peer) -> None:
        while True:
            first, body = await peer.read()
            assert first & 0xF0 == PUBLISH
            length = int.from_bytes(body[:2], "big")
            mid, payload = body[2 + length : 4 + length], body[5 + length :]
            asked.append((body[2 : 2 + length].decode(), json.loads(payload)))
            if len(asked) == 4:
                return
            peer.send(PUBACK, mid + answers[len(asked) - 1])

    async with Script(giving(*[b"x"] * 7, then=answer)) as script, client(script) as c:
        s = c.subscribe("t", group="g", ack_timeout=30)
        d = (await taken(s, 7, ack=False))[-1]
        assert await d.extend(timedelta(minutes=1))
        assert not await d.extend(60)
        with pytest.raises(fasti.Refused, match="above") as refused:
            await d.extend("1d")
        assert refused.value.reason_code == 0x97
        assert not await d.extend(60), "the connection ended before the answer"
        await s.aclose()
    assert asked == [
        ("$control/extend", {"packet_id": 7, "for": told}) for told in ("PT1M", "PT1M", "1d", "PT1M")
    ]


async def test_what_waits_here_beyond_its_time_is_not_handed_out() -> None:
    heard: Heard = []

    async def lease(peer: Peer) -> None:
        peer.send(PUBLISH | 2, leased(1, b"old", 50))
        peer.send(PUBLISH | 2, leased(2, b"new", 60_000))
        await hearing(heard)(peer)

    script = Script(giving(then=lease))
    async with script, client(script) as c, c.subscribe("t", group="g") as s:
        await until(lambda: s._connection is not None and len(s._connection._arrived) == 2)
        await asyncio.sleep(0.1)
        d = await anext(s)
        assert (d.text(), d.ack_timeout, d.headers) == ("new", timedelta(minutes=1), {})
        await until(lambda: bool(heard))
        assert await d.ack()
        await until(lambda: len(heard) == 2)
    assert heard[0][0] == PUBACK
    assert heard[0][1][:3] == b"\x00\x01\x80", "its packet id would else be taken for good"
    assert b"retry-in" in heard[0][1]
    assert heard[1] == (PUBACK, b"\x00\x02")


async def test_a_member_comes_without_a_session_and_drops_what_its_lost_connection_brought() -> None:
    connects: list[bytes] = []

    async def act(peer: Peer) -> None:
        connects.append(await peer.welcome())
        await peer.subscribed()
        for mid, text in ((1, b"1"), (2, b"2")) if len(connects) == 1 else ((1, b"3"),):
            peer.publish(mid, text)
        if len(connects) == 1:
            await peer.read()
            return
        await rest(peer)

    async with Script(act) as script, client(script) as c, c.subscribe("t", group="g") as s:
        one = await anext(s)
        assert await one.ack()
        await until(lambda: s._connection is None or not s._connection.is_open)
        assert (await anext(s)).text() == "3", "2 waited here; the server gives it again"
    for body in connects:
        assert body[7] & 0x02, "a clean start"
        assert b"\x11\x00\x00\x00\x00" in body, "and no session to leave behind"


def test_what_a_subscription_asks_for() -> None:
    asked = SubscribeRequest(
        "t",
        group="g",
        ack_timeout=timedelta(minutes=5),
        max_attempts=3,
        backoff=["1s", 30, timedelta(minutes=1)],
        rate=12.5,
        expiry=timedelta(days=2),
    )
    terms = {"ack-timeout": "PT5M", "max-attempts": "3", "backoff": "1s,PT30S,PT1M", "rate": "12.5"}
    assert asked.terms == (*terms.items(), ("expiry", "P2D"))
    assert SubscribeRequest("t", group="g", rate=1_000_000).terms == (("rate", "1000000"),)
    assert SubscribeRequest("t", session="s", expiry=timedelta(days=2)).terms == (), "it is the session's"


@pytest.mark.parametrize(
    ("argument", "bad"),
    [
        *(("ack_timeout", -1), ("max_attempts", -1), ("rate", -1)),
        *(("backoff", []), ("backoff", "1s"), ("backoff", [-1])),
    ],
)
def test_terms_that_cannot_be_meant_are_refused_by_name(argument: str, bad: object) -> None:
    given: dict[str, object] = {"group": "g", argument: bad}
    with pytest.raises(fasti.BadArgument, match=f"^{argument} "):
        fasti.Client().subscribe("q", **given)  # type: ignore[arg-type]
    if argument == "rate":
        with pytest.raises(fasti.BadArgument, match=r"^rate .* group"):
            fasti.Client().subscribe("q", session="s", rate=5)


async def test_a_refused_subscription_says_which_term() -> None:
    async def act(peer: Peer) -> None:
        await peer.welcome()
        _, body = await peer.read()
        why = b"ack_timeout is too long"
        peer.send(0x90, body[:2] + bytes((3 + len(why),)) + b"\x1f\x00" + bytes((len(why),)) + why + b"\x83")
        await peer.read()

    async with Script(act) as script, client(script) as c:
        with pytest.raises(fasti.Refused, match="ack_timeout is too long") as refused:
            await anext(c.subscribe("t", group="g", ack_timeout="9d"))
    assert refused.value.reason_code == 0x83
    assert QUICK.attempts > script.connections == 1
