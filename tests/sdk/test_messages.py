"""`client.messages` against the stand-in."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

import fasti
from fasti.wire import due_text
from tests.sdk.conftest import QUICK
from tests.sdk.fake import Fake
from tests.support.ports import free_port

AT = datetime(2031, 3, 28, 9, tzinfo=UTC)
BUCHAREST = ZoneInfo("Europe/Bucharest")


async def test_instants(client: fasti.Client) -> None:
    m = await client.messages.schedule("a", "", at=AT.replace(tzinfo=BUCHAREST))
    assert m.deliver_at == datetime(2031, 3, 28, 7, tzinfo=UTC)
    m = await client.messages.schedule("a", "", at=AT + timedelta(microseconds=1))
    assert m.deliver_at == AT + timedelta(milliseconds=1), "never early: rounded up"
    with pytest.raises(ValueError, match="time zone"):
        await client.messages.schedule("a", "", at=datetime(2031, 1, 1))
    with pytest.raises(ValueError, match="both given"):
        await client.messages.schedule("a", "", at=AT, delay=3)


async def test_handle(client: fasti.Client, fake: Fake) -> None:
    m = await client.messages.schedule("a", "x", at=AT)
    same = await m.reschedule(at=AT + timedelta(days=1))
    assert same is m
    assert m.deliver_at == AT + timedelta(days=1)
    assert (m.topic, m.payload) == ("a", "x")
    assert await m.cancel()
    assert m.state == "cancelled"
    assert await m.cancel(), "again: still nobody gets it"
    with pytest.raises(fasti.Refused) as refused:
        await m.reschedule(delay=5)
    assert refused.value.slug == "cancelled"
    fake.messages[m.id].update(state="dispatched", dispatched_at="2031-03-28T09:00:00.001Z")
    assert not await m.cancel()
    with pytest.raises(fasti.AlreadyDispatched):
        await m.reschedule(delay=5)
    assert (await m.refresh()).dispatched_at == AT + timedelta(milliseconds=1)


async def test_not_found(client: fasti.Client) -> None:
    for call in (client.messages.get("0" * 32), client.messages.cancel("0" * 32)):
        with pytest.raises(fasti.NotFound):
            await call


async def test_refused_names_the_field(client: fasti.Client) -> None:
    with pytest.raises(fasti.Refused, match="no wildcards") as refused:
        await client.messages.schedule("a/#", "")
    assert (refused.value.slug, refused.value.errors[0]["field"]) == ("bad-message", "topic")
    assert refused.value.problem.status == 422


async def test_concurrent_calls_share_a_request(client: fasti.Client, fake: Fake) -> None:
    topics = [f"t/{n}" for n in range(2_500)]
    topics[7] = "t/#"
    results = await asyncio.gather(
        *(client.messages.schedule(t, "", at=AT, key=t) for t in topics), return_exceptions=True
    )
    assert fake.requests == [("POST", "/v1/messages:batch?each=true")] * 3
    assert isinstance(results[7], fasti.Refused)
    handles = [r for r in results if isinstance(r, fasti.Message)]
    assert len(handles) == 2_499
    assert {h.topic: h.id for h in handles} == {m["topic"]: m["id"] for m in fake.messages.values()}
    assert handles[0].deliver_at == AT


async def test_a_cancelled_call_does_not_hurt_its_neighbours(client: fasti.Client) -> None:
    tasks = [asyncio.create_task(client.messages.schedule("a", "", at=AT)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(d) for d in done] == [fasti.Message, asyncio.CancelledError, fasti.Message]


@pytest.mark.parametrize("fault", [(503, {}), (429, {"Retry-After": "0"}), "lost", "cut"])
async def test_a_retry_never_schedules_twice(client: fasti.Client, fake: Fake, fault: object) -> None:
    fake.faults = [fault, fault]
    await client.messages.schedule("a", "x", at=AT)
    assert (len(fake.messages), len(fake.requests)) == (1, 3)
    assert len({h["Idempotency-Key"] for h in fake.headers}) == 1
    fake.faults = [fault]
    await asyncio.gather(*(client.messages.schedule("b", "", at=AT) for _ in range(3)))
    assert len(fake.messages) == 4


async def test_it_gives_up(client: fasti.Client, fake: Fake) -> None:
    fake.faults = [(503, {})] * 10
    with pytest.raises(fasti.Refused) as refused:
        await client.messages.schedule("a", "")
    assert (refused.value.slug, len(fake.requests)) == ("busy", 4)
    fake.faults = [(429, {"Retry-After": "3600"})]
    with pytest.raises(fasti.Refused):
        await client.messages.count()
    assert len(fake.requests) == 5, "an hour is not waited for"


async def test_unreachable() -> None:
    async with fasti.Client(f"http://127.0.0.1:{free_port()}", retry=QUICK) as c:
        calls = [c.messages.schedule("a", "") for _ in range(2)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(r) for r in results] == [fasti.Unreachable] * 2
        assert results[0] is not results[1]


async def test_key_is_a_bearer_token(url: str, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTI_URL", url)
    monkeypatch.setenv("FASTI_KEY", "secret")
    async with fasti.Client() as c:
        await c.info()
    assert fake.headers[0]["Authorization"] == "Bearer secret"


def drafts(count: int) -> Iterator[fasti.NewMessage]:
    return (fasti.NewMessage(topic=f"t/{n}", payload=n, at=AT) for n in range(count))


async def test_schedule_many(client: fasti.Client, fake: Fake) -> None:
    fake.faults = [None, "lost", (503, {}), None]
    told: list[int] = []
    assert await client.messages.schedule_many(drafts(2_500), on_progress=told.append) == 2_500
    assert told == [1_000, 2_000, 2_500]
    assert len(fake.messages) == 2_500, "the batch whose answer was lost is there once"


async def test_schedule_many_takes_mappings_and_async_iterables(client: fasti.Client, fake: Fake) -> None:
    async def items() -> AsyncIterator[dict[str, object]]:
        yield {"topic": "a", "payload": b"\xff", "at": AT, "key": "k"}
        yield {"topic": "b", "delay": timedelta(seconds=5)}
        yield {"topic": "c", "deliver_at": AT}

    assert await client.messages.schedule_many(items()) == 3
    assert "k" in fake.keys
    stored = {m["topic"]: m for m in fake.messages.values()}
    assert (stored["a"]["encoding"], stored["b"]["deliver_at"]) == ("base64", "2030-01-01T00:00:05.000Z")
    assert stored["c"]["deliver_at"] == "2031-03-28T09:00:00.000Z"


async def test_schedule_many_reads_no_further_than_it_must(client: fasti.Client, fake: Fake) -> None:
    read = 0

    def endless() -> Iterator[fasti.NewMessage]:
        nonlocal read
        while True:
            read += 1
            yield fasti.NewMessage(topic="a/#" if read == 250 else "a", payload="")

    with pytest.raises(fasti.Refused) as refused:
        await client.messages.schedule_many(endless(), batch=100)
    assert refused.value.accepted == len(fake.messages) == 200
    assert refused.value.errors[0]["line"] == 250, "counted over the whole iterable"
    assert read <= 501


async def test_schedule_many_of_nothing_and_of_nonsense(client: fasti.Client, fake: Fake) -> None:
    assert await client.messages.schedule_many([]) == 0
    with pytest.raises(fasti.BadArgument, match="payload cannot be sent as JSON"):
        await client.messages.schedule_many([{"topic": "a", "payload": object()}])
    with pytest.raises(ValueError, match="batch"):
        await client.messages.schedule_many([], batch=1_001)
    assert not fake.requests


async def test_a_known_key_of_a_message_that_is_gone(client: fasti.Client, fake: Fake) -> None:
    first = await client.messages.schedule("a", "x", at=AT, key="k")
    fake.gone.add(first.id)
    again, _ = await asyncio.gather(
        client.messages.schedule("a", "x", at=AT, key="k"), client.messages.schedule("b", "x", at=AT)
    )
    assert (again.replayed, again.id) == (True, first.id)


async def test_list_and_count(client: fasti.Client, fake: Fake) -> None:
    await client.messages.schedule_many(drafts(25))
    await client.messages.cancel(next(iter(fake.messages)))
    assert await client.messages.count() == 24
    assert await client.messages.count(state="all", topic="t/#", due_from=AT, due_to=AT) == 25
    assert len([m async for m in client.messages.list(page=10)]) == 24
    assert len([m async for m in client.messages.list(limit=12, page=10)]) == 12
    found = [m async for m in client.messages.list(state="cancelled")]
    assert ([m.state for m in found], found[0].payload) == (["cancelled"], 0)


@pytest.mark.parametrize(
    ("at", "sent"),
    [
        (datetime(2031, 3, 28, 9, tzinfo=BUCHAREST), "2031-03-28T09:00:00.000[Europe/Bucharest]"),
        # Skipped by the clocks: the server's rule decides.
        (datetime(2031, 3, 30, 3, 30, tzinfo=BUCHAREST), "2031-03-30T03:30:00.000[Europe/Bucharest]"),
        (datetime(2031, 10, 26, 3, 30, tzinfo=BUCHAREST), "2031-10-26T03:30:00.000[Europe/Bucharest]"),
        (datetime(2031, 10, 26, 3, 30, fold=1, tzinfo=BUCHAREST), "2031-10-26T01:30:00.000Z"),
        (datetime(2031, 1, 1, 0, 0, 0, 1, tzinfo=BUCHAREST), "2031-01-01T00:00:00.001[Europe/Bucharest]"),
        (datetime(2031, 1, 1, tzinfo=ZoneInfo("UTC")), "2031-01-01T00:00:00.000Z"),
        (datetime(2031, 1, 1, tzinfo=UTC), "2031-01-01T00:00:00.000Z"),
    ],
)
def test_a_wall_time_keeps_its_zone(at: datetime, sent: str) -> None:
    assert due_text(at) == sent
