"""Whatever a program gives, or a server answers: BadArgument with the argument's name, or an Error.

Nothing of the inside reaches a program: no AttributeError, TypeError, KeyError, no error of json, aiohttp or
yarl. (A name that is no option stays a TypeError, as it is for every function.)
"""

import asyncio
import contextlib
import copy
import inspect
import pickle
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

import fasti
from fasti.errors import problem_of

ODD: list[Any] = [
    *(5, -1, 10**400, 1e300, float("nan"), True, object(), b"x", "\ud800", "a\nb", "", [], {}, ("a",)),
    *([object()], {"a": object()}, date(2027, 1, 1), datetime.max.replace(tzinfo=UTC)),
    *(timedelta.max, timedelta.min),
]
PARTS = (
    *("messages", "schedules", "sessions", "groups", "endpoints", "retries"),
    *("dead", "slices", "jobs", "server", "cluster", "timeline"),
)
GIVEN: dict[str, Any] = {
    "topic": "a/x",
    "url": "https://example.com/",
    "filter": "a/#",
    "start": "2027-01-01T00:00:00Z",
    "message_id": "0" * 32,
    "since": "PT1H",
    "by": "1m",
    "number": 0,
    "items": [{"topic": "a"}],
}


def piped(error: Exception) -> Exception:
    return cast("Exception", pickle.loads(pickle.dumps(error)))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, piped])
def test_an_error_goes_from_one_process_to_another(copied: Callable[[Exception], Exception]) -> None:
    said = {"type": "/problems/undone", "detail": "it has messages", "undone": {"lag": 3}}
    problem = problem_of(said, 409)
    for error in (
        *(fasti.BadArgument("at", "must be an instant"), fasti.NotFound("no such", problem=problem)),
        *(fasti.StillUndone("not yet", problem=problem, reason_code=1), fasti.AlreadyDispatched("late")),
        *(fasti.RetryIn(30, "not yet"), fasti.RetryIn(None), fasti.Reject("never")),
    ):
        found = copied(error)
        assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("junk", [None, 5, "x", [5], {"a": 1}])
def test_what_a_refusal_says_beside_may_be_anything(junk: object) -> None:
    problem = problem_of({"type": "/problems/x", "deliveries": junk, "undone": junk, "dispatched_at": junk})
    assert fasti.AlreadyDispatched("x", problem=problem).deliveries == ()
    assert not fasti.StillUndone("x", problem=problem).undone


@pytest.mark.parametrize(
    "junk", [None, 5, "x", [5], {"groups": 1, "endpoints": 1, "sessions": 1}, [{"a": 1}]]
)
def test_what_a_message_says_may_be_anything(junk: object) -> None:
    names = ("claims", "deliveries", "dispatched_at", "headers", "ordering_key", "payload", "schedule")
    message = fasti.Message("", "a", datetime.now(UTC), "", dict.fromkeys(names, junk), cast("Any", None))
    for name in names:
        with contextlib.suppress(fasti.Error):
            getattr(message, name)
    if junk == "x":
        assert message.dispatched_at is None


@pytest.mark.parametrize("odd", [5, None, "", "zz" * 16, b"0" * 32, "f" * 32, "-1"])
def test_an_id_that_is_none_is_named(odd: Any) -> None:
    with pytest.raises(fasti.BadArgument, match="message_id must be 32 hex digits"):
        fasti.instant_of_id(odd)


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("at", {"at": date(2027, 1, 1)}),
        ("at", {"at": 1_798_761_600}),
        ("at", {"at": datetime(2027, 1, 1)}),
        ("at", {"at": datetime.max.replace(tzinfo=UTC)}),
        ("at", {"at": datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))}),
        ("at", {"at": "2027-01-01T00:00Z", "delay": 5}),
        ("delay", {"delay": -1}),
        ("delay", {"delay": float("inf")}),
        ("delay", {"delay": b"5s"}),
        ("expires_in", {"expires_in": b"x"}),
        ("spread", {"spread": -1}),
        ("headers", {"headers": {"a": b"x"}}),
        ("headers", {"headers": 5}),
        ("payload", {"payload": "\ud800"}),
        ("payload", {"payload": {"at": datetime.now(UTC)}}),
        ("payload", {"payload": float("nan")}),
        ("key", {"key": "a\nb"}),
        ("key", {"key": 1.5}),
        ("deliver_to", {"deliver_to": b"https://example.com"}),
    ],
)
async def test_the_argument_is_named(client: fasti.Client, argument: str, given: dict[str, Any]) -> None:
    with pytest.raises(fasti.BadArgument) as refused:
        await client.messages.schedule(**{"topic": "a", "payload": "x", **given})
    assert refused.value.argument == argument
    assert str(refused.value).startswith(argument)


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        *(("url", {"url": 5}), ("url", {"url": [5]}), ("url", {"url": "ftp://a"}), ("mqtt", {"mqtt": 5})),
        *(("mqtt", {"mqtt": "nonsense"}), ("key", {"key": "a\nb"}), ("timeout", {"timeout": "x"})),
        *(("retry", {"retry": 3}), ("ca", {"ca": "/nowhere"})),
    ],
)
def test_of_a_client_too(argument: str, given: dict[str, Any]) -> None:
    for kind in (fasti.Client, fasti.sync.Client):
        with pytest.raises(fasti.BadArgument) as refused:
            kind(**{"url": "http://127.0.0.1:9", **given})
        assert refused.value.argument == argument


def calls_of(client: fasti.Client) -> AsyncIterator[Any] | Any:
    """(name, method, its needed arguments)"""
    for part in PARTS:
        for name, method in inspect.getmembers(getattr(client, part), callable):
            if name.startswith("_") or name in ("close", "wait", "by_key"):
                continue
            needed = {
                one.name: GIVEN.get(one.name, "x")
                for one in inspect.signature(method).parameters.values()
                if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
            }
            if part == "schedules" and name in ("put", "preview"):
                needed |= {"every": "1h"} | ({"topic": "a", "payload": "x"} if name == "put" else {})
            yield f"{part}.{name}", method, needed


async def outcome(call: Callable[[], Any]) -> str:
    """Empty: an answer, or an error that the SDK promises."""
    try:
        async with asyncio.timeout(20):
            found = call()
            if inspect.isawaitable(found):
                await found
            else:
                async for _ in found:
                    break
    except (fasti.Error, fasti.BadArgument):
        return ""
    except Exception as error:
        is_name = isinstance(error, TypeError) and "got an unexpected keyword argument" in str(error)
        return "" if is_name else f"{type(error).__name__}: {error}"[:200]
    return ""


@pytest.mark.filterwarnings("ignore::UserWarning")  # of an empty message, of a past time
async def test_every_call_with_every_odd_argument(client: fasti.Client) -> None:
    raw = {}
    for label, method, needed in calls_of(client):
        for one in inspect.signature(method).parameters.values():
            if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) or one.name == "on_progress":
                continue
            for value in ODD:
                if said := await outcome(lambda: method(**{**needed, one.name: value})):  # noqa: B023
                    raw[f"{label}({one.name}={value!r:.40})"] = said
    assert raw == {}


async def test_every_option_of_a_subscription_and_a_pull(url: str) -> None:
    raw = {}
    async with fasti.Client(url, retry=fasti.Retry(attempts=1)) as c:
        for call, needed in ((c.subscribe, {"topic_filter": "a"}), (c.pull, {"group": "g"})):
            for one in inspect.signature(call).parameters.values():
                for value in ODD:
                    try:
                        call(**{**needed, one.name: value})
                    except fasti.BadArgument:
                        pass
                    except Exception as error:
                        raw[f"{one.name}={value!r:.40}"] = f"{type(error).__name__}: {error}"
    assert raw == {}


def test_every_option_of_a_worker_and_a_handler() -> None:
    async def handle(_: fasti.Delivery) -> None: ...

    raw = {}
    for call, needed in ((fasti.Worker, {}), (fasti.Worker().on, {"topic_filter": "a"})):
        for one in inspect.signature(call).parameters.values():
            for value in ODD if one.kind is not one.VAR_KEYWORD else ():
                try:
                    made: Any = call(**{**needed, one.name: value})
                    if not isinstance(made, fasti.Worker):
                        made(handle)
                except (fasti.BadArgument, DeprecationWarning):
                    pass
                except Exception as error:
                    is_name = isinstance(error, TypeError) and "unexpected keyword argument" in str(error)
                    if not is_name:
                        raw[f"{one.name}={value!r:.40}"] = f"{type(error).__name__}: {error}"
    assert raw == {}


ANSWERS = {
    "a page of a proxy": (b"text/html", b"<html>Bad gateway"),
    "JSON that breaks off": (b"application/json", b'{"id":"a","mess'),
    "a list": (b"application/json", b"[]"),
    "an empty object": (b"application/json", b"{}"),
    "null": (b"application/json", b"null"),
    "no text": (b"application/json", b"\xff\xfe"),
    "nothing": (b"application/json", b""),
    "brackets without end": (b"application/json", b"[" * 100_000),
    "lists that are none": (b"application/json", b'{"messages":5,"groups":null,"schedules":"a","jobs":{}}'),
}


@pytest.mark.parametrize("status", [200, 404, 502])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_every_call_with_every_wrong_answer(answer: str, status: int) -> None:
    kind, body = ANSWERS[answer]

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(65_536)
            head = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            writer.write(head % (status, kind, len(body)) + body)
            await writer.drain()
        finally:
            writer.close()

    raw = {}
    async with await asyncio.start_server(respond, "127.0.0.1", 0) as serving:
        url = f"http://127.0.0.1:{serving.sockets[0].getsockname()[1]}"
        async with fasti.Client(url, retry=fasti.Retry(attempts=1)) as c:
            for label, method, needed in calls_of(c):
                if said := await outcome(lambda: method(**needed)):  # noqa: B023
                    raw[label] = said
            for label, call in (("info", c.info), ("advance", lambda: c.advance(5))):
                if said := await outcome(call):
                    raw[label] = said
    assert raw == {}
