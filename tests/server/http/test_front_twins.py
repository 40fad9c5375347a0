"""The front and aiohttp give the same answer to the same bytes: each request that the front takes."""

import asyncio
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from server.http import desk, usual
from server.http.batching import result_texts
from server.http.usual import Request, RequestKind, read_request
from server.net import loop_time
from tests.fuzz.fuzzer import Run
from tests.fuzz.targets import BODY_WORDS, HEAD, TARGETS
from tests.support.build import OPENED

from ..conftest import Running

NOT_COMPARED = {"Date", "Location", "ETag"}
WAIT_S = 60.0
(FRONT,) = (target for target in TARGETS if target.name == "front")


async def answered(port: int, data: bytes) -> tuple[int, dict[str, str], Any]:
    """The answer to one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(WAIT_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.split(": ", 1) for line in head[1:-2])
            raw = await reader.readexactly(int(headers["Content-Length"]))
    finally:
        writer.close()
    body = json.loads(raw)
    if "id" in body:
        body["id"] = len(body["id"])  # each message has its own
        headers.pop("Content-Length")
    return int(head[0].split()[1]), {k: v for k, v in headers.items() if k not in NOT_COMPARED}, body


def posted(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return HEAD + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body


def requests() -> list[bytes]:
    """Good bodies and heads, and what becomes of them with a few changes."""
    random = Random(7)
    (body_target,) = (target for target in TARGETS if target.name == "message body")
    bodies = [seed.replace(b'"k"', b'"@"') for seed in body_target.seeds]
    changed = []
    for _ in range(60):
        body = bytearray(random.choice(bodies))
        at = random.randrange(len(body))
        body[at : at + random.choice((0, 1, 3))] = random.choice(BODY_WORDS)
        changed.append(posted(bytes(body), b"X-Any: \tthing "))
    keyed = [
        posted(body, b"Idempotency-Key: " + key) for body in bodies for key in (b"@", b"other@", b"@" * 300)
    ]
    run = Run(FRONT, 7)
    run.start()
    for _ in range(200):
        run.step()
    found = [data.replace(b'"k"', b'"@"').replace(b"order-17", b"order-1@") for data in run.corpus]
    return [*(posted(body) for body in bodies), *changed, *keyed, *found]


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
async def test_the_same_answer_for_the_same_bytes(server: Running, part: int) -> None:
    at = server.front
    aiohttp_port = at.runner.addresses[0][1]  # type: ignore[union-attr]
    assert aiohttp_port != at.front_port
    statuses = set()
    compared = 0
    for data in requests()[part::4]:
        request = read_request(data)
        if request is None or request.end > len(data):
            continue
        whole = data[: request.end]
        # A key of its own for each: a second time would be a repetition.
        first = await answered(at.front_port, whole.replace(b"@", b"f"))
        second = await answered(aiohttp_port, whole.replace(b"@", b"a"))
        if b'"spread"' in whole:  # chance, or the key, says when
            first[2].pop("deliver_at", None)
            second[2].pop("deliver_at", None)
        assert first == second, whole
        statuses.add(first[0])
        compared += 1
    assert compared > 10
    assert {201, 400, 422} <= statuses | ({400, 422} if part else set())


LINES = b"Content-Type: application/x-ndjson\r\n"
GOOD = b'{"topic": "a/b", "payload": "hi", "deliver_in": "1h"}'
BATCHES = [
    b"\n".join([GOOD] * 3),
    b"\r\n\n".join([GOOD, b'{"topic": "a", "payload": {"n": 1}, "deliver_in": "1h", "qos": 2}']) + b"\n",
    GOOD[:-1] + b', "key": "@one"}',
    b"\n".join([GOOD[:-1] + b', "key": "@two"}'] * 2),
    b"\n".join([GOOD[:-1] + b', "key": "@three"}', GOOD[:-1] + b', "qos": 0, "key": "@three"}']),
    GOOD + b"\n" + b'{"topic": "#", "payload": "x"}',
    GOOD + b"\n{",
    GOOD[:-1] + b', "headers": {"a": "b"}}',
    b"\n".join([GOOD] * 301),
    b"",
]


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """An answer to a batch without the ids themselves: each, by the place of its first."""
    seen: dict[str, int] = {}
    for one in body.get("results", ()):
        if "id" in one:
            one["id"] = seen.setdefault(one["id"], len(seen))
    if "ids" in body:
        body["ids"] = [seen.setdefault(name, len(seen)) for name in body["ids"]]
    return body


@pytest.mark.long
@pytest.mark.parametrize("query", [b"", b"?each=true", b"?each=true&key_only=true"])
@pytest.mark.parametrize("body", BATCHES)
@pytest.mark.parametrize("key", [b"", b"Idempotency-Key: @\r\n", b"Idempotency-Key: \r\n"])
async def test_the_same_answer_to_a_batch(server: Running, body: bytes, query: bytes, key: bytes) -> None:
    at = server.front
    aiohttp_port = at.runner.addresses[0][1]  # type: ignore[union-attr]
    head = b"POST /v1/messages:batch%s HTTP/1.1\r\nHost: localhost\r\n" % query + LINES + key
    for _ in range(2):  # the second time its keys are known
        found = []
        for port, name in ((at.front_port, b"f"), (aiohttp_port, b"a")):
            named = body.replace(b"@", name)
            status, headers, said = await answered(
                port, head.replace(b"@", name) + b"Content-Length: %d\r\n\r\n" % len(named) + named
            )
            found.append((status, headers, plain(said)))
        assert found[0] == found[1]


@pytest.mark.parametrize("seconds", [1e-9, 1.0])
async def test_small_batches_are_answered_at_the_front(
    server: Running, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """And those for which there is no time in a turn of the loop in the next one."""
    monkeypatch.setattr(loop_time, "TURN_S", seconds)
    at = server.front
    body = b"\n".join([GOOD] * 110) + b"\n"
    data = b"POST /v1/messages:batch HTTP/1.1\r\nHost: localhost\r\n" + LINES
    data += b"Content-Length: %d\r\n\r\n" % len(body) + body
    request = read_request(data)
    assert request is not None
    assert (request.kind, request.end) == (RequestKind.ALL, len(data))
    found = await asyncio.gather(*[answered(at.front_port, data) for _ in range(12)])
    assert {status for status, _, _ in found} == {201}, found
    assert [(status, said["accepted"]) for status, _, said in found] == [(201, 110)] * 12
    assert len({name for _, _, said in found for name in said["ids"]}) == 1_320


@OPENED
async def test_a_batch_that_waits_for_its_turn_is_not_looked_at_in_each(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the work grows with the square of how many wait."""
    looks = 0
    real = read_request

    def looked(data: bytes) -> Request | None:
        nonlocal looks
        looks += 1
        return real(data)

    monkeypatch.setattr(loop_time, "TURN_S", 1e-9)
    monkeypatch.setattr(usual, "read_request", looked)
    at = server.front
    head = b"POST /v1/messages:batch HTTP/1.1\r\nHost: localhost\r\n" + LINES
    data = head + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
    links = [await asyncio.open_connection("127.0.0.1", at.front_port) for _ in range(40)]
    for _, writer in links:
        writer.write(data)
    async with asyncio.timeout(WAIT_S):
        heads = [await reader.readuntil(b"\r\n") for reader, _ in links]
    for _, writer in links:
        writer.close()
    assert heads == [b"HTTP/1.1 201 Created\r\n"] * 40
    assert looks <= 80, "once in its turn, and once for what comes behind"


async def test_of_batches_that_were_there_one_is_looked_up_in_a_turn_of_the_loop(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = server.front
    body = b"\n".join(b'{"topic":"a","payload":"x","deliver_in":60,"key":"%d"}' % n for n in range(9)) + b"\n"
    data = b"POST /v1/messages:batch?each=true HTTP/1.1\r\nHost: localhost\r\n" + LINES
    data += b"Content-Length: %d\r\n\r\n" % len(body) + body
    first = await answered(at.front_port, data)
    marks: list[str] = []

    def marked(*arguments: Any) -> Iterator[bytes]:
        marks.append("told")
        asyncio.get_running_loop().call_soon(marks.append, "turn")
        return result_texts(*arguments)

    monkeypatch.setattr(desk, "result_texts", marked)
    found = await asyncio.gather(*[answered(at.front_port, data) for _ in range(4)])
    assert marks == ["told", "turn"] * 4
    ids = [result["id"] for result in first[2]["results"]]
    for _, _, again in found:
        assert again["results"] == [{"id": name, "replayed": True, "state": "pending"} for name in ids]


LEASE_ID = "AwAAnzxafSHoSwYAAAABAaH9XZ7_AAAAEAACJHNoYXJlL3ByaW50ZXJzL2pvYnMvIw"
LEASE_CALLS = [
    ("lease", {"max": 1}),
    ("lease", {"max": 1, "filter": "jobs/#"}),
    ("lease", {"max": 1, "filter": "other/#"}),
    ("lease", {"max": 101}),
    ("lease", {"max": 0}),
    ("lease", {"max": 1, "wait": "2h"}),
    ("lease", {"max": 1, "lease": 0}),
    ("lease", {"max": 1, "filter": "a/#/b"}),
    *(
        (verb, {"lease_ids": names, **more})
        for verb, more in (
            ("ack", {}),
            ("nack", {"delay": "1s"}),
            ("extend", {"lease": "1m"}),
            ("release", {}),
        )
        for names in ([], [LEASE_ID], ["x"], [1])
    ),
    ("nack", {"lease_ids": [], "delay": "9999999d"}),
    ("extend", {"lease_ids": []}),
    ("ack", {"nope": 1}),
]


@pytest.mark.parametrize("group", ["printers", "none"])
async def test_the_same_answer_to_a_call_for_leases(server: Running, group: str) -> None:
    at = server.front
    aiohttp_port = at.runner.addresses[0][1]  # type: ignore[union-attr]
    await server.call(
        "POST", "/v1/groups/printers/messages:lease", {"max": 1, "filter": "jobs/#"}, status=200
    )
    for verb, wish in LEASE_CALLS:
        body = json.dumps(wish).encode()
        data = f"POST /v1/groups/{group}/messages:{verb} HTTP/1.1\r\nHost: localhost\r\n".encode()
        data += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        request = read_request(data)
        assert request is not None
        assert (request.kind, request.group, request.verb) == (RequestKind.LEASES, group, verb)
        first, second = [await answered(port, data) for port in (at.front_port, aiohttp_port)]
        assert first[2].pop("lease_until", "")[:17] == second[2].pop("lease_until", "")[:17]
        assert first == second, (verb, wish)
