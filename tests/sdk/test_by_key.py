"""`by_key`, `replace` and `key_only` against the real server, one for all, with a clock that tests move."""

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import fasti
from fasti.bulk import line_of
from tests.sdk.conftest import QUICK
from tests.sdk.fake import Fake
from tests.sdk.test_against_server import Server, simulated
from tests.sdk.test_cli import fasti_cli, ok

FAR = datetime.now(UTC).replace(microsecond=0) + timedelta(days=300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("by-key") / "data", clock="simulated")
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def c(server: Server) -> AsyncIterator[fasti.Client]:
    """Nothing is pending."""
    async with fasti.Client(server.url, retry=QUICK) as made:
        await made.messages.cancel_where(topic="#")
        yield made


async def test_the_message_under_a_key(c: fasti.Client) -> None:
    for key in ("order-17", "a/b", "grüße ✓ ?#%", ".", "..", "{x}", "explain"):
        made = await c.messages.schedule("a/b", key, delay=3_600, key=key)
        named = c.messages.by_key(key)
        assert (named.key, named) == (key, c.messages.by_key(key))
        found = await named.get()
        assert (found.id, found.payload, found.state) == (made.id, key, "pending")
        moved = await named.reschedule(delay=timedelta(hours=2))
        assert (moved.id, moved.deliver_at) == (made.id, made.deliver_at + timedelta(hours=1))
        assert [await named.cancel() for _ in range(2)] == [True, True]
        with pytest.raises(fasti.Refused) as caught:
            await named.reschedule(delay=1)
        assert caught.value.slug == "cancelled"
        with pytest.raises(ValueError, match="at or `delay` is needed"):
            await named.reschedule()
    assert await c.messages.count() == 0
    for call in (c.messages.by_key("nobody").get, c.messages.by_key("nobody").cancel):
        with pytest.raises(fasti.NotFound) as unknown:
            await call()
        assert unknown.value.slug == "not-found"
    with pytest.raises(fasti.NotFound):
        await c.messages.by_key("order-17", door="mqtt").get()
    with pytest.raises(fasti.BadArgument):
        c.messages.by_key("")


async def test_upsert_under_a_key(c: fasti.Client) -> None:
    named = c.messages.by_key("upsert")
    made = await named.upsert("a/b", {"n": 1}, delay=3_600, version=(1, 0))
    assert (made.state, made.changed, made.deliver_at) == ("pending", True, (await named.get()).deliver_at)
    later = await named.upsert("a/c", "two", delay=7_200, qos=2, version=(3, 0))
    assert (later.id, later.changed) == (made.id, True)
    again = await named.upsert("a/b", "overtaken", delay=60, version=(2, 9))
    assert (again.id, again.changed) == (made.id, False)
    found = await named.get()
    assert (found.topic, found.payload, found.deliver_at) == ("a/c", "two", later.deliver_at)
    assert await named.cancel(version=(3, 0)) is False
    assert [await named.cancel(version=(4, n)) for n in (1, 0)] == [True, True]
    told = await named.upsert("a/b", 1, version=(4, 1))
    assert (told.state, told.changed) == ("cancelled", False)
    overtook = c.messages.by_key("overtook")
    assert await overtook.cancel(version=(2, 0)) is True
    assert (await overtook.upsert("a/b", 1, version=(1, 0))).id is None
    with pytest.raises(fasti.BadArgument):
        await named.upsert("a/b", 1, key="other")
    with pytest.raises(fasti.Refused, match=r"^at:"):
        await named.upsert("a/b", 1, at="no time")


async def test_an_upsert_to_a_past_time_that_is_not_wanted_late(c: fasti.Client, server: Server) -> None:
    """It cancels the pending message, and says so; a move does as well."""
    past = datetime.now(UTC) - timedelta(days=3)
    named = c.messages.by_key("reminder")
    first = await named.upsert("a/b", 1, delay=60, late="drop")
    left = await named.upsert("a/b", 2, at=past, late="drop")
    assert (left.id, left.state, left.changed) == (first.id, "cancelled", True)
    assert (await c.messages.by_key("none").upsert("a/b", 2, at=past, late="drop")).id is None
    await named.upsert("a/b", 3, delay=60, late="drop")
    text = past.isoformat()
    put = ("message", "put", "--url", server.url, "-o", "json", "-k", "reminder", "a/b", "4")
    told = json.loads(await ok(*put, "--at", text, "--late", "drop"))
    assert (told["state"], told["changed"]) == ("cancelled", True)
    moved = await c.messages.schedule("a/b", 5, delay=60, late="drop")
    assert (await moved.reschedule(at=past)).state == "cancelled"
    assert await c.messages.count() == 0


async def test_an_upsert_that_is_too_late(c: fasti.Client) -> None:
    named = c.messages.by_key("upsert-late")
    first = await named.upsert("a/b", 1, delay=60, version=(1, 0))
    await c.advance(timedelta(minutes=2))
    with pytest.raises(fasti.AlreadyDispatched):
        await named.upsert("a/b", 2)
    assert await named.cancel(version=(2, 0)) is False
    with pytest.raises(fasti.AlreadyDispatched):
        await named.cancel(version=(3, 0), strict=True)
    assert (await named.upsert("a/b", 2, delay=60, version=(4, 0))).id != first.id


async def test_a_debounce(server: Server, c: fasti.Client) -> None:
    calls = [
        c.messages.schedule("a/b", n, key="bounce", debounce=("30s", timedelta(minutes=2))) for n in (1, 2)
    ]
    first, second = [await call for call in calls]
    assert (second.id, second.replayed, second.state) == (first.id, False, "pending")
    assert (await c.messages.by_key("bounce").get()).payload == 2
    with pytest.raises(fasti.BadArgument):
        await c.messages.schedule("a/b", 1, debounce=("30s", "2m"))
    with pytest.raises(fasti.Refused):
        await c.messages.schedule("a/b", 1, key="bounce", debounce=("30s", "2s"))
    at = ("--url", server.url, "-o", "json")
    line = ("message", "schedule", *at, "-k", "bounce", "a/b", "x", "--debounce")
    assert json.loads(await ok(*line, "1m, 2m"))["id"] == first.id
    assert (await fasti_cli(*line, "1m"))[0] == 2


async def test_put_at_the_command_line(server: Server, c: fasti.Client) -> None:
    put = ("message", "put", "--url", server.url, "-o", "json", "-k", "put")
    made = json.loads(await ok(*put, "a/b", "hi", "--in", "1h", "--version", "1,0"))
    assert (made["state"], made["changed"]) == ("pending", True)
    assert not json.loads(await ok(*put, "a/b", "late", "--version", "1,0"))["changed"]
    assert json.loads(await ok(*put, "--cancel", "--version", "2,0"))["state"] == "cancelled"
    assert json.loads(await ok(*put, "--cancel", "--version", "1,9"))["state"] == "cancelled"
    for wrong in (("--cancel", "a/b"), ("a/b", "--version", "1"), ("a/b", "--version", "x,y")):
        assert (await fasti_cli(*put, *wrong))[0] == 2


async def test_too_late_and_gone(c: fasti.Client) -> None:
    await c.messages.schedule("a/b", 1, delay=60, key="late")
    await c.advance(timedelta(minutes=2))
    named = c.messages.by_key("late")
    assert await named.cancel() is False
    assert (await named.get()).state == "dispatched"
    with pytest.raises(fasti.AlreadyDispatched):
        await named.reschedule(delay=60)
    await c.advance(timedelta(days=9))
    with pytest.raises(fasti.NotFound) as caught:
        await named.cancel()
    assert caught.value.slug in ("gone", "not-found"), "a key is forgotten soon after its message"


async def test_a_delay_is_the_same_request_a_computed_time_is_not(c: fasti.Client) -> None:
    first = await c.messages.schedule("a/b", 1, delay=timedelta(minutes=30), key="in")
    await c.advance(timedelta(minutes=7))
    again = await c.messages.schedule("a/b", 1, delay=1_800, key="in")
    assert (again.id, again.replayed, again.deliver_at) == (first.id, True, first.deliver_at)
    at = await c.messages.schedule("a/b", 1, at=FAR, key="at")
    with pytest.raises(fasti.Refused) as caught:
        await c.messages.schedule("a/b", 1, at=FAR + timedelta(seconds=1), key="at")
    assert caught.value.slug == "idempotency-mismatch"
    told = await c.messages.schedule("a/b", 2, at=FAR + timedelta(seconds=1), key="at", key_only=True)
    assert (told.id, told.replayed, told.deliver_at) == (at.id, True, at.deliver_at)


async def test_what_was_cancelled_is_scheduled_anew_when_asked(c: fasti.Client) -> None:
    first = await c.messages.schedule("a/b", 1, delay=60, key="anew")
    assert await first.cancel()
    with pytest.raises(fasti.KeyCancelled) as told:
        await c.messages.schedule("a/b", 1, delay=60, key="anew")
    assert (told.value.id, told.value.slug) == (first.id, "cancelled")
    anew = await c.messages.schedule("a/b", 2, delay=90, key="anew", replace=True)
    assert (anew.id != first.id, anew.replayed, anew.state) == (True, False, "pending")
    again = await c.messages.schedule("a/b", 2, delay=90, key="anew", replace=True)
    assert (again.id, again.replayed, again.state) == (anew.id, True, "pending")
    for terms in ({"replace": True}, {"key_only": True}):
        with pytest.raises(fasti.BadArgument):
            await c.messages.schedule("a/b", 1, **terms)  # type: ignore[arg-type]


async def test_calls_of_one_turn_each_have_their_terms(c: fasti.Client) -> None:
    """They share a request with those that say the same."""
    keys = [f"k{n}" for n in range(6)]
    old = await asyncio.gather(*(c.messages.schedule("a", key, delay=60, key=key) for key in keys))
    await asyncio.gather(*(message.cancel() for message in old))
    new = await asyncio.gather(
        *(c.messages.schedule("a", key, delay=60, key=key, replace=n % 2 == 0) for n, key in enumerate(keys)),
        return_exceptions=True,
    )
    made = [one for one in new if isinstance(one, fasti.Message)]
    told = [one for one in new if isinstance(one, fasti.KeyCancelled)]
    assert [(m.state, m.replayed) for m in made] == [("pending", False)] * 3
    assert new == [one for pair in zip(made, told, strict=True) for one in pair]
    assert {one.id for one in told} == {message.id for message in old[1::2]}
    items = [fasti.NewMessage(topic="a", payload=n, at=FAR, key=key) for n, key in enumerate(keys)]
    with pytest.raises(fasti.Refused):
        await c.messages.schedule_many(items, replace=True)
    assert await c.messages.count() == 3
    assert await c.messages.schedule_many(items, replace=True, key_only=True) == 6
    assert await c.messages.count() == 6


async def test_on_the_command_line(c: fasti.Client) -> None:
    at = ("-o", "json", "--url", c.url)
    keyed = ("message", "schedule", "a/b", "hi", "--in", "1h", "-k", "line-17")
    made = json.loads(await ok(*keyed, *at))
    shown = json.loads(await ok("message", "get", "-k", "line-17", *at))
    assert (shown["id"], shown["payload"]) == (made["id"], "hi")
    moved = json.loads(await ok("message", "move", "-k", "line-17", "--in", "2h", *at))
    assert (moved["id"], moved["deliver_at"] > made["deliver_at"]) == (made["id"], True)
    done = json.loads(await ok("message", "cancel", "--idempotency-key", "line-17", *at))
    assert done == {"key": "line-17", "state": "cancelled"}
    code, _, err = await fasti_cli(*keyed, *at)
    problem = json.loads(err)
    assert (code, problem["type"], problem["id"]) == (1, "/problems/cancelled", made["id"])
    anew = json.loads(await ok(*keyed, "--replace", *at))
    assert (anew["id"] != made["id"], anew["state"]) == (True, "pending")
    other = ("message", "schedule", "a/b", "hi", "--in", "3h", "-k", "line-17")
    assert (await fasti_cli(*other, *at))[0] == 1
    assert json.loads(await ok(*other, "--key-only", *at))["id"] == anew["id"]
    await c.advance(timedelta(hours=2))
    code, _, err = await fasti_cli("message", "cancel", "-k", "line-17", *at)
    assert (code, "line-17 was already dispatched" in err) == (1, True)
    assert (await fasti_cli("message", "get", "-k", "nobody", *at))[0] == 1
    for wrong in (
        *(("get",), ("get", made["id"], "-k", "line-17"), ("move", "--in", "1h")),
        *(("cancel", "-k", "line-17", "--topic", "a/#"), ("cancel", "-k", "line-17", "--dry-run")),
        ("schedule", "a", "--replace"),
    ):
        assert (await fasti_cli("message", *wrong, *at))[0] == 2, wrong


# -- how long a key is taken, what is said of it


@pytest.mark.parametrize("payload", [1, 2])
async def test_a_cancelled_message_keeps_its_key_and_the_ways_out_are_named(
    c: fasti.Client, payload: int
) -> None:
    """By the same call, which would be answered with it, and by another, which would be refused."""
    key = f"out {payload}"
    first = await c.messages.schedule("a/b", 1, delay=60, key=key)
    await first.cancel()
    with pytest.raises(fasti.KeyCancelled, match=re.escape(repr(key))) as caught:
        await c.messages.schedule("a/b", payload, delay=60, key=key)
    assert {"replace=True", 'key_scope="pending"'} <= set(re.findall(r'\w+="?\w+"?', str(caught.value)))
    assert isinstance(caught.value, fasti.Refused)
    assert str(copy.copy(caught.value)) == str(caught.value)
    anew = await c.messages.schedule("a/b", payload, delay=60, key=key, key_scope="pending")
    assert anew.id != first.id


async def test_keys_of_our_own_making_are_never_spoken_of(
    c: fasti.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody cancels what a call has scheduled before that has had its answer, and it is sent again."""
    monkeypatch.setattr(fasti.coalesce, "new_key", lambda: "ours")
    first = await c.messages.schedule("a/b", 1, delay=60)
    await first.cancel()
    again = await c.messages.schedule("a/b", 1, delay=60)
    assert (again.id, again.replayed, again.state) == (first.id, True, "cancelled")
    with pytest.raises(fasti.Refused) as caught:
        await c.messages.schedule("a/b", 2, delay=60)
    assert not isinstance(caught.value, fasti.KeyCancelled)


async def test_a_key_is_free_when_nothing_is_undone(c: fasti.Client) -> None:
    async def digest(payload: object = "x", **more: Any) -> fasti.Message:
        return await c.messages.schedule("digest", payload, key="user-17", key_scope="pending", **more)

    first = await digest(delay=60)
    assert (await digest(delay=60)).id == first.id
    with pytest.raises(fasti.Refused, match="another deliver_at"):
        await digest(delay=90)
    await c.advance(timedelta(minutes=2))
    second, third = await asyncio.gather(digest("new", delay=60), digest("new", delay=60))
    assert second.id == third.id != first.id
    kept = await c.messages.schedule("digest", "new", key="user-17", delay=60)
    assert (kept.id, kept.replayed) == (second.id, True), "the scope is no part of the request"
    assert (await c.messages.by_key("user-17").get()).id == second.id


async def test_of_many(c: fasti.Client) -> None:
    """Only of keys that items bring: what is sent again under one of ours must be found for good."""
    items: list[Any] = [
        {"topic": "many", "payload": "x", "key": "many"},
        fasti.NewMessage(topic="many", payload=1, key="new"),
        {"topic": "many", "payload": 2, "key": "kept", "key_scope": "kept"},
        {"topic": "many", "payload": 3},
    ]
    for count in (4, 7):
        assert await c.messages.schedule_many(items, key_scope="pending") == 4
        await c.advance(timedelta(seconds=1))
        assert await c.messages.count(topic="many", state="all") == count
    for item in ({"topic": "a", "payload": 1}, fasti.NewMessage(topic="a", payload=1)):
        assert b"key_scope" not in line_of(item, "pending")[0]
    scoped = fasti.NewMessage(topic="a", payload=1, key_scope="pending")
    with pytest.raises(fasti.BadArgument):
        await c.messages.schedule_many([scoped])
    with pytest.raises(fasti.BadArgument):
        await c.messages.schedule("a", 1, key_scope="pending")


async def test_keys_may_be_numbers_and_uuids(c: fasti.Client) -> None:
    for key in (0, 17, -1, UUID(int=7)):
        made = await c.messages.schedule("a", 1, delay=60, key=key)
        again = await c.messages.schedule("a", 1, delay=60, key=str(key))
        assert (again.id, again.replayed) == (made.id, True)
        assert (await c.messages.by_key(key).get()).id == made.id
        assert c.messages.by_key(key) == c.messages.by_key(str(key))
        for item in (
            {"topic": "a", "payload": 2, "key": key},
            fasti.NewMessage(topic="a", payload=2, key=key),
        ):
            assert await c.messages.schedule_many([item], key_only=True) == 1
        assert await c.messages.count(topic="a", due_from=made.deliver_at) == 1
        assert [one async for one in c.retries.list(key=key)] == []
        await made.cancel()
    for wrong in (True, 1.5, b"k", ["k"]):
        with pytest.raises(fasti.BadArgument):
            await c.messages.schedule("a", 1, key=wrong)  # type: ignore[arg-type]
        with pytest.raises(fasti.BadArgument):
            c.messages.by_key(wrong)  # type: ignore[arg-type]


async def test_a_mismatch_says_which_key_what_differs_and_the_way_out(c: fasti.Client) -> None:
    await c.messages.schedule("a", 1, delay=60, key="1717")
    for change, field in (({"payload": 2}, "payload"), ({"qos": 2}, "qos"), ({"delay": 61}, "deliver_at")):
        asked: dict[str, Any] = {"payload": 1, "delay": 60, **change}
        with pytest.raises(fasti.Refused, match=f"key '1717' .* another {field}; .*key_only=True"):
            await c.messages.schedule("a", key=1717, **asked)
    results = await asyncio.gather(
        *(c.messages.schedule("a", n, delay=60, key="1717") for n in (1, 2)), return_exceptions=True
    )
    assert "another payload" in str(results[1])


async def test_the_scope_on_the_command_line(c: fasti.Client) -> None:
    at = ("-o", "json", "--url", c.url)
    keyed = ("message", "schedule", "a/b", "hi", "-k", "scope-17", "--key-scope", "pending")
    first = json.loads(await ok(*keyed, *at))
    await c.advance(timedelta(seconds=1))
    assert json.loads(await ok(*keyed, *at))["id"] != first["id"]
    assert (await fasti_cli("message", "schedule", "a", "--key-scope", "pending", *at))[0] == 2
    assert (await fasti_cli(*keyed[:-1], "unique", *at))[0] == 2


async def test_after_a_kill_what_is_undone_still_has_its_key(tmp_path: Path) -> None:
    """On a real store: unread by a group, then in hand and acked."""
    async with simulated(tmp_path / "data") as server, fasti.Client(server.url, retry=QUICK) as c:
        await c.groups.put("workers", "jobs/#")
        first = await c.messages.schedule("jobs/1", 1, key="job", key_scope="pending")
        await c.advance(timedelta(seconds=1))
        for _ in range(2):
            server.stop(kill=True)
            server.start()
            again = await c.messages.schedule("jobs/1", 1, key="job", key_scope="pending")
            assert (again.id, again.replayed, again.state) == (first.id, True, "dispatched")
        async with c.pull("workers") as pull:
            await (await anext(pull)).ack()
        second = await c.messages.schedule("jobs/1", 1, key="job", key_scope="pending")
        server.stop(kill=True)
        server.start()
        again = await c.messages.schedule("jobs/1", 1, key="job", key_scope="pending")
        assert again.id == second.id != first.id


async def test_gone_is_not_found(client: fasti.Client, fake: Fake) -> None:
    with pytest.raises(fasti.NotFound) as caught:
        await client.messages.by_key("gone").cancel()
    assert caught.value.slug == "gone"
