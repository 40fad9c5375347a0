"""kill -9 of a real server whose members have messages out: what a cursor says stays leased, the rest says
that it comes again."""

import asyncio
from pathlib import Path

import pytest

from server.codec.packets import Publish
from tests.support.http import http
from tests.support.mqtt import Peer, dial, payloads, user
from tests.support.server import ServerProcess, serving

GROUP = "$share/workers/jobs/#"
WRITTEN_S = 0.3
"""A cursor says by then what was given: 0.1 s, a round and a sync."""
TERMS: dict[str, dict[str, str]] = {
    "": {"backoff": "1s"},
    "timeout": {"ack-timeout": "6s", "backoff": "1s"},
    "order": {"ack-timeout": "6s", "backoff": "1s", "order": "true"},
}
LEASED_S = 4.0
"""The ack timeout lasts at least so long from the start on."""


async def _member(server: ServerProcess, terms: str, name: str) -> Peer:
    peer = await dial(server.mqtt)
    await peer.connect(name, receive_maximum=100)
    await peer.subscribe(GROUP, user_properties=tuple(TERMS[terms].items()))
    return peer


async def _put(server: ServerProcess, *names: str) -> None:
    async with http(server.url) as calls:
        items = [{"topic": f"jobs/{name}", "payload": name, "ordering_key": name[0]} for name in names]
        assert (await calls.schedule_many(items)).status == 201


async def _done(peer: Peer, packet: Publish) -> int:
    answer = await peer.publish(
        "$control/done", f'{{"group": "{GROUP}", "id": "{user(packet, "fasti-id")}"}}'
    )
    assert answer is not None
    return answer.reason


@pytest.mark.parametrize("terms", [*TERMS])
async def test_what_a_member_has_had_for_a_moment_stays_its_own(tmp_path: Path, terms: str) -> None:
    """Nothing else happens on this server: the lease itself asks for what says it."""
    async with serving(tmp_path / "data") as server:
        member = await _member(server, terms, "w")
        await _put(server, "a1", "a2", "b1")
        had = await member.take_many(2 if terms == "order" else 3)
        await asyncio.sleep(WRITTEN_S)
        server.kill()
    async with serving(tmp_path / "data") as server:
        other = await _member(server, terms, "other")
        await other.silence(LEASED_S - 1.5)
        for packet in had:
            assert await _done(other, packet) == 0
        if terms == "order":
            after = await other.take(Publish)
            assert after.payload == b"a2"
            other.ack(after)
        await other.silence(0.2)
        assert "Traceback" not in server.output


async def test_the_lease_of_one_who_does_not_come_back_lapses(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server:
        member = await _member(server, "timeout", "w")
        await _put(server, "a1")
        await member.take(Publish)
        await asyncio.sleep(WRITTEN_S)
        server.kill()
    async with serving(tmp_path / "data") as server:
        other = await _member(server, "timeout", "other")
        await other.silence(LEASED_S)
        again = await other.take(Publish, 20)
        assert user(again, "fasti-attempt") == "2"


@pytest.mark.short
async def test_what_was_given_right_before_the_kill_comes_at_once_and_says_so(tmp_path: Path) -> None:
    """Over MQTT by DUP, over HTTP by `redelivered`; or its lease was written in time."""
    async with serving(tmp_path / "data") as server:
        member = await _member(server, "timeout", "w")
        await asyncio.sleep(1)
        names = [f"{n}" for n in range(20)]
        await _put(server, *names)
        had = {packet.payload.decode() for packet in await member.take_many(10)}
        server.kill()
        had |= set(payloads([one for one in member.inbox if isinstance(one, Publish)]))
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        body = {"max": 5, "wait": "1s"}
        found = (await calls.call("POST", "/v1/groups/workers/messages:lease", body, status=200)).body
        pulled = found["messages"]
        assert all(one["redelivered"] and one["attempt"] == 1 for one in pulled if one["payload"] in had)
        other = await _member(server, "timeout", "other")
        await asyncio.sleep(0.5)
        given = [one for one in other.inbox if isinstance(one, Publish)]
        again = [one for one in given if one.payload.decode() in had]
        assert all(one.dup and user(one, "fasti-attempt") in (None, "1") for one in again)
        await _put(server, "new")
        assert not (await other.take(Publish)).dup or given
