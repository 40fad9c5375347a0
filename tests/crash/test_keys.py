"""Idempotency keys over kill -9: sent again, answered or not, each is one message with its first id."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from server.codec.packets import Ack
from tests.support.http import NDJSON, Http, http
from tests.support.mqtt import Closed, dial, user
from tests.support.server import serving

pytestmark = pytest.mark.short

KILLS = 3
COUNT = 60
"""Requests of each kind under way when it is killed."""


async def test_sent_again_after_a_kill_each_key_is_one_message(tmp_path: Path) -> None:
    """Some answers came, some were on their way, some were decided and not written: nobody can tell which."""
    chance = random.Random()
    known: dict[str, str] = {}
    for life in range(KILLS):
        async with serving(tmp_path / "data") as server, http(server.url) as calls:
            work = [asyncio.create_task(round_of(calls, server.mqtt, f"{life}", known))]
            await asyncio.sleep(chance.uniform(0.02, 0.25))
            server.kill()
            with suppress(aiohttp.ClientError, Closed, OSError, TimeoutError):
                await asyncio.gather(*work)
    before = dict(known)
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        for life in range(KILLS):
            await round_of(calls, server.mqtt, f"{life}", known)
        assert {key: known[key] for key in before} == before, "the first answers"
        found = (await calls.call("GET", "/v1/messages?limit=1&count=true", status=200)).body
        assert found["count"] == len(known) == KILLS * COUNT * 4
        assert len(set(known.values())) == len(known)


async def round_of(calls: Http, mqtt: tuple[str, int], life: str, known: dict[str, str]) -> None:
    """One by one, in batches with keys of items or of their own, and over MQTT, all at once; what is answered
    goes into `known`."""
    singles = [one(calls, f"{life}-http-{n}", known) for n in range(COUNT)]
    batches = [batch(calls, f"{life}-batch-{n}", known) for n in range(COUNT // 10)]
    whole = [keyed(calls, f"{life}-keyed-{n}", known) for n in range(COUNT // 10)]
    ended = await asyncio.gather(
        *singles, *batches, *whole, published(mqtt, f"{life}-mqtt", known), return_exceptions=True
    )
    for error in ended:
        if isinstance(error, BaseException):
            raise error


def noted(known: dict[str, str], key: str, name: Any) -> None:
    assert known.setdefault(key, str(name)) == name, f"{key} has two messages"


async def one(calls: Http, key: str, known: dict[str, str]) -> None:
    body = {"topic": "a", "payload": key, "deliver_at": "2035-01-01T00:00:00Z"}
    answer = await calls.call("POST", "/v1/messages", body, Idempotency_Key=key)
    assert answer.status in (200, 201)
    noted(known, key, answer.body["id"])


async def batch(calls: Http, name: str, known: dict[str, str]) -> None:
    keys = [f"{name}-{n}" for n in range(10)]
    lines = "".join(
        f'{{"topic":"b","payload":1,"deliver_at":"2035-01-01T00:00:00Z","key":"{key}"}}\n' for key in keys
    )
    answer = await calls.call(
        "POST", "/v1/messages:batch?each=true", lines.encode(), status=200, Content_Type=NDJSON
    )
    for key, result in zip(keys, answer.body["results"], strict=True):
        noted(known, key, result["id"])


async def keyed(calls: Http, key: str, known: dict[str, str]) -> None:
    """A batch with a key of its own."""
    line = '{"topic":"b","payload":1,"deliver_at":"2035-01-01T00:00:00Z"}\n'
    answer = await calls.call(
        "POST",
        "/v1/messages:batch?each=true",
        (line * 10).encode(),
        status=200,
        Content_Type=NDJSON,
        Idempotency_Key=key,
    )
    for n, result in enumerate(answer.body["results"]):
        noted(known, f"{key}-{n}", result["id"])


async def published(mqtt: tuple[str, int], name: str, known: dict[str, str]) -> None:
    peer = await dial(mqtt)
    await peer.connect(f"client-{name}")
    for n in range(COUNT):
        key = f"{name}-{n}"
        when = (("deliver-at", "2035-01-01T00:00:00Z"), ("idempotency-key", key))
        ack = await peer.publish("c", "x", user_properties=when)
        assert isinstance(ack, Ack)
        noted(known, key, user(ack, "fasti-id"))
    peer.drop()
