"""Dead letters over kill -9: each is one, or waits to be sent again, or was sent: one of these."""

import asyncio
import random
from pathlib import Path

import aiohttp
import pytest

from server.__main__ import main
from tests.support.http import Http, http
from tests.support.mqtt import Peer, dial, user
from tests.support.server import ServerProcess, serving
from tests.support.soak import SOAK

pytestmark = pytest.mark.short

KILLS = 30 if SOAK else 1
LETTERS = 20
SETTINGS = {"sessions.max_attempts": 1}


async def come(server: ServerProcess) -> Peer:
    peer = await dial(server.mqtt)
    await peer.connect("w", clean=False, session_expiry=3_600)
    return peer


async def dead(calls: Http) -> set[str]:
    page = await calls.call("GET", "/v1/dead?limit=1000", status=200)
    names = [letter["id"] for letter in page.body["messages"]]
    assert len(set(names)) == len(names)
    return set(names)


async def bury(server: ServerProcess, calls: Http) -> set[str]:
    """Messages that the session has been sent and has not acked, and that it has given up."""
    peer = await come(server)
    await peer.subscribe("t")
    items = [{"topic": "t", "payload": str(n)} for n in range(LETTERS)]
    ids = set((await calls.schedule_many(items)).body["ids"])
    await peer.take_many(LETTERS)
    await peer.hang_up()
    peer = await come(server)
    while not ids <= await dead(calls):
        await asyncio.sleep(0.01)
    await peer.hang_up()
    return ids


async def requeue(calls: Http, ids: list[str], answered: set[str]) -> None:
    for name in ids:
        body = {"ids": [name], "deliver_in": "1s"}
        answer = await calls.call("POST", "/v1/dead:requeue", body, status=200)
        assert answer.body == {"matched": 1, "changed": 1}
        answered.add(name)


async def test_after_each_kill_a_requeue_is_whole_or_has_not_been(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chance, data = random.Random(), tmp_path / "data"
    requeued = 0
    for _ in range(KILLS):
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            ids = await bury(server, calls)
            answered: set[str] = set()
            parts = [sorted(ids)[start::4] for start in range(4)]
            work = [asyncio.create_task(requeue(calls, part, answered)) for part in parts]
            enough = chance.randrange(1, LETTERS // 2)
            while len(answered) < enough and not any(task.done() for task in work):
                await asyncio.sleep(0)
            server.kill()
            for found in await asyncio.gather(*work, return_exceptions=True):
                assert found is None or isinstance(found, aiohttp.ClientError | OSError), found
        assert main(["verify", "--data", str(data)]) == 0, capfd.readouterr().out
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            left = await dead(calls) & ids
            assert not left & answered
            peer = await come(server)
            sent: list[str] = []
            while set(sent) != ids - left:
                (packet,) = await peer.take_many(1)
                name = user(packet, "fasti-id")
                peer.ack(packet)
                if name in ids:
                    assert user(packet, "fasti-attempt") == "2"
                    sent.append(name)
            assert len(set(sent)) == len(sent), "what is acked comes once"
            assert set(sent) | left == ids
            requeued += len(sent)
            await calls.call("POST", "/v1/dead:drop", {"filter": {"topic": "#"}}, status=200)
            assert await dead(calls) == set()
            await peer.close()
    assert requeued
    with capfd.disabled():
        print(f"\n{KILLS} kills, {requeued} of {KILLS * LETTERS} dead letters had been requeued")
