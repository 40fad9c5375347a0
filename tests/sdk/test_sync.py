"""The blocking client, from an ordinary thread beside the stand-in's loop."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import pytest

import fasti
from tests.sdk.conftest import QUICK, Broker
from tests.sdk.fake import NOW, Fake
from tests.sdk.test_subscribe import publish

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    return await asyncio.wait_for(asyncio.to_thread(work), 60)


async def test_the_whole_of_it(url: str, fake: Fake) -> None:
    def work() -> None:
        with fasti.sync.Client(url, retry=QUICK) as c:
            m = c.messages.schedule("a", {"n": 1}, delay=5, headers={"x": "y"})
            assert (m.topic, m.state, m.payload, m.headers) == ("a", "pending", {"n": 1}, {"x": "y"})
            assert m.reschedule(delay=timedelta(seconds=7)).deliver_at == NOW + timedelta(seconds=7)
            assert m.refresh().dispatched_at is None
            assert c.messages.get(m.id).raw["id"] == m.id
            assert c.messages.get(m.id) == c.messages.get(m.id) != m, "equal when the server said the same"
            assert {m, c.messages.get(m.id)} > {m}
            assert c.messages.reschedule(m.id, delay=9).id == m.id
            assert c.messages.explain(m.id) == {"shard": 1}
            assert c.messages.why(m.id).waits_for == "its due time"
            assert c.messages.schedule_many({"topic": "b", "payload": n} for n in range(5)) == 5
            assert c.messages.count() == 6
            assert len(list(c.messages.list(page=2))) == 6
            assert m.cancel()
            assert c.messages.cancel(m.id)
            with pytest.raises(fasti.NotFound):
                c.messages.get("0" * 32)
            assert [s.client_id for s in c.sessions.list()] == ["audit/1"]
            assert c.sessions.get("audit/1").lag_messages == 7
            c.sessions.replay("audit/1", NOW)
            c.sessions.remove("audit/1")
            assert [s.shard_count for s in c.slices.list()] == [1, 0]
            assert c.slices.shard(c.slices.get(NOW).start, 1).live == 2
            assert c.info().version == "9"
            assert c.advance("P1D") == NOW + timedelta(days=1)
            assert c.url == url
            assert m.id in repr(m)
        c.close()
        with pytest.raises(RuntimeError, match="closed"):
            c.info()

    await aside(work)


async def test_subscribe(broker: Broker) -> None:
    opened = threading.Event()

    def work() -> list[str]:
        got = []
        with fasti.sync.Client(mqtt=broker.address) as c, c.subscribe("t/#", session="s") as deliveries:
            assert deliveries.connections == 1
            opened.set()
            first = next(deliveries)
            assert first.ack()
            got.append(first.text())
            for d in deliveries:
                got.append(d.text())
                assert d.ack()
                if len(got) == 3:
                    break
        return got

    working = asyncio.create_task(aside(work))
    await asyncio.to_thread(opened.wait, 10)
    await publish(broker, 1, 2, 3)
    assert await working == ["1", "2", "3"]


@pytest.mark.filterwarnings("ignore:fasti.sync.Client blocks the event loop")
async def test_close_from_another_thread_ends_the_loop(broker: Broker) -> None:
    with fasti.sync.Client(mqtt=broker.address) as c:
        subscription = c.subscribe("t/#")
        await asyncio.to_thread(subscription.__enter__)
        waiting = asyncio.create_task(aside(lambda: len(list(subscription))))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(subscription.close)
        assert await waiting == 0


async def test_inside_an_event_loop_it_warns_once() -> None:
    def used() -> None:
        with fasti.sync.Client():
            pass

    with pytest.warns(UserWarning, match=r"blocks the event loop .* use fasti\.Client") as warned:
        used()
    assert [each.filename for each in warned] == [__file__]
