"""What the body of each call may have: refused by its announced length, before it is read."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from server.http.admission import OF_MANY, OF_ONE

from ..conftest import Running, with_settings

ONE = 6 * 1_000 + (64 << 10)
SMALL = 1 << 20
LARGEST = 2 << 20


LIMITS = {"max_payload": 1_000, "queued_bytes": 64 << 20}
pytestmark = with_settings(http={"max_body": LARGEST}, limits=LIMITS)


async def test_calls_that_take_messages_are_there(server: Running) -> None:
    paths = {resource.canonical for resource in server.http.app.router.resources()}
    assert {*OF_ONE, *OF_MANY} <= paths


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/v1/messages", ONE),
        ("/v1/schedules:preview", ONE),
        ("/v1/messages:cancel", SMALL),
        ("/v1/dead:requeue", SMALL),
        ("/v1/groups/g/messages:ack", SMALL),
        ("/v1/schedules/x:pause", SMALL),
        ("/v1/messages:batch", LARGEST),
    ],
)
async def test_a_body_has_what_its_call_needs(server: Running, path: str, most: int) -> None:
    """The answer is there before a byte of the body is sent."""
    at = server.front
    port = at.front_port
    for length, is_taken in ((most, True), (most + 1, False)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (path.encode(), port, length)
        )
        answer = await reader.readuntil(b"\r\n\r\n")
        if is_taken:
            assert answer.startswith(b"HTTP/1.1 100 ")
        else:
            assert answer.startswith(b"HTTP/1.1 413 ")
            told = await reader.readuntil(b"}")
            assert b"%d bytes" % length in told
            assert b"%d" % most in told
        writer.close()


async def test_so_has_one_in_chunks_or_compressed(server: Running) -> None:
    large = b" " * (ONE + 1)
    packed = gzip.compress(large)
    answer = await server.call("POST", "/v1/messages", packed, status=413, Content_Encoding="gzip")
    assert answer.slug == "too-large"

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(large), 10_000):
            yield large[at : at + 10_000]

    json = {"Content-Type": "application/json"}
    async with server.http.post("/v1/messages", data=chunks(), headers=json) as refused:
        assert refused.status == 413


async def test_a_message_of_escapes_fits(server: Running) -> None:
    body = b'{"topic":"a","deliver_in":60,"payload":"%b"}' % (b"\\u0001" * 998)
    await server.call("POST", "/v1/messages", body, status=201)
