"""A server was down for a month: everything that came due meanwhile is delivered, in order, nothing dropped.

The month is made by filling the data directory with a core whose clock is a month behind; then the real
server is started on it.
"""

import random
from pathlib import Path

import pytest

from server.codec.packets import Publish
from server.settings.times import parse_deliver_at
from shards.rocks import RocksStore
from tests.support.clock import HandClock
from tests.support.http import http
from tests.support.mqtt import dial, payloads, user, wall_ms
from tests.support.server import run, serving
from timeline.position import MessageId

from .hand import Hand

pytestmark = pytest.mark.short

DAY = 86_400_000
COUNT = 3_000


def _month(data: Path) -> list[str]:
    """Fill `data` as of 31 days ago; the payloads that are due since, in order. Fifty are due tomorrow."""
    now_ms = wall_ms()
    chance = random.Random(7)
    store = RocksStore(data)
    hand = Hand(store, HandClock(now_ms - 31 * DAY), reached=lambda point: None)
    audit = hand.connect("audit", lambda *_: None, "#")
    hand.leave(audit)
    ids: dict[str, MessageId] = {}
    dues: dict[str, int] = {}
    for start in range(0, COUNT, 500):
        wishes = []
        for index in range(start, start + 500):
            due_ms = now_ms - 31 * DAY + chance.randrange(1_000, 30 * DAY)
            wishes.append((f"month/{index % 11}", f"m{index}", due_ms))
        tags = [tag for _, tag, _ in wishes]
        dues.update({tag: due_ms for _, tag, due_ms in wishes})
        names: list[MessageId] = []
        hand.put(wishes, names.extend)
        hand.round()
        ids.update(zip(tags, names, strict=True))
    for tag in chance.sample(sorted(dues), 50):
        hand.cancel(ids[tag], _ignore)
        del dues[tag]
    for tag in chance.sample(sorted(dues), 50):
        hand.move(ids[tag], now_ms + DAY, _ignore)
        del dues[tag]
    hand.round()
    store.close()
    return sorted(dues, key=lambda tag: (dues[tag], ids[tag]))


def _ignore(answer: object) -> None:
    """Whether it won is seen later."""


@pytest.mark.parametrize("clock", ["system", "simulated"])
async def test_a_month_down(tmp_path: Path, clock: str) -> None:
    data = tmp_path / "data"
    missed = _month(data)
    got: list[Publish] = []
    async with serving(data, "--clock", clock) as server, http(server.url) as calls:
        fresh = await dial(server.mqtt)
        await fresh.connect("fresh", session_expiry=600)
        await fresh.subscribe("#")
        back = await dial(server.mqtt)
        assert (await back.connect("audit", clean=False, session_expiry=3_600)).session_present
        while len(got) < len(missed):
            packet = await back.take(Publish)
            back.ack(packet)
            got.append(packet)
            if len(got) == len(missed) // 2:
                # Half way: the connection breaks off, and on it goes.
                await back.hang_up()
                unacked = [p for p in back.inbox if isinstance(p, Publish)]
                back = await dial(server.mqtt)
                await back.connect("audit", clean=False, session_expiry=3_600)
                assert len(unacked) <= 1_024
        tags = list(dict.fromkeys(payloads(got)))
        assert tags == missed[: len(tags)]
        seen = set(tags)
        while len(seen) < len(missed):
            packet = await back.take(Publish)
            back.ack(packet)
            seen.add(packet.payload.decode())
        assert seen == set(missed)
        late_ms = int(user(got[0], "fasti-late-ms") or 0)
        assert late_ms > 29 * DAY
        await fresh.silence()
        found = await calls.call("GET", "/v1/messages?count=true&limit=1", status=200)
        assert found.body["count"] == 50
        if clock == "simulated":
            await calls.call("POST", "/v1/clock:advance", {"by": "P2D"}, status=200)
            assert len(await fresh.take_many(50)) == 50
        fresh.drop()
        back.drop()
        assert await server.stopped() == 0
    assert run("verify", "--data", str(data)).returncode == 0


async def test_the_simulated_clock_goes_on_where_it_stood(tmp_path: Path) -> None:
    """Also after kill -9: it never goes back, and what it has passed stays passed."""
    data = tmp_path / "data"
    async with serving(data, "--clock", "simulated") as server, http(server.url) as calls:
        for days in (5, 9, 40):
            await calls.schedule("a", f"d{days}", deliver_in=f"{days}d")
        now = (await calls.call("POST", "/v1/clock:advance", {"by": "P10D"}, status=200)).body["now"]
        server.kill()
    async with serving(data, "--clock", "simulated") as server, http(server.url) as calls:
        time = (await calls.call("GET", "/v1/info", status=200)).body["now"]
        assert parse_deliver_at(time) >= parse_deliver_at(now) - 2_000, (time, now)
        peer = await dial(server.mqtt)
        await peer.connect("")
        await peer.subscribe("a")
        states = {m["payload"]: m["state"] for m in await calls.listed("state=all")}
        assert states == {"d5": "dispatched", "d9": "dispatched", "d40": "pending"}
        await calls.call("POST", "/v1/clock:advance", {"by": "P31D"}, status=200)
        assert payloads([await peer.take(Publish)]) == ["d40"]
        peer.drop()
        assert await server.stopped() == 0
