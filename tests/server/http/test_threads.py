"""Work of clients in threads: one for each purpose, in turns by client, and none of it in the loop's own."""

import asyncio
import gzip
import threading
from pathlib import Path

import pytest

from server.http.routes import schedules
from server.http.turns import OneThread

from ..conftest import Running

BODY = b'{"topic":"a","payload":1,"deliver_in":60}'
RULE = {"rrule": "FREQ=DAILY", "timezone": "UTC"}


async def test_clients_take_turns_at_a_thread() -> None:
    thread, done = OneThread("test"), []
    hold = threading.Event()
    first = asyncio.ensure_future(thread.do("A", hold.wait))
    await asyncio.sleep(0)
    others = [thread.do(name[0], lambda name=name: done.append(name)) for name in ("A1", "A2", "B1", "C1")]  # type: ignore[misc]
    waiting = asyncio.gather(*others)
    await asyncio.sleep(0)
    hold.set()
    await first
    await waiting
    assert done == ["A1", "B1", "C1", "A2"]


async def test_whoever_is_given_up_leaves_the_thread_when_it_is_free() -> None:
    thread, hold, done = OneThread("test"), threading.Event(), []
    first = asyncio.ensure_future(thread.do("A", hold.wait))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.ensure_future(thread.do("B", lambda: done.append("B")))
    third = asyncio.ensure_future(thread.do("C", lambda: done.append("C")))
    await asyncio.sleep(0)
    second.cancel()
    assert not done
    hold.set()
    await third
    assert done == ["C"]


async def test_what_fails_in_a_thread_fails_its_call_alone() -> None:
    thread = OneThread("test")
    with pytest.raises(ZeroDivisionError):
        await thread.do("A", lambda: 1 // 0)
    assert await thread.do("A", lambda: 7) == 7


async def test_a_rule_that_takes_long_holds_up_no_body_and_no_metrics(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six previews made a gzip POST wait for 12 s, and a revoked key was let in for a minute."""
    hold, begun, real = threading.Event(), threading.Event(), schedules.timing_of
    count = []

    def slow(*args: object) -> object:
        count.append(threading.current_thread().name)
        begun.set()
        hold.wait(30)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(schedules, "timing_of", slow)
    ask = server.call
    previews = [asyncio.ensure_future(ask("POST", "/v1/schedules:preview", RULE)) for _ in range(6)]
    try:
        packed = {"Content_Type": "application/json", "Content_Encoding": "gzip"}
        await server.call("POST", "/v1/messages", gzip.compress(BODY), status=201, **packed)
        async with server.http.get("/metrics") as answer:
            assert answer.status == 200
        assert await asyncio.to_thread(begun.wait, 10)
        assert [name.partition("_")[0] for name in count] == ["fires"]
    finally:
        hold.set()
    await asyncio.gather(*previews)
    assert len(count) == 6


def test_no_call_of_a_client_goes_to_the_threads_of_the_loop() -> None:
    """Keys and certificates are read again there."""
    for path in Path("server/http").rglob("*.py"):
        text = path.read_text()
        assert "asyncio.to_thread" not in text, path
        assert "run_in_executor(None" not in text, path
