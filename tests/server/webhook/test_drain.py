"""A drain of endpoints: posts under way are finished, and none begins, not of a URL either."""

import asyncio

from tests.server.conftest import HOUR_MS, MINUTE_MS, Running, until
from tests.support.receiver import Got, Receiver, answer

from .conftest import put, settled, shown


async def drained(server: Running) -> dict[str, object]:
    return dict((await server.call("POST", "/v1/drain")).body)


async def test_a_post_under_way_is_finished_and_none_begins(server: Running, receiver: Receiver) -> None:
    may_answer = asyncio.Event()

    async def late(got: Got, writer: asyncio.StreamWriter) -> bool:
        await may_answer.wait()
        return await answer(200)(got, writer)

    receiver.behave = late
    await put(server, receiver)
    await server.schedule("a", "before", deliver_to="billing")
    await receiver.posts(1)
    assert (await drained(server))["out"] == 1
    await server.schedule("a", "named", deliver_to="billing")
    await server.schedule("a", "to a URL", deliver_to=receiver.url("/x"))
    await server.pass_time(MINUTE_MS)
    await put(server, receiver, "made")
    await server.schedule("a", "made", deliver_to="made")
    may_answer.set()
    await until(lambda: not server.app.core.groups.loans.drain.out)
    await settled(server)
    await asyncio.sleep(0.05)
    assert [one.body for one in receiver.got] == [b"before"]
    assert ((await shown(server))["in_flight"], (await shown(server))["lag_messages"]) == (0, 1)
    await server.call("POST", "/v1/drain:cancel")
    await receiver.posts(4)
    await settled(server)
    assert sorted(one.body for one in receiver.got[1:]) == [b"made", b"named", b"to a URL"]
    assert {one.headers["fasti-attempt"] for one in receiver.got} == {"1"}


async def test_a_retry_waits_until_its_end(server: Running, receiver: Receiver) -> None:
    receiver.behave = answer(503)
    await put(server, receiver, retry={"backoff": ["1m"]})
    await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)
    await settled(server)
    receiver.behave = answer(200)
    await drained(server)
    await server.pass_time(2 * MINUTE_MS)
    await asyncio.sleep(0.05)
    assert len(receiver.got) == 1
    await server.call("POST", "/v1/drain:cancel")
    assert (await receiver.posts(2))[1].headers["fasti-attempt"] == "2"


async def test_an_endpoint_does_not_expire_of_it(server: Running, receiver: Receiver) -> None:
    """Its time counts while it is paused, not while the server drains."""
    await drained(server)
    await put(server, receiver, expiry="1h")
    await server.call("PUT", "/v1/endpoints/billing", {"url": receiver.url("/other"), "expiry": "1h"})
    assert "left_at" not in await shown(server)
    for _ in range(2):
        await server.pass_time(HOUR_MS)
        server.app.core.writer.ran(HOUR_MS)
        await server.app.housekeeping.run_due()
    await server.call("POST", "/v1/drain:cancel")
    await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)
