"""What concurrent calls make of each other: places, bounds, cancelled ones."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import fasti
from fasti import coalesce
from fasti.coalesce import Outbox
from fasti.wire import instant, instant_of_id, message_body, message_line, parse_instant, span
from tests.sdk.fake import NOW, Fake
from tests.support.ports import free_port


class Sent:
    """Keeps each request until the test answers it; the answer to a call is what it said, doubled."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[int]]] = []
        self.answers: list[asyncio.Future[None]] = []
        self.outbox: Outbox[str, int, int] = Outbox(self._send)

    async def _send(self, kind: str, items: list[int]) -> list[int | fasti.Error]:
        self.requests.append((kind, list(items)))
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]
        return [2 * item for item in items]

    def submit(self, *items: int, kind: str = "a", size: int = 1) -> list[asyncio.Future[int]]:
        return [self.outbox.submit(kind, item, size) for item in items]

    async def call(self, item: int, size: int = 1) -> int:
        if self.outbox.is_full:
            await self.outbox.room()
        return await self.outbox.submit("a", item, size)

    async def answer(self, index: int) -> None:
        self.answers[index].set_result(None)
        await turns()

    async def answer_all(self, index: int = 0) -> AsyncIterator[None]:
        """One after the other, from this one on; a turn after each."""
        while index < len(self.said):
            await self.answer(index)
            index += 1
            yield

    @property
    def said(self) -> list[list[int]]:
        return [items for _, items in self.requests]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def sent() -> Sent:
    return Sent()


async def test_calls_of_a_turn_travel_together_and_alone_ones_alone(sent: Sent) -> None:
    first = sent.submit(1, 2, 3)
    await turns()
    lone = sent.submit(4)
    await turns()
    assert sent.said == [[1, 2, 3], [4]], "the second waits for nobody"
    await sent.answer(0)
    assert [future.result() for future in first] == [2, 4, 6]
    assert not lone[0].done()


async def test_with_both_places_taken_calls_gather(sent: Sent) -> None:
    for item in range(6):
        sent.submit(item)
        await turns()
    assert sent.said == [[0], [1]]
    await sent.answer(1)
    assert sent.said == [[0], [1], [2, 3, 4, 5]]
    sent.submit(6)
    await turns()
    await sent.answer(2)
    assert sent.said[3:] == [[6]]


async def test_kinds_do_not_mix_and_keep_their_order(sent: Sent) -> None:
    sent.submit(1, 2)
    sent.submit(3, kind="b")
    sent.submit(4)
    sent.submit(5, kind="c")
    await turns()
    await sent.answer(0)
    assert sent.requests == [("a", [1, 2, 4]), ("b", [3]), ("c", [5])]


async def test_a_request_is_full_by_count_and_by_bytes(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesce, "IN_FLIGHT", 9)
    monkeypatch.setattr(coalesce, "MAX_ITEMS", 3)
    monkeypatch.setattr(coalesce, "MAX_BYTES", 10)
    sent.submit(1, 2, 3, 4)
    sent.submit(5, size=9)
    sent.submit(6)
    sent.submit(7, size=99)
    sent.submit(8)
    await turns()
    assert sent.said == [[1, 2, 3], [4, 5], [6], [7], [8]]


async def test_a_slow_request_gives_its_place_up(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesce, "SLOW_S", 0.0)
    monkeypatch.setattr(coalesce, "UNDER_WAY", 4)
    for item in range(6):
        sent.submit(item)
        await turns()
    assert sent.said == [[0], [1], [2], [3]], "so many in all"
    await sent.answer(3)
    assert sent.said[4:] == [[4, 5]]


async def test_a_call_that_is_cancelled_before_it_goes_does_not_go(sent: Sent) -> None:
    for item in (1, 2):
        sent.submit(item)
        await turns()
    gone, stays = sent.submit(3, 4)
    gone.cancel()
    await turns()
    await sent.answer(0)
    assert sent.said[2:] == [[4]]
    await sent.answer(2)
    assert stays.result() == 8
    sent.submit(5)[0].cancel()
    await turns()
    await sent.answer(1)
    assert len(sent.said) == 3, "nothing is left to be sent"
    await sent.outbox.close()


def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesce, "IN_FLIGHT", 1)
    monkeypatch.setattr(coalesce, "MAX_ITEMS", 2)
    monkeypatch.setattr(coalesce, "WAITING", 2)


async def started(sent: Sent, items: Sequence[int]) -> list[asyncio.Task[int]]:
    tasks = []
    for item in items:
        tasks.append(asyncio.create_task(sent.call(item)))
        await turns()
    return tasks


async def test_beyond_the_bounds_calls_wait_their_turn(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch)
    tasks = await started(sent, range(12))
    assert (sent.said, len(sent.outbox._waiting)) == ([[0]], 2)
    assert len(sent.outbox._outside) == 8, "the second request that waits counts as full, with one call"
    async for _ in sent.answer_all():
        assert len(sent.outbox._waiting) <= 2
    assert await asyncio.gather(*tasks) == [2 * item for item in range(12)]
    assert [item for items in sent.said for item in items] == list(range(12)), "first come, first served"


async def test_who_waits_for_room_and_gives_up_holds_up_nobody(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded(monkeypatch)
    tasks = await started(sent, range(12))
    sent.answers[0].set_result(None)
    while not (told := [turn for turn in tasks[4:] if sent.outbox._outside and turn._fut_waiter.done()]):  # type: ignore[attr-defined]
        await asyncio.sleep(0)
    for task in told:  # they have been let in, and do not come
        task.cancel()
    tasks[9].cancel()
    await turns()
    async for _ in sent.answer_all(1):
        pass
    done = await asyncio.gather(*tasks, return_exceptions=True)
    kept = [item for item, task in enumerate(tasks) if task not in told and item != 9]
    assert [done[item] for item in kept] == [2 * item for item in kept]
    assert sorted(item for items in sent.said for item in items) == kept


async def test_closing_waits_for_all(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch)
    tasks = await started(sent, range(8))
    closing = asyncio.create_task(sent.outbox.close())
    assert not closing.done()
    async for _ in sent.answer_all():
        assert not closing.done() or all(task.done() for task in tasks)
    await closing
    assert all(task.done() for task in tasks)


async def test_a_request_that_is_cancelled_cancels_its_calls(sent: Sent) -> None:
    futures = sent.submit(1, 2)
    await turns()
    for task in tuple(sent.outbox._sending):
        task.cancel()
    await turns()
    assert all(future.cancelled() for future in futures)
    await sent.outbox.close()


async def test_lasting_trouble_of_one_request_is_told_to_each_of_its_calls(
    client: fasti.Client, fake: Fake
) -> None:
    fake.faults = [(503, {})] * 4
    busy = asyncio.gather(*(client.messages.schedule("a", "") for _ in range(3)), return_exceptions=True)
    errors = await busy
    assert [getattr(error, "slug", error) for error in errors] == ["busy"] * 3
    assert len({id(error) for error in errors}) == 3
    assert (await client.messages.schedule("a", "")).state == "pending"


async def test_a_payload_that_cannot_be_said_is_refused_at_the_call() -> None:
    async with fasti.Client(f"http://127.0.0.1:{free_port()}") as c:
        with pytest.raises(fasti.BadArgument, match="payload cannot be sent as JSON"):
            await c.messages.schedule("a", object())
        with pytest.raises(ValueError, match="JSON"):
            await c.messages.schedule("a", {"a": float("nan")})


BODIES: list[tuple[Any, dict[str, Any]]] = [
    ("", {}),
    ('é\u2028"\\\n', {"delay": 90, "key": "ключ"}),
    (b"\x00\xff", {"at": datetime(2031, 3, 28, 9, 0, 0, 1, UTC), "headers": {"a": "ß"}, "key": "k"}),
    ({"a": [1, None, {"b": True}], "c": 0.1}, {"qos": 0, "retain": False, "late": "drop", "spread": "5m"}),
    (None, {"delay": timedelta(days=1), "expires_in": 0.5, "content_type": "a/b", "deliver_to": "https://x"}),
    (7, {"headers": {}, "key": None, "at": None}),
]


@pytest.mark.parametrize(("payload", "options"), BODIES)
def test_a_message_has_the_same_bytes_by_every_way(payload: Any, options: dict[str, Any]) -> None:
    """The server compares them when a key comes again, perhaps from an older version of this package."""
    body = fasti.NewMessage(topic="a/b", payload=payload, **options).body()
    assert message_body("a/b", payload, options) == body
    plain = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    assert message_line(body) == plain
    order = ("topic", "payload", "encoding", "deliver_at", "deliver_in", *fasti.wire.SENDING, "key")
    assert list(body) == [name for name in order if name in body]


@pytest.mark.parametrize(
    ("delay", "text"),
    [
        *((0, "PT0S"), (59, "PT59S"), (60, "PT1M"), (90, "PT1M30S"), (3_600, "PT1H"), (10.0, "PT10S")),
        *((3_661.25, "PT1H1M1.25S"), (0.000001, "PT0.000001S"), (0.5, "PT0.5S"), (0.25, "PT0.25S")),
        *((timedelta(0), "PT0S"), (timedelta(days=2), "P2D"), ("15m", "15m")),
        (timedelta(days=2, hours=3, milliseconds=10), "P2DT3H0.01S"),
        (timedelta(days=1, hours=2, seconds=3, microseconds=4), "P1DT2H3.000004S"),
    ],
)
def test_a_span_in_text(delay: timedelta | float | str, text: str) -> None:
    assert span(delay) == text


@pytest.mark.parametrize("delay", [-1, -0.000001, timedelta(microseconds=-1), timedelta(days=-400)])
def test_a_span_below_zero(delay: float) -> None:
    with pytest.raises(ValueError, match="negative"):
        span(delay)


def test_an_instant_in_text_and_back() -> None:
    assert instant(datetime(2031, 3, 28, 9, 0, 59, 999_001, UTC)) == "2031-03-28T09:01:00.000Z"
    assert instant(datetime(2031, 3, 28, 9, 0, 59, 999_000, UTC)) == "2031-03-28T09:00:59.999Z"
    assert instant("2027-03-28T09:00[Europe/Bucharest]") == "2027-03-28T09:00[Europe/Bucharest]"
    east = timezone(timedelta(hours=2))
    assert instant(datetime(2031, 3, 28, 9, tzinfo=east)) == "2031-03-28T07:00:00.000Z"
    assert parse_instant("2030-01-01T02:00:00.5+02:00") == NOW + timedelta(seconds=0.5)
    assert instant_of_id(f"{1_893_456_000_123:012x}" + "0" * 20) == NOW + timedelta(milliseconds=123)


class Uncopied(fasti.Error):
    """Takes two arguments and keeps one, as exceptions of other libraries do."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


async def test_trouble_of_a_kind_that_cannot_be_copied_is_told_too() -> None:
    async def send(kind: str, items: list[int]) -> list[int | fasti.Error]:
        raise Uncopied("no", " way")

    outbox: Outbox[str, int, int] = Outbox(send)
    found = await asyncio.gather(*[outbox.submit("a", item, 1) for item in (1, 2)], return_exceptions=True)
    assert [str(one) for one in found] == ["no way", "no way"]
