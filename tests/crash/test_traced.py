"""An ack follows its sync, as the kernel sees it; and a sync that fails, in the real process."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from server.codec import wire
from server.codec.packets import Ack
from server.times import format_ms
from tests.support.http import Http, http
from tests.support.mqtt import Peer, dial, payloads, user, wall_ms
from tests.support.server import ServerProcess, run, serving

from .lag import lag_of
from .test_disk_full import LAG_MS, _due_soon, _reader
from .traced import CALLS, traced, unsynced

HOUR_MS = 3_600_000


async def _accept(calls: Http, peer: Peer, tags: int) -> dict[str, str]:
    """Some messages by HTTP and MQTT: text in the log -> text in the answer."""
    items = [{"topic": "a", "payload": f"<one-{n}>", "deliver_in": "1h"} for n in range(tags)]
    posts = [calls.call("POST", "/v1/messages", item, status=201) for item in items]
    answers = await asyncio.gather(*posts)
    found = {str(item["payload"]): answer.body["id"] for item, answer in zip(items, answers, strict=True)}
    batch = [{"topic": "a", "payload": f"<batch-{n}>", "deliver_in": "1h"} for n in range(tags)]
    answer = await calls.schedule_many(batch)
    found |= {str(x["payload"]): name for x, name in zip(batch, answer.body["ids"], strict=True)}
    for number in range(tags):
        tag = f"<mqtt-{number}>"
        due = (("deliver-at", format_ms(wall_ms() + HOUR_MS)),)
        qos = 1 + number % 2
        packet_id = peer.put("a", tag, qos, user_properties=due)
        ack = await peer.take(Ack)
        name = user(ack, "fasti-id")
        assert name is not None
        found[tag] = name
        if qos == 2:
            peer.send(Ack(wire.PUBREL, packet_id))
            await peer.take(Ack)
    return found


async def _traced_answers(tmp_path: Path, *program: str) -> list[str]:
    server = ServerProcess(tmp_path / "data", program=program)
    trace = tmp_path / "trace"
    try:
        await server.ready()
        async with http(server.url) as calls:
            peer = await dial(server.mqtt)
            await peer.connect("writer")
            async with traced(server.pid, trace, "-e", f"trace={CALLS}"):
                answers = await _accept(calls, peer, 6)
            peer.drop()
    finally:
        server.kill()
    return unsynced(trace.read_text(errors="replace"), answers)


async def test_no_answer_leaves_before_its_sync_has_ended(tmp_path: Path) -> None:
    assert await _traced_answers(tmp_path, "server") == []


async def test_a_server_that_answers_before_the_sync_is_caught(tmp_path: Path) -> None:
    faults = await _traced_answers(tmp_path, "tests.crash.hasty")
    assert any("before it was synced" in fault for fault in faults), faults


@pytest.mark.parametrize("nth", [1, 3])
async def test_a_sync_that_fails(tmp_path: Path, nth: int) -> None:
    """EIO: what waits for it is answered 503, what is answered after is there, also after a kill."""
    data = tmp_path / "data"
    acked, refused = [], 0
    async with serving(data) as server, http(server.url) as calls:
        fault = f"inject=fdatasync,fsync:error=EIO:when={nth}..{nth + 1}"
        async with traced(server.pid, tmp_path / "trace", "-e", "trace=fdatasync,fsync", "-e", fault):
            async with asyncio.timeout(60):
                while not refused or not acked or acked[-1] is None:
                    answer = await calls.call(
                        "POST", "/v1/messages", {"topic": "a", "payload": "x", "deliver_in": "1h"}
                    )
                    assert answer.status in (201, 503), answer
                    refused += answer.status == 503
                    acked.append(answer.body["id"] if answer.status == 201 else None)
        server.kill()
    async with serving(data) as server, http(server.url) as calls:
        there = {row["id"] for row in await calls.listed("state=pending")}
        assert {name for name in acked if name} <= there
        assert await server.stopped() == 0
    assert run("verify", "--data", str(data)).returncode == 0


async def test_a_sync_that_takes_a_second(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Writes wait for it; deliveries, look-ups and lists do not."""
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        reader = await _reader(server)
        name = await calls.schedule("later", "x", deliver_in="1h")
        soon = await _due_soon(calls, 30)
        slow = ("-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=1000000")
        async with traced(server.pid, tmp_path / "trace", *slow), lag_of(server.url) as lag:
            started = time.monotonic()
            await calls.schedule("later", "waits", deliver_in="1h")
            assert time.monotonic() - started >= 1
            writing = asyncio.create_task(calls.schedule("later", "waits too", deliver_in="1h"))
            reads = 0
            while not writing.done():
                await calls.call("GET", f"/v1/messages/{name}", status=200)
                await calls.call("GET", "/v1/messages?limit=10", status=200)
                reads += 1
            await writing
            assert payloads(await reader.take_many(30)) == soon
        reader.drop()
    record_property("counted", f"{reads} look-ups and lists while one write waited for its sync; {lag}")
    assert reads > 10
    assert lag.at(1) < LAG_MS, f"the loop waits for the disk: {lag}"
