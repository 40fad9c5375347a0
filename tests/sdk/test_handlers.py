"""`handler.schedule`: topic and payload are written once, where they are handled."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Optional

import msgspec
import pytest

import fasti
from fasti.testing import FastiServer
from tests.sdk.conftest import until
from tests.sdk.test_worker import dead, working

pydantic = pytest.importorskip("pydantic")


@dataclass
class Plain:
    order: int
    note: str = "none"


class Struct(msgspec.Struct):
    order: int
    at: datetime = datetime(2030, 1, 1, tzinfo=UTC)


class Model(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    order: int
    at: datetime = datetime(2030, 1, 1, tzinfo=UTC)


class Camel(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    order: int = pydantic.Field(alias="orderId")


@dataclass
class Line:
    item: str


@dataclass
class Basket:
    order: int
    first: Line | None = None
    last: Optional[Line] = None  # noqa: UP045
    lines: list[Line] = field(default_factory=list)
    named: dict[str, Line] = field(default_factory=dict)
    paid: bool = field(default=False, init=False)
    until: datetime | None = None


FITS = {"order": 17}
READ = {
    Plain: {"order": 17, "note": "none"},
    Struct: {"order": 17, "at": "2030-01-01T00:00:00Z"},
    Model: {"order": 17, "at": "2030-01-01T00:00:00Z"},
}


class Seen:
    """A client's place: what would be scheduled."""

    def __init__(self) -> None:
        self.messages = self
        self.sent: list[tuple[str, Any, dict[str, Any]]] = []

    async def schedule(self, topic: str, payload: Any, **options: Any) -> None:
        self.sent.append((topic, payload, options))


def handled(topic_filter: str, kind: Any = fasti.Delivery) -> tuple[Any, Seen]:
    seen: Any = Seen()

    async def handle(job: Any) -> None: ...

    handle.__annotations__["job"] = kind
    return fasti.Worker(seen).on(topic_filter)(handle), seen


@pytest.mark.parametrize("kind", READ)
async def test_a_payload_is_checked_by_the_handlers_own_type(kind: Any) -> None:
    handle, seen = handled("orders/{order}/remind", kind)
    await handle.schedule(FITS, delay=5)
    await handle.schedule(kind(**FITS), delay=5)
    assert seen.sent == [("orders/17/remind", READ[kind], {"delay": 5})] * 2
    for wrong in ({"ordre": 17}, {}, 17, None):
        with pytest.raises(fasti.BadArgument, match=f"^payload does not fit {kind.__name__}: ") as raised:
            await handle.schedule(wrong)
        assert raised.value.argument == "payload"
    if kind is not Plain:
        with pytest.raises(fasti.BadArgument, match="does not fit"):
            await handle.schedule({"order": "seventeen"})


@pytest.mark.parametrize("kind", READ)
async def test_a_payload_may_be_null_where_the_type_says_so(kind: Any) -> None:
    handle, seen = handled("orders/x", kind | None)
    for payload, sent in ((FITS, READ[kind]), (None, None)):
        await handle.schedule(payload)
        assert seen.sent.pop() == ("orders/x", sent, {})
    assert (arrived(handle, FITS), arrived(handle, None)) == (kind(**FITS), None)
    with pytest.raises(fasti.BadArgument, match=f"^payload does not fit {kind.__name__}: "):
        await handle.schedule({"ordre": 17})


def arrived(handle: Any, payload: Any) -> Any:
    """What the worker calls the function with."""
    delivery: Any = SimpleNamespace(payload=json.dumps(payload).encode())
    return handle.arguments(delivery)[0]


@pytest.mark.parametrize(
    "basket",
    [
        Basket(17),
        Basket(17, Line("a"), Line("b"), [Line("c"), Line("d")], {"e": Line("f")}),
    ],
)
async def test_dataclasses_within_a_dataclass_arrive_as_such(basket: Basket) -> None:
    """A member that the constructor does not take is not sent: the worker could make nothing of it."""
    handle, seen = handled("orders/{order}", Basket)
    await handle.schedule(basket)
    topic, sent, _ = seen.sent[0]
    assert (topic, arrived(handle, sent)) == ("orders/17", basket)
    await handle.schedule(sent)
    assert seen.sent[1] == seen.sent[0]


async def test_what_the_worker_could_not_read_is_not_sent() -> None:
    handle, seen = handled("orders/{order}", Basket)
    with pytest.raises(fasti.BadArgument, match=r"^payload is no Basket in JSON: .*datetime"):
        await handle.schedule(Basket(17, until=datetime(2030, 1, 1, tzinfo=UTC)))
    assert seen.sent == []
    handle, seen = handled("orders/{order}", Camel)
    await handle.schedule(Camel(orderId=17))
    assert seen.sent == [("orders/17", {"orderId": 17}, {})]
    assert arrived(handle, {"orderId": 17}) == Camel(orderId=17)


def test_a_name_is_a_whole_level() -> None:
    for wrong in ("orders/{}", "orders/n{order}", "orders/{order id}"):
        with pytest.raises(fasti.BadArgument, match="names for whole levels"):
            handled(wrong)


async def test_without_a_type_a_payload_goes_as_it_is() -> None:
    for kind in (fasti.Delivery, Any, "fasti.Delivery"):
        handle, seen = handled("orders/due", kind)
        await handle.schedule(b"bytes", key="k")
        assert seen.sent == [("orders/due", b"bytes", {"key": "k"})]


async def test_the_topic_is_filled_in_or_given() -> None:
    handle, seen = handled("a/{one}/b/{two}")
    await handle.schedule({"one": "x", "two": 2})
    await handle.schedule({"one": "x", "two": 2}, topic="a/y/b/3")
    assert [topic for topic, _, _ in seen.sent] == ["a/x/b/2", "a/y/b/3"]
    for payload in ({"one": "x"}, {"one": "", "two": 2}, {"one": "a/b", "two": 2}, "text", {"one": "+"}):
        with pytest.raises(fasti.BadArgument, match="for the topic"):
            await handle.schedule(payload)
    with pytest.raises(fasti.BadArgument, match="does not match the handler's filter"):
        await handle.schedule({"one": "x", "two": 2}, topic="a/x/c/2")
    for wild in ("a/+", "a/#", "{one}/#"):
        handle, seen = handled(wild)
        with pytest.raises(fasti.BadArgument, match=r"topic is required: .* has wildcards"):
            await handle.schedule({"one": 1})
        await handle.schedule({"one": 1}, topic="a/b")
        assert seen.sent == [("a/b", {"one": 1}, {})]


async def test_a_named_level_is_any_to_the_server() -> None:
    worker = fasti.Worker()
    worker.on("a/{one}/b")(print)
    assert worker._jobs[0].request.topic_filter == "a/+/b"
    with pytest.raises(fasti.BadArgument, match="has a handler already"):
        worker.on("a/+/b")
    with pytest.raises(fasti.BadArgument, match="annotations cannot be resolved"):
        handled("a", "Nowhere")


async def test_a_handler_is_called_as_before() -> None:
    worker = fasti.Worker()

    @worker.on("b")
    @worker.on("a")
    def twice(number: int, *, more: int = 0) -> int:
        """Doubles."""
        return number * 2 + more

    assert (twice(4, more=1), twice.__doc__) == (9, "Doubles.")
    assert [job.handler.function for job in worker._jobs] == [twice.function] * 2


async def test_options_are_those_of_a_message() -> None:
    handle, _ = handled("a")
    async with fasti.Client("http://127.0.0.1:9") as c:
        with pytest.raises(ValueError, match="not both"):
            await handle.schedule("x", client=c, delay=1, at="2030-01-01T00:00Z")
        with pytest.raises(TypeError, match="fasti calls it delay"):
            await handle.schedule("x", client=c, countdown=1)
    with pytest.raises(RuntimeError, match="await schedule"):
        handle.schedule_sync("x")


async def test_handlers_give_each_other_work(server: FastiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """From outside without a client, from the loop, from a thread; a payload that does not fit is dead."""
    monkeypatch.setenv("FASTI_URL", server.url)
    worker = fasti.Worker()
    done: list[Any] = []

    @worker.on("start")
    async def start(job: fasti.Delivery) -> None:
        await middle.schedule({"order": job.json()})

    @worker.on("middle/{order}")
    def middle(plain: Plain, job: fasti.Delivery) -> None:
        done.append((plain, job.topic))
        done.append(len(end.schedule_sync(Struct(plain.order + 1))))

    @worker.on("end")
    def end(struct: Struct) -> None:
        done.append(struct)

    async with server.client() as c:
        async with working(worker, c):
            made = await start.schedule(17)
            assert made.topic == "start"
            assert len(await asyncio.to_thread(start.schedule_sync, 27)) == 32
            await c.messages.schedule("end", "{")
            await until(lambda: len(done) == 6)
            await until(lambda: dead(c))
        assert (Plain(17), "middle/17") in done
        assert (Plain(27), "middle/27") in done
        assert {one.order for one in done if isinstance(one, Struct)} == {18, 28}
        assert [reason[:35] for _, _, reason in await dead(c)] == ["the payload does not fit Struct: In"]
        with pytest.warns(UserWarning, match="blocks"), server.sync_client() as blocking:
            assert len(await asyncio.to_thread(end.schedule_sync, {"order": 1}, client=blocking)) == 32
        assert len(await asyncio.to_thread(end.schedule_sync, {"order": 1})) == 32
        assert await c.messages.count(topic="end", state="all") == 5
    mine = fasti.Worker(c).on("mine")(print)
    with pytest.raises(fasti.BadArgument, match="client is required"):
        await asyncio.to_thread(mine.schedule_sync, "x")
