"""aiomqtt, the library that the SDK stands on, 3.1.1 and 5."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.server import ServerProcess

pytestmark = pytest.mark.proof

aiomqtt = pytest.importorskip("aiomqtt")
from paho.mqtt.packettypes import PacketTypes  # noqa: E402
from paho.mqtt.properties import Properties  # noqa: E402


@pytest.fixture
def client(server: ServerProcess, level: int) -> Any:
    """Makes clients of one level; `lasting`: with a persistent session of the name."""

    @asynccontextmanager
    async def make(name: str | None = None, *, lasting: bool = False) -> AsyncIterator[Any]:
        options: dict[str, Any] = {"identifier": name} if name else {}
        if level == 5:
            options["protocol"] = aiomqtt.ProtocolVersion.V5
            options["clean_start"] = not lasting
            if lasting:
                options["properties"] = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
                options["properties"].SessionExpiryInterval = 600
        else:
            options["protocol"] = aiomqtt.ProtocolVersion.V311
            options["clean_session"] = not lasting
        async with aiomqtt.Client(server.mqtt[0], server.mqtt[1], **options) as made:
            yield made

    return make


async def _take(client: Any, count: int) -> list[Any]:
    got = []
    async with asyncio.timeout(60):
        async for message in client.messages:
            got.append(message)
            if len(got) == count:
                return got
    raise AssertionError("the messages ended")


@pytest.mark.parametrize("qos", [0, 1])
async def test_both_ways(client: Any, name: str, qos: int) -> None:
    async with client() as one:
        await one.subscribe(f"{name}/+/x", qos=qos)
        for index in range(30):
            await one.publish(f"{name}/{index}/x", str(index), qos=qos)
            await one.publish(f"{name}/{index}/y", "no", qos=qos)
        got = await _take(one, 30)
    assert [(str(m.topic), m.payload.decode(), m.qos) for m in got] == [
        (f"{name}/{index}/x", str(index), qos) for index in range(30)
    ]


async def test_unsubscribe(client: Any, name: str) -> None:
    async with client() as one:
        await one.subscribe(f"{name}/a", qos=1)
        await one.subscribe(f"{name}/b", qos=1)
        await one.unsubscribe(f"{name}/a")
        await one.publish(f"{name}/a", "a", qos=1)
        await one.publish(f"{name}/b", "b", qos=1)
        assert [m.payload for m in await _take(one, 1)] == [b"b"]


async def test_away_and_back(client: Any, name: str) -> None:
    async with client(name, lasting=True) as one:
        await one.subscribe(f"{name}/#", qos=1)
    async with client() as writer:
        for index in range(80):
            await writer.publish(f"{name}/{index % 3}", str(index), qos=1)
        await writer.publish(f"$delayed/1/{name}/late", "delayed", qos=1)
    await asyncio.sleep(1.2)
    async with client(name, lasting=True) as back:
        got = await _take(back, 81)
    assert [m.payload.decode() for m in got] == [*(str(index) for index in range(80)), "delayed"]


async def test_subscribe_to_everything(client: Any, name: str) -> None:
    async with client() as one:
        await one.subscribe("#", qos=0)
        await one.publish(f"{name}/x", "mine", qos=1)
        async with asyncio.timeout(60):
            async for message in one.messages:
                assert not str(message.topic).startswith("$")
                if str(message.topic) == f"{name}/x":
                    return
