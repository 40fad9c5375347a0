"""Full URLs: an endpoint for each origin and key, made when something is due, forgotten when idle."""

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from server.delivery import ahead, unread
from server.delivery.ahead import PLACES_MAX
from server.delivery.router import URLS
from server.delivery.shared import Group, endpoint_text
from server.engine.clock import SimulatedClock
from server.engine.commit_hook import Done
from server.settings.config import Config
from shards.commit import Commit
from shards.errors import StoreFailed
from shards.keys import GROUP_PREFIX
from shards.read import Row
from shards.store import Table
from shards.tables import encode_row, group_of
from tests.server.conftest import MINUTE_MS, Running, running
from tests.support.receiver import Got, Receiver, answer, receiving, silent
from tests.support.stores import FailingMemory
from timeline.position import Position

from .conftest import dead, put, settled


def origins(server: Running) -> list[str]:
    return sorted(group.endpoint for group in server.app.core.groups if group.is_unnamed)


def group_at(server: Running, receiver: Receiver) -> Group:
    return server.group(endpoint_text(receiver.url("")))


async def look(server: Running, times: int = 4) -> None:
    """Housekeeping, until what has been idle is forgotten."""
    await settled(server)
    for _ in range(times):
        await server.app.housekeeping.run_due()
        await server.app.quiet()


async def test_an_origin_has_a_group_from_its_first_due_message_on(
    server: Running, receiver: Receiver
) -> None:
    await server.schedule("a", "x", deliver_to=receiver.url("/a"), deliver_in="1m")
    assert origins(server) == []
    await server.schedule("a", "y", deliver_to=receiver.url("/b").replace("http:", "HTTP:"))
    await receiver.posts(1)
    assert origins(server) == [receiver.url("")]
    await server.pass_time(MINUTE_MS)
    await receiver.posts(2)
    assert origins(server) == [receiver.url("")]


async def test_it_is_forgotten_when_it_has_been_idle_and_comes_again(
    server: Running, receiver: Receiver
) -> None:
    name = await server.schedule("a", "x", deliver_to=receiver.url())
    await look(server, 1)
    assert origins(server) == [receiver.url("")]
    await look(server, 2)
    assert origins(server) == []
    assert server.app.webhooks._posters == {}
    shown = (await server.call("GET", f"/v1/messages/{name}")).body["deliveries"]
    assert [(one["group"], one["state"]) for one in shown] == [(f"$endpoint/{receiver.url('')}", "done")]
    await server.schedule("a", "y", deliver_to=receiver.url())
    assert [got.body for got in await receiver.posts(2)] == [b"x", b"y"]
    await look(server)
    assert len(receiver.got) == 2


async def test_one_with_something_undone_stays(server: Running, receiver: Receiver) -> None:
    receiver.behave = answer(503, "Retry-After: 3600")
    await server.schedule("a", "x", deliver_to=receiver.url())
    await receiver.posts(1)
    await look(server)
    assert origins(server) == [receiver.url("")]
    receiver.behave = answer(200)
    await server.pass_time(60 * MINUTE_MS)
    await receiver.posts(2)
    await look(server)
    assert origins(server) == []


async def test_a_dead_letter_is_sent_again_though_its_group_is_forgotten(
    server: Running, receiver: Receiver
) -> None:
    receiver.behave = answer(500)
    await server.schedule("a", "x", deliver_to=receiver.url())
    while not await dead(server):
        await settled(server)
        await server.pass_time(60 * MINUTE_MS)
    tried = len(receiver.got)
    (letter,) = await dead(server)
    assert letter["group"] == f"$endpoint/{receiver.url('')}"
    await look(server)
    assert origins(server) == []
    receiver.behave = answer(200)
    again = await server.call("POST", "/v1/dead:requeue", {"ids": [letter["id"]]})
    assert again.body["changed"] == 1, again.body
    await receiver.posts(tried + 1)
    await settled(server)
    assert await dead(server) == []


async def test_its_place_is_shown_skipped_and_set_back(server: Running, receiver: Receiver) -> None:
    asked = asyncio.Event()

    async def late(got: Got, writer: asyncio.StreamWriter) -> bool:
        await asked.wait()
        return await answer(200)(got, writer)

    receiver.behave = late
    for number in range(12):
        await server.schedule("a", number, deliver_to=receiver.url())
    await receiver.posts(1)
    path = "/v1/sessions/" + quote(endpoint_text(receiver.url("")), safe="")
    shown = (await server.call("GET", path)).body
    assert (shown["in_flight"], shown["lag_messages"]) == (1, 11)
    assert (await server.call("POST", f"{path}:skip", {})).body["undone"]["lag"] == 11
    asked.set()
    await settled(server)
    assert len(await dead(server)) == 11
    await server.call("POST", f"{path}:replay", {"from": "1h"})
    await receiver.posts(12)
    await server.call("DELETE", path, status=404)


async def test_a_schedule_and_a_move_need_nothing_of_it(server: Running, receiver: Receiver) -> None:
    body = {"every": "1m", "topic": "a", "payload": "x", "deliver_to": receiver.url()}
    await server.call("PUT", "/v1/schedules/s", body, status=201)
    name = await server.schedule("a", "y", deliver_to=receiver.url(), deliver_in="30s")
    await server.call("PATCH", f"/v1/messages/{name}", {"deliver_in": "3h"})
    for count in (1, 2):
        await server.pass_time(MINUTE_MS)
        await receiver.posts(count)
        await look(server)
        assert origins(server) == []
    await server.call("DELETE", "/v1/schedules/s", status=204)
    await server.pass_time(3 * 60 * MINUTE_MS)
    assert (await receiver.posts(3))[2].body == b"y"


@pytest.fixture
async def small(tmp_path: Path, config: Config, clock: SimulatedClock) -> AsyncIterator[Running]:
    """Room for seven origins."""
    limits = replace(config.limits, groups=8)
    async with running(tmp_path / "small", replace(config, limits=limits), clock) as server:
        yield server


async def test_without_room_for_one_more_the_common_one_has_it(small: Running, receiver: Receiver) -> None:
    receivers = [receiving() for _ in range(10)]
    made = [await one.__aenter__() for one in receivers]
    try:
        for one in made:
            one.behave = answer(503, "Retry-After: 60")
            await small.schedule("a", "x", deliver_to=one.url())
            await one.posts(1)
        await settled(small)
        assert len(origins(small)) == 8
        assert URLS in origins(small)
        for one in made:
            one.behave = answer(200)
        await small.call("PUT", "/v1/groups/mine", {"filter": "a"}, status=429)
        await small.pass_time(MINUTE_MS)
        for one in made:
            await one.posts(2)
        await look(small, 4)
        assert origins(small) == []
        assert [len(one.got) for one in made] == [2] * 10
    finally:
        for context in receivers:
            await context.__aexit__(None, None, None)


async def test_what_an_older_version_left_to_one_group_is_finished_there_once(
    tmp_path: Path,
    config: Config,
    clock: SimulatedClock,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was due by then is of `$endpoint/*`; what is due now is its origin's."""
    data, store = tmp_path / "old", FailingMemory()
    async with running(data, config, clock, store=store) as server:
        monkeypatch.setattr(server.app.webhooks, "open_fresh", lambda: False)  # no poster is opened
        for number in range(5):
            await server.schedule("a", number, deliver_to=receiver.url())
        await server.schedule("a", 5, deliver_to=receiver.url(), deliver_in="1m")
        assert origins(server) == [receiver.url("")]
    as_before(store, receiver)
    async with running(data, config, clock, store=store) as server:
        assert origins(server) == [URLS]
        await receiver.posts(5)
        await server.pass_time(MINUTE_MS)
        await receiver.posts(6)
        assert sorted(got.body for got in receiver.got) == [b"%d" % number for number in range(6)]
        assert origins(server) == [URLS, receiver.url("")]
        await look(server)
        assert origins(server) == []
        assert len(receiver.got) == 6


async def test_what_a_forgotten_group_has_done_is_not_done_again_after_a_kill(
    tmp_path: Path,
    config: Config,
    clock: SimulatedClock,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The common group waits for a try: it stays, and nothing has moved its stored position since."""
    store, killed = FailingMemory(), FailingMemory()
    async with receiving() as other, running(tmp_path / "first", config, clock, store=store) as server:
        other.behave = answer(503, "Retry-After: 7200")
        with monkeypatch.context() as full:
            full.setattr(server.app.core.groups, "has_spare", lambda *_: False)
            await server.schedule("a", "x", deliver_to=other.url())
            await other.posts(1)
            await settled(server)
        for number in range(3):
            await server.schedule("a", number, deliver_to=receiver.url())
        await receiver.posts(3)
        await look(server)
        assert origins(server) == [URLS]
        killed._tables = copy.deepcopy(store._tables)
    async with running(tmp_path / "second", config, clock, store=killed) as server:
        await server.schedule("a", "last", deliver_to=receiver.url())
        await receiver.posts(4)
        await settled(server)
    assert [got.body for got in receiver.got] == [b"0", b"1", b"2", b"last"]


def as_before(store: FailingMemory, receiver: Receiver) -> None:
    """Give the rows of the origin's group to `$endpoint/*`."""
    own, common = (f"{GROUP_PREFIX}{endpoint_text(name)}".encode() for name in (receiver.url(""), URLS))
    batch = store.batch()
    for table in (Table.SESSIONS, Table.CURSORS):
        value = store.get(table, own)
        assert value is not None
        if table is Table.SESSIONS:
            row = group_of(value)
            subscription = msgspec.structs.replace(row.subscription, filter=endpoint_text(URLS))
            value = encode_row(msgspec.structs.replace(row, subscription=subscription))
        batch.put(table, common, value)
        batch.delete(table, own)
    store.write(batch)
    store.flush()


@pytest.mark.long
@pytest.mark.parametrize(
    ("is_restarted", "most"), [(False, unread.RESTORED_BYTES), (True, unread.RESTORED_BYTES), (True, 100)]
)
@pytest.mark.parametrize("each", [5, PLACES_MAX + 20])
async def test_what_is_read_late_is_posted_once_and_in_order(
    tmp_path: Path,
    config: Config,
    clock: SimulatedClock,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    each: int,
    most: int,
    *,
    is_restarted: bool,
) -> None:
    """By the notes of dispatch, by a pass at the start, and by all rows if there are more than are noted."""
    monkeypatch.setattr(unread, "RESTORED_BYTES", most)
    monkeypatch.setattr(ahead, "SHARED_MAX", 10)
    store, data = FailingMemory(), tmp_path / "late"
    async with running(data, config, clock, store=store) as server:
        await put(server, receiver, "late", concurrency=1)
        await put(server, receiver, "other", concurrency=100)
        await server.call("POST", "/v1/endpoints/late:pause")
        batch = [{"payload": n, "deliver_to": name} for n in range(each) for name in ("late", "other")]
        await server.call("POST", "/v1/messages:batch", batch, status=201)
        await receiver.posts(each)
        await settled(server)
        if not is_restarted:
            await server.call("POST", "/v1/endpoints/late:resume")
            await receiver.posts(2 * each)
            await settled(server)
    if is_restarted:
        async with running(data, config, clock, store=store) as server:
            await server.call("POST", "/v1/endpoints/late:resume")
            await receiver.posts(2 * each)
            await settled(server)
    late = [got.body for got in receiver.got if got.headers["fasti-topic"] == "$deliver/late"]
    assert late == [b"%d" % number for number in range(each)]
    assert len(receiver.got) == 2 * each


@pytest.mark.long
async def test_an_endpoint_that_is_behind_reads_its_own_rows_alone(
    server: Running, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many others have, and it has more than are its own to note."""
    read = list[Position]()
    every = unread.Unread._every

    def counted(self: unread.Unread, after: Position, horizon: Position) -> Iterator[Row]:
        for row in every(self, after, horizon):
            read.append(row[0])
            yield row

    monkeypatch.setattr(unread.Unread, "_every", counted)
    await put(server, receiver, "late", concurrency=1)
    await put(server, receiver, "other", concurrency=100)
    await server.call("POST", "/v1/endpoints/late:pause")
    names = ("late", *["other"] * 4)
    batch = [{"payload": n, "deliver_to": name} for n in range(2 * PLACES_MAX) for name in names]
    await server.call("POST", "/v1/messages:batch", batch, status=201)
    await server.call("POST", "/v1/endpoints/late:resume")
    await receiver.posts(len(batch))
    await settled(server)
    assert read == []


async def test_a_group_whose_batch_was_lost_is_in_the_next_one(
    server: Running, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stored horizon is behind a message whose group is not stored."""
    receiver.behave = silent
    key = f"{GROUP_PREFIX}{endpoint_text(receiver.url(''))}".encode()
    await server.schedule("a", "x", deliver_to=receiver.url(), deliver_in="1m")
    cursors, store, losses = server.app.core.cursors, server.store, list[bool]()
    write = cursors.write

    def lose(commit: Commit) -> Done:
        if not losses and any(isinstance(one, Group) for one in cursors._now):
            losses.append(True)
            store.loses_next = True
        return write(commit)

    monkeypatch.setattr(cursors, "write", lose)
    monkeypatch.setattr(cursors, "_write_dirty", lambda *_: None)  # what is written sooner or later
    await server.pass_time(MINUTE_MS)
    with pytest.raises(StoreFailed):
        await server.app.ask(lambda _: None)
    assert losses
    async with asyncio.timeout(60):
        while server.app.core.writer.broken is not None:
            await asyncio.sleep(0.02)
            server.clock.now_ms += 1_000
    await server.app.ask(lambda _: None)
    assert store.get(Table.SESSIONS, key) is not None
