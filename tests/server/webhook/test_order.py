"""An endpoint that orders: of each key one post is out, in order, through failures; others go on."""

import asyncio
import random
from typing import Any

import pytest

from tests.server.conftest import MINUTE_MS, Running
from tests.support.receiver import Got, Receiver, answer

from .conftest import dead, put, settled, shown

KEYS = "/v1/endpoints/billing/keys"


async def send(server: Running, *payloads: str) -> None:
    """Their first letters are their keys."""
    batch = [
        {"topic": "a", "payload": one, "ordering_key": one[0], "deliver_to": "billing"} for one in payloads
    ]
    await server.call("POST", "/v1/messages:batch", batch, status=201)


@pytest.mark.long
async def test_posts_of_a_key_follow_one_another(server: Running, receiver: Receiver) -> None:
    """Some fail, and are tried again; many keys at once, and more messages than the endpoint can be given."""
    view = await put(server, receiver, order=True, concurrency=20, retry={"backoff": ["1s"]})
    assert (view["order"], view["on_dead"]) == (True, "next")
    out, done, rnd = set[str](), list[str](), random.Random(7)

    async def behave(got: Got, writer: asyncio.StreamWriter) -> bool:
        key = got.body[:1].decode()
        assert key not in out, "one of a key is out"
        out.add(key)
        await asyncio.sleep(rnd.choice((0.0, 0.002)))
        out.discard(key)
        is_fine = rnd.random() < 0.9
        if is_fine:
            done.append(got.body.decode())
        return await answer(200 if is_fine else 500)(got, writer)

    receiver.behave = behave
    sent = [f"{rnd.choice('aaabcdefgh')}{n}" for n in range(400)]
    for start in range(0, 400, 100):
        await send(server, *sent[start : start + 100])
        await server.pass_time(1_000)
    async with asyncio.timeout(120):
        while len(done) < 400:
            await server.pass_time(500)
            await asyncio.sleep(0.02)
    await settled(server)
    for key in "abcdefgh":
        assert [one for one in done if one[0] == key] == [one for one in sent if one[0] == key]
    assert (await server.call("GET", KEYS)).body["blocked"] == 0
    assert (await shown(server))["lag_messages"] == 0


async def test_a_dead_letter_holds_its_key(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, order=True, on_dead="hold", retry={"max_attempts": 1})
    receiver.script = [answer(500)]
    await send(server, "a1", "a2")
    await receiver.posts(1)
    await settled(server)
    (letter,) = await dead(server)
    (key,) = (await server.call("GET", KEYS)).body["keys"]
    assert (key["key"], key["held"], key["id"], key["lag"]) == ("a", "dead", letter["id"], 1)
    await server.pass_time(MINUTE_MS)
    assert len(receiver.got) == 1
    await server.call("POST", "/v1/dead:requeue", {"ids": [letter["id"]]})
    await server.pass_time(1_000)
    await receiver.posts(3)
    assert [got.body for got in receiver.got] == [b"a1", b"a1", b"a2"]


async def test_a_key_is_held_by_hand(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, order=True)
    held: Any = (await server.call("POST", f"{KEYS}/a:hold")).body
    assert held["held"] == 1
    await send(server, "a1", "b1")
    assert [got.body for got in await receiver.posts(1)] == [b"b1"]
    await settled(server)
    await server.call("POST", f"{KEYS}/a:release")
    assert [got.body for got in await receiver.posts(2)] == [b"b1", b"a1"]


async def test_posts_of_a_key_are_limited_and_keys_take_turns(server: Running, receiver: Receiver) -> None:
    view = await put(
        server, receiver, concurrency=4, fair=True, per_key={"concurrency": 2}, retry={"backoff": ["1s"]}
    )
    assert (view["fair"], view["per_key"]) == (True, {"concurrency": 2, "rate": 0.0})
    out, done, rnd = list[str](), list[str](), random.Random(7)

    async def behave(got: Got, writer: asyncio.StreamWriter) -> bool:
        key = got.body[:1].decode()
        out.append(key)
        assert out.count(key) <= 2
        await asyncio.sleep(0.002)
        out.remove(key)
        is_fine = rnd.random() < 0.9
        if is_fine:
            done.append(got.body.decode())
        return await answer(200 if is_fine else 500)(got, writer)

    receiver.behave = behave
    sent = [f"a{n}" for n in range(100)] + [f"b{n}" for n in range(10)]
    await send(server, *sent)
    async with asyncio.timeout(120):
        while len(done) < 110:
            await server.pass_time(500)
            await asyncio.sleep(0.02)
    await settled(server)
    assert sorted(done) == sorted(sent)
    assert max(done.index(f"b{n}") for n in range(5)) < 60, "before the rest of the dump"
