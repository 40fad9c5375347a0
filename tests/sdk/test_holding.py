"""What a member of a group has in hand is its own while the server is away, and comes once."""

import asyncio
import socket
from datetime import timedelta

import aiomqtt
import pytest

import fasti
from fasti.subscribe import SubscribeRequest, Subscription
from fasti.testing import FastiServer
from tests.sdk.conftest import quiet, until

WRITTEN_S = 0.5
"""After which a cursor has been written of what a group has given."""


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("kill", [False, True])
async def test_a_job_goes_on_over_a_restart(server: FastiServer, kill: bool, order: bool) -> None:
    async with (
        server.client() as c,
        c.subscribe("jobs/#", group="workers", ack_timeout=60, order=order) as one,
        c.subscribe("jobs/#", group="workers", ack_timeout=60, order=order) as other,
    ):
        m = await c.messages.schedule("jobs/1", "first", ordering_key="k")
        getting = [asyncio.ensure_future(anext(s)) for s in (one, other)]
        (first,), (waiting,) = await asyncio.wait(getting, return_when=asyncio.FIRST_COMPLETED)
        d, theirs = await first, one if first is getting[0] else other
        if order:
            await c.messages.schedule("jobs/2", "next of its key", ordering_key="k")
        await asyncio.sleep(WRITTEN_S)
        await server.restart(kill=kill)
        assert (await m.refresh()).raw["deliveries"][0]["state"] == "in_flight"
        assert await d.extend(timedelta(minutes=2)), "its lease begins anew"
        assert not waiting.done(), "nobody else gets it, or what is behind it"
        assert await d.ack(), "which counts, over the next connection"
        assert (await m.refresh()).raw["deliveries"][0]["state"] == "done"
        both = {waiting, asyncio.ensure_future(anext(theirs))}
        if order:
            (then,), both = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            assert (await then).text() == "next of its key"
        for one_of in both:
            one_of.cancel()


async def test_what_the_server_gives_again_is_not_handed_out_twice(server: FastiServer) -> None:
    """Killed at once, so that it may not know that it has given the message."""
    async with server.client() as c, c.subscribe("jobs/#", group="workers", ack_timeout=60) as one:
        for kill_at in range(3):
            m = await c.messages.schedule("jobs/1", f"message {kill_at}")
            d = await anext(one)
            assert (d.attempt, d.redelivered) == (1, False)
            server.close()
            await server.restart()
            await quiet(one)
            assert one.connections == kill_at + 2
            assert await d.ack()
            assert (await m.refresh()).raw["deliveries"][0]["state"] == "done"


async def test_what_waits_here_is_handed_out_if_it_is_ours(server: FastiServer) -> None:
    async with server.client() as c, c.subscribe("jobs/#", group="workers") as one:
        await c.messages.schedule("jobs/1", "in hand")
        d = await anext(one)
        await c.messages.schedule("jobs/2", "waits")
        await until(lambda: one._connection is not None and len(one._connection._arrived) == 1)
        await server.restart()
        waited = await anext(one)
        assert (waited.text(), waited.attempt, one.connections) == ("waits", 1, 2)
        assert [await one_of.ack() for one_of in (d, waited)] == [True, True]
        await quiet(one)


async def test_what_waits_here_longer_than_its_lease_is_not_handed_out(server: FastiServer) -> None:
    """Held for us over two restarts; then its lease ends here."""
    async with server.client() as c, c.subscribe("jobs/#", group="workers", ack_timeout=5) as one:
        for text in ("first", "second"):
            await c.messages.schedule("jobs/1", text)
        await until(lambda: one._connection is not None and len(one._connection._arrived) == 2)
        await server.restart()
        d = await anext(one)
        await server.restart()
        assert await d.extend(5), "over the third connection"
        (waits,) = one._orphans
        assert waits.id != d.id
        waits.arrived_s -= 5
        await quiet(one)


async def test_groups_that_give_the_same_message_are_told_apart(server: FastiServer) -> None:
    requests = [SubscribeRequest(one, group="workers", ack_timeout=60) for one in ("jobs/+", "jobs/#")]
    async with server.client() as c, c._open(requests) as one:
        await c.messages.schedule("jobs/1", "x")
        first = await anext(one)
        assert await first.nack(1)
        second = await anext(one)
        await server.restart()
        await server.advance(seconds=2)
        async with asyncio.timeout(60):
            again = await anext(one)
        assert again._incoming.numbers == first._incoming.numbers != second._incoming.numbers
        assert [await d.ack() for d in (again, second)] == [True, True]


async def test_a_plain_publish_is_named_if_it_is_leased(server: FastiServer) -> None:
    async with server.client() as c, c.subscribe("jobs/#", group="workers", ack_timeout=60) as one:
        host, _, port = server.mqtt.rpartition(":")
        async with aiomqtt.Client(host, int(port)) as client:
            await client.publish("jobs/1", "plain", qos=1)
        d = await anext(one)
        assert d.id is not None
        await server.restart()
        await quiet(one)
        assert await d.ack()


async def test_nobody_gets_it_before_its_lease_is_over(server: FastiServer) -> None:
    """Its worker is gone with the server."""
    async with server.client() as c:
        async with c.subscribe("jobs/#", group="workers", ack_timeout=5) as one:
            m = await c.messages.schedule("jobs/1", "x")
            await anext(one)
            await asyncio.sleep(WRITTEN_S)
            server.close()
        await server.restart()
        async with c.subscribe("jobs/#", group="workers", ack_timeout=5) as other:
            (there,) = (await m.refresh()).raw["deliveries"]
            assert (there["state"], there["by"]) == ("in_flight", "(away)")

            async def is_over() -> bool:
                (there,) = (await m.refresh()).raw["deliveries"]
                return bool(there["state"] == "retry")

            await until(is_over)
            await server.advance(seconds=5)
            d = await anext(other)
            assert (d.attempt, d.redelivered, d.tries[0].outcome) == (2, True, "lapsed")


async def test_the_lease_of_a_job_that_comes_again_to_its_worker_is_extended(
    server: FastiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection was lost while the server runs, and the job runs on."""
    done, opened, extended = asyncio.Event(), list[Subscription](), list[bool]()
    extend = fasti.Delivery.extend

    async def noted(d: fasti.Delivery, span: timedelta) -> bool:
        extended.append(await extend(d, span))
        return extended[-1]

    monkeypatch.setattr(fasti.Delivery, "extend", noted)
    async with server.client() as c:
        worker = fasti.Worker(c, group="workers", lease=3)
        await c.groups.put("workers", "jobs/#", ack_timeout=3, backoff=["1s"])

        @worker.on("jobs/#")
        async def job(d: fasti.Delivery) -> None:
            opened.append(d._given_by)
            await done.wait()

        running = asyncio.create_task(worker.run(signals=False))
        m = await c.messages.schedule("jobs/1", "x")
        await until(lambda: len(opened) == 1)
        connected = opened[0]._connection
        assert connected is not None
        assert connected._socket is not None
        connected._socket.shutdown(socket.SHUT_RDWR)
        await until(lambda: False in extended)
        await server.advance(seconds=2)
        await until(lambda: extended[-1])
        done.set()

        async def is_done() -> bool:
            return bool((await m.refresh()).raw["deliveries"][0]["state"] == "done")

        await until(is_done)
        worker.stop()
        await running
        assert len(opened) == 1, "no second copy"
