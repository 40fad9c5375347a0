"""What a key has pending over kill -9: the counters agree with the rows after each kill, to the message."""

import asyncio
import random
from pathlib import Path

import aiohttp
import pytest

from server.__main__ import main
from tests.support.http import Http, http
from tests.support.keys import KeysFile
from tests.support.server import serving
from tests.support.soak import SOAK

pytestmark = pytest.mark.short

KILLS = 50 if SOAK else 2
QUOTA = 150
SOON, FAR = "PT0.3S", "PT1H"


class Load:
    """Messages of one key, all under its name: singles and batches, soon and later, cancels and moves."""

    def __init__(self, name: str, key: str, tally: dict[str, int]) -> None:
        self.name = name
        self.shown = {"Authorization": f"Bearer {key}"}
        self.ids: list[str] = []
        self.tally = tally
        self.chance = random.Random()

    def body(self, due: str = "") -> dict[str, object]:
        due = due or self.chance.choice((SOON, FAR))
        return {"topic": f"{self.name}/x", "payload": "x", "deliver_in": due}

    async def run(self, calls: Http) -> None:
        while True:
            await self.chance.choice((self.one, self.batch, self.batch, self.cancel, self.move))(calls)

    async def one(self, calls: Http) -> None:
        self._taken(await calls.call("POST", "/v1/messages", self.body(), **self.shown), "id")

    async def batch(self, calls: Http) -> None:
        many = [self.body() for _ in range(self.chance.randrange(2, 20))]
        self._taken(await calls.call("POST", "/v1/messages:batch", many, **self.shown), "ids")

    async def cancel(self, calls: Http) -> None:
        for _ in range(8):
            if not self.ids:  # others take from it meanwhile
                break
            name = self.ids.pop(self.chance.randrange(len(self.ids)))
            answer = await calls.call("DELETE", f"/v1/messages/{name}", **self.shown)
            self.tally["cancelled"] += answer.status == 204

    async def move(self, calls: Http) -> None:
        if self.ids:
            due = {"deliver_in": self.chance.choice((SOON, FAR))}
            answer = await calls.call(
                "PATCH", f"/v1/messages/{self.chance.choice(self.ids)}", due, **self.shown
            )
            self.tally["moved"] += answer.status == 200

    async def fill(self, calls: Http) -> int:
        """How many are pending when not one more is taken, before they are counted and after."""
        while True:
            while await self._is_taken(calls):
                pass
            page = await calls.call("GET", "/v1/messages?limit=1&count=true", status=200, **self.shown)
            if not await self._is_taken(calls):
                return int(page.body["count"])

    async def _is_taken(self, calls: Http) -> bool:
        """Of one message more."""
        answer = await calls.call("POST", "/v1/messages", self.body(FAR), **self.shown)
        return answer.status == 201

    def _taken(self, answer: object, field: str) -> None:
        status, body = answer.status, answer.body  # type: ignore[attr-defined]
        assert status in (201, 429), answer
        found = body[field] if status == 201 else []
        self.ids += [found] if field == "id" and found else found
        self.tally["accepted"] += 1 if field == "id" and found else len(found)
        self.tally["refused"] += status == 429


async def test_after_each_kill_the_counters_of_owners_are_exact(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random()
    file = KeysFile(tmp_path / "keys.toml")
    tally = dict.fromkeys(("accepted", "refused", "cancelled", "moved"), 0)
    loads = [
        Load(name, file.add(name, pending=QUOTA, publish=[f"{name}/#"], deliver=[f"{name}/#"]), tally)
        for name in ("a", "b")
    ]
    settings = {"auth.keys_file": str(file.path)}
    data = tmp_path / "data"
    for _ in range(KILLS):
        async with serving(data, settings=settings) as server, http(server.url) as calls:
            work = [asyncio.create_task(load.run(calls)) for load in loads for _ in range(3)]
            await asyncio.sleep(chance.uniform(0.5, 1.5))
            server.kill()
            for found in await asyncio.gather(*work, return_exceptions=True):
                assert isinstance(found, aiohttp.ClientError | OSError), found
        assert main(["verify", "--data", str(data)]) == 0, capfd.readouterr().out
    async with serving(data, settings=settings) as server, http(server.url) as calls:
        assert [await load.fill(calls) for load in loads] == [QUOTA, QUOTA]
    assert main(["verify", "--data", str(data)]) == 0, capfd.readouterr().out
    assert min(tally.values()) > 0
    with capfd.disabled():
        print(f"\n{KILLS} kills, requests of two keys: {tally}; each key counted exactly")
