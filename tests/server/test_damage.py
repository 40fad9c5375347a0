"""A server on data of which a block cannot be read: all but what lies in it goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from server.engine import quarantine
from server.engine.clock import SimulatedClock
from server.offline import verify
from server.rounds.app import App
from server.settings.config import Config, Shards
from shards import keys
from shards.commit import Caps, Commit, Draft
from shards.errors import Corrupt, StoreFailed
from shards.fields import Record
from shards.read import Row
from shards.record import decode, encode
from shards.recover import count_pending, open_timeline
from shards.rocks import RocksStore
from shards.state import Journal
from shards.store import Table
from shards.unreadable import notes
from tests.server.conftest import Fronted, Running
from tests.support.stores import rewrite
from timeline.position import END, START, MessageId, id_position, id_text

START_MS = 1_795_248_000_000
DUE_MS = START_MS + 3_600_000
COUNT = 2_000
CAPS = Caps(messages=10_000, bytes=1 << 28, pending=1_000_000, structure_above=1_000_000)
CONFIG = replace(Config(), shards=replace(Shards(), cap_messages=10_000))


def draft(number: int) -> Draft:
    """Payloads that do not compress, so that a block holds some 70 of them."""
    due_ms = DUE_MS + 10 * number
    payload = b"%d " % number + bytes((number * 7 + 131 * n * n) % 251 for n in range(200))
    return Draft(due_ms, b"a/b", encode(Record(b"a/b", payload, due_ms, 1)))


def number_of(record: Record) -> int:
    return int(record.payload.split()[0])


class World:
    """A data directory and the servers that live on it, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = SimulatedClock(START_MS)
        self.ids: list[MessageId] = []
        self.deaths: list[str] = []

    @asynccontextmanager
    async def server(self) -> AsyncIterator[Running]:
        app = App(CONFIG, self.clock, RocksStore(self.path), fatal=lambda: self.deaths.append("died"))
        await app.start()
        async with TestClient(Fronted(app)) as http:
            yield Running(app, self.clock, http)
        await app.stop()
        assert self.deaths == []

    async def fill(self) -> None:
        async with self.server() as server:
            await server.connect("away", "a/#", expiry_s=100_000)
            self.ids = await server.app.ask(lambda c: c.put([draft(n) for n in range(COUNT)]), cost=COUNT)
            for name in (Table.MESSAGES, Table.SESSIONS):
                server.app.core.opened.store._families[name].flush()  # type: ignore[attr-defined]
            self.table = self.path / largest(server.app.core.opened.store)  # type: ignore[arg-type]
        self.whole = self.table.read_bytes()

    def damage(self) -> None:
        data = bytearray(self.whole)
        data[len(data) // 2] ^= 0xFF
        self.table.write_bytes(bytes(data))

    @asynccontextmanager
    async def damaged(self) -> AsyncIterator[tuple[Running, list[int]]]:
        """On rotten data, with the numbers of the messages that cannot be looked up."""
        self.damage()
        async with self.server() as server:
            yield server, unread(self, server)

    def mend(self) -> None:
        self.table.write_bytes(self.whole)


def largest(store: RocksStore) -> str:
    files: list[dict[str, Any]] = store._families[Table.MESSAGES].live_files()  # type: ignore[assignment]
    return str(max(files, key=lambda file: file["size"])["name"]).lstrip("/")


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path / "data")
    await world.fill()
    return world


def unread(world: World, server: Running) -> list[int]:
    """Numbers of the messages that cannot be looked up."""
    return [n for n, name in enumerate(world.ids) if not is_found(server, name)]


def withheld(world: World) -> list[int]:
    """Numbers of the messages that the data say are withheld: to the server as it opens, and to a reader."""
    store = RocksStore(world.path)
    opened = open_timeline(
        store, wall_ms=world.clock.wall_ms(), node=0, max_slices=500, max_structures=500, caps=CAPS
    )
    of_server, of_store = Journal(store, is_withheld=opened.is_withheld), Journal(store)
    places = [id_position(name) for name in world.ids]
    found = [n for n, place in enumerate(places) if of_server.is_withheld(place)]
    assert found == [n for n, place in enumerate(places) if of_store.is_withheld(place)]
    store.close()
    return found


def is_found(server: Running, name: MessageId) -> bool:
    try:
        return server.app.core.reader.find(name) is not None
    except Corrupt:
        return False


@pytest.mark.long
async def test_all_but_the_block_is_delivered(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with world.damaged() as (server, gone):
        assert 10 < len(gone) < 200
        assert gone == list(range(gone[0], gone[-1] + 1))
        subscriber, link = await server.connect("here", "a/#")
        await server.pass_time(DUE_MS - START_MS + 10 * COUNT)
        await server.app.quiet()
        got = [number_of(message.record) for message in link.sent]
        for _ in range(40):
            await server.app.quiet()
            if len(got) == COUNT - len(gone):
                break
            for packet_id in list(link.packet_ids):
                server.app.core.settling.ack(subscriber, packet_id)
            server.app.core.groups.read_on(subscriber)
            got = [number_of(message.record) for message in link.sent]
        assert got == [n for n in range(COUNT) if n not in gone]
        assert server.app.core.horizon.position > DUE_MS + 10 * COUNT << 48
        # Requests go on, and so does a message into the same slice.
        await server.schedule(deliver_in=60)
        # It is told: in the log, once, by file and range; in the views; in the metrics.
        named = [r.getMessage() for r in caplog.records if "unreadable from" in r.getMessage()]
        assert len(named) == 1
        assert world.table.name in named[0]
        (piece,) = [p for p in server.app.core.directory if p.start_ms <= DUE_MS < p.end_ms]
        view = (await server.call("GET", f"/v1/slices/{piece.start_ms}/shards/0")).body
        assert len(view["unreadable"]) == 1
        assert view["sealed"]
        assert (await server.call("GET", f"/v1/slices/{piece.start_ms}")).body["unreadable"] == 1
        assert b"fasti_unreadable_stretches 1.0" in (await server.call("GET", "/metrics")).body


@pytest.mark.long
async def test_one_message_that_cannot_be_read_is_refused_alone(world: World) -> None:
    async with world.damaged() as (server, gone):
        bad, good = (f"/v1/messages/{id_text(world.ids[n])}" for n in (gone[3], gone[0] - 1))
        both = await asyncio.gather(
            server.call("DELETE", bad, status=500), server.call("DELETE", good, status=204)
        )
        assert both[0].slug == "unreadable"
        move = {"deliver_in": "P1D"}
        assert (await server.call("PATCH", bad, move, status=500)).slug == "unreadable"
        assert (await server.call("GET", bad, status=500)).slug == "unreadable"
        assert server.app.core.writer.broken is None
        assert server.app.core.writer.given_up == 0
        async with server.http.get("/v1/messages:export") as answer:
            assert len((await answer.read()).splitlines()) == COUNT - len(gone) - 1


@pytest.mark.long
async def test_what_is_written_there_later_is_found(world: World) -> None:
    """Not into the shard with the corrupt range: nobody would find it behind a row that cannot be read."""
    async with world.damaged() as (server, gone):
        await server.call("GET", "/v1/messages?limit=1000&count=true")
        (piece,) = [p for p in server.app.core.directory if p.start_ms <= DUE_MS < p.end_ms]
        assert len(server.app.core.reader.unreadable.of(piece.shards[0].prefix)) == 1
        middle = draft(gone[len(gone) // 2])
        (name,) = await server.app.ask(lambda c: c.put([middle]))
        await server.app.quiet()
        rows = [place for place, _, _ in server.app.core.reader.read(START, END)]
        assert name >> 80 << 48 | name & (1 << 48) - 1 in rows
        _, link = await server.connect("here", "a/#", window=COUNT + 1)
        await server.pass_time(DUE_MS - START_MS + 10 * COUNT)
        assert [number_of(m.record) for m in link.sent].count(gone[len(gone) // 2]) == 1


@pytest.mark.long
@pytest.mark.parametrize("most", [quarantine.GROUP_BYTES, 1])
async def test_what_can_be_read_again_is_dispatched_late_and_once(
    world: World, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(quarantine, "GROUP_BYTES", most)
    async with world.damaged() as (server, gone):
        await server.pass_time(DUE_MS - START_MS + 10 * COUNT)
        assert server.app.core.opened.waiting.pending == 0 or await is_recounted(server)
        (note,) = notes(server.app.core.opened.store)
        assert note.owed is not None
    async with world.server() as server:  # still so: it is known from the start
        assert (len(server.app.core.reader.unreadable), server.app.core.opened.owed) == (1, [])
    world.mend()
    assert withheld(world) == gone
    for _ in range(2):
        async with world.server() as server:
            _, link = await server.connect("here", "a/#", window=COUNT + 1)
            subscriber, late = await away(server)
            got = [number_of(message.record) for message in late]
            assert sorted(got) == list(range(COUNT))
            assert got[-len(gone) :] == gone
            assert link.sent == []
            assert list(notes(server.app.core.opened.store)) == []
            for n in gone:
                found = server.app.core.reader.find(world.ids[n])
                assert found is not None
                assert found.position <= server.app.core.horizon.position
                assert number_of(decode(found.value)) == n
            assert server.app.core.opened.waiting.pending == 0
            # Nothing of this was acked: the next start sends it again, and nothing more.
            assert subscriber.session.client_id == "away"


@pytest.mark.long
@pytest.mark.parametrize("is_large", [False, True])
async def test_what_the_wheel_held_is_not_owed(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    """The range is met when its messages are in RAM already; large ones are there without their payload."""
    if is_large:
        monkeypatch.setattr("server.engine.writer.ENTRY_PAYLOAD_BYTES", 0)
    world.clock.now_ms = DUE_MS - 1_000
    async with world.server() as server:
        _, link = await server.connect("here", "a/#", window=COUNT + 1)
        await server.app.quiet()
        assert len(server.app.core.wheel) == COUNT
        world.damage()
        server.app.core.opened.store.reopen()
        await server.call("GET", "/v1/messages?limit=1000&count=true")
        await server.app.quiet()
        assert len(list(notes(server.app.core.opened.store))) == 1
        await server.pass_time(2_000 + 10 * COUNT)
        given = {number_of(message.record) for message in link.sent}
        assert (len(given) == COUNT) is not is_large
    world.mend()
    async with world.server() as server:
        await server.app.quiet()
        found = [server.app.core.reader.find(name) for name in world.ids]
        revived = {n for n, one in enumerate(found) if one is not None and one.row_id != world.ids[n]}
        assert revived == set(range(COUNT)) - given
        assert list(notes(server.app.core.opened.store)) == []


async def is_recounted(server: Running) -> bool:
    """What was pending because only its shard was counted is counted again within a second."""
    async with asyncio.timeout(60):
        while server.app.core.opened.waiting.pending:
            server.app.plan()
            await asyncio.sleep(0.05)
    return True


async def away(server: Running) -> tuple[Any, list[Any]]:
    """The session that was away comes back and reads all it has missed."""
    subscriber, link = await server.connect("away", window=COUNT + 1, expiry_s=100_000)
    await server.app.quiet()
    return subscriber, link.sent


def shard_rows(world: World) -> list[Row]:
    store = RocksStore(world.path)
    try:
        found = [(keys.place_of(k), 0, v) for k, v in store.scan(Table.MESSAGES, b"", keys.LAST)]
    finally:
        store.close()
    return found


@pytest.mark.long
async def test_verify_finds_it_and_repair_keeps_the_rest(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    async with world.damaged() as (_, gone):
        pass
    assert verify(world.path, 1_000, repair=False) == 1
    said = capsys.readouterr().out
    assert f"has {COUNT - len(gone)} rows" in said
    assert world.table.name in said
    with pytest.raises(Corrupt):
        shard_rows(world)
    assert verify(world.path, 1_000, repair=True) == 0
    said = capsys.readouterr().out
    assert f"{len(gone)} messages are lost" in said
    assert len(shard_rows(world)) == COUNT - len(gone)
    assert verify(world.path, 1_000, repair=False) == 0
    assert "nothing wrong" in capsys.readouterr().out
    async with world.server() as server:
        app = server.app
        assert len(app.core.reader.unreadable) == 0
        assert app.core.opened.waiting.pending == count_pending(app.core.reader, app.core.horizon.position)
        assert app.core.opened.waiting.pending == COUNT - len(gone)
        await server.call("GET", f"/v1/messages/{id_text(world.ids[gone[0]])}", status=404)
        _, link = await server.connect("here", "a/#", window=COUNT + 1)
        await server.pass_time(DUE_MS - START_MS + 10 * COUNT)
        assert [number_of(m.record) for m in link.sent] == [n for n in range(COUNT) if n not in gone]


@pytest.mark.long
async def test_a_repair_that_is_cut_off_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the copy is whole the table is as it was; after it nobody but a repair opens the store."""
    world.damage()
    real, calls = RocksStore.flush, 0

    def failing(self: RocksStore) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise StoreFailed("cut off")
        real(self)

    for stop_at in (1, 3):
        calls = 0
        with monkeypatch.context() as patch:
            patch.setattr(RocksStore, "flush", failing)
            store = RocksStore(world.path, for_repair=True)
            with pytest.raises(StoreFailed):
                store.rewrite(Table.MESSAGES)
            store.close()
        if stop_at == 1:
            RocksStore(world.path).close()
        else:
            with pytest.raises(Corrupt, match="repair"):
                RocksStore(world.path)
    assert verify(world.path, 1_000, repair=True) == 0
    assert COUNT - 200 < len(shard_rows(world)) < COUNT
    assert verify(world.path, 1_000, repair=False) == 0


async def test_a_compaction_that_meets_it_does_not_stop_the_writes(world: World) -> None:
    """The engine refuses every write from then on; opened again without compactions it takes them."""
    world.damage()
    async with world.server() as server:
        store = server.app.core.opened.store
        await asyncio.to_thread(store.compact, Table.MESSAGES, b"", keys.LAST)
        async with asyncio.timeout(30):
            while True:
                try:
                    await server.app.ask(lambda c: c.put([draft(0)]))
                    break
                except StoreFailed:
                    await asyncio.sleep(0.05)
        for _ in range(8):
            await server.app.ask(lambda c: c.put([draft(0)]))
            store._families[Table.MESSAGES].flush()  # type: ignore[attr-defined]
        await asyncio.sleep(0.5)
        await server.app.ask(lambda c: c.put([draft(0)]))
        assert server.app.core.writer.broken is None


async def test_the_horizon_waits_for_the_note(world: World) -> None:
    """What is passed over must not be forgotten: a kill in between finds it again."""
    world.damage()
    async with world.server() as server:
        app = server.app
        gone = unread(world, server)
        asked = app.core.quarantine.errand.step
        app.core.quarantine.errand.step = lambda: None  # type: ignore[method-assign]
        world.clock.now_ms = DUE_MS + 20 * COUNT
        app.plan()
        await asyncio.sleep(0.3)
        first = app.core.reader.unreadable.fresh[0].first
        assert app.core.horizon.position < first
        assert app.core.horizon.position >> 48 == DUE_MS + 10 * (gone[0] - 1)
        app.core.quarantine.errand.step = asked  # type: ignore[method-assign]
        await app.quiet()
        assert app.core.horizon.position > first


def half_a_row(commit: Commit, table: Table, key: bytes) -> None:
    commit.row(table, key, b"\xc1")


@pytest.mark.long
async def test_small_rows_that_cannot_be_read_are_passed_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A session, a cursor, a schedule, a job: each fails alone, is counted, and stays for `verify`."""
    async with world.server() as server:
        schedule = {"cron": "0 * * * *", "timezone": "UTC", "topic": "t", "payload": 1}
        for name in ("good", "bad"):
            await server.call("PUT", f"/v1/schedules/{name}", schedule, status=201)
            await server.connect(name, "x")
        rows = [
            (Table.SESSIONS, b"bad"),
            (Table.CURSORS, b"away"),
            (Table.SCHEDULES, b"bad"),
            (Table.META, b"job/bad"),
        ]
        for table, key in rows:
            await server.app.ask(partial(half_a_row, table=table, key=key))
    for table, key in rows:
        store = RocksStore(world.path)
        rewrite(store, (table, key, b"\xc1"))
        store.flush()
        store.close()
    async with world.server() as server:
        assert {s.session.client_id for s in server.app.core.sessions} == {"good", "away"}
        assert len(server.app.core.schedules) == 1
        assert b"fasti_unreadable_rows 3.0" in (await server.call("GET", "/metrics")).body
        assert (await server.call("GET", "/v1/schedules/bad", status=500)).slug == "unreadable"
        await server.call("GET", "/v1/schedules/good")
        await server.call("DELETE", "/v1/schedules/bad", status=404)
        await server.schedule()
        assert server.app.core.writer.given_up == 0
    assert verify(world.path, 1_000, repair=True) == 0
    async with world.server() as server:
        await server.call("GET", "/v1/schedules/bad", status=404)


@pytest.fixture(autouse=True)
def quiet_engine(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.WARNING)
    return


async def test_a_message_in_the_wheel_without_its_payload(tmp_path: Path) -> None:
    """Its block goes bad after it was loaded: dispatch passes it over, the next start has it again."""
    world = World(tmp_path / "data")
    async with world.server() as server:
        app = server.app
        store = app.core.opened.store
        subscriber, link = await server.connect("here", "a/#", expiry_s=100_000)

        def large(number: int) -> Draft:
            payload = b"%d " % number + bytes((number * 7 + 131 * n * n) % 251 for n in range(20_000))
            due_ms = START_MS + 60_000 + number
            return Draft(due_ms, b"a/b", encode(Record(b"a/b", payload, due_ms, 1)))

        ids = await app.ask(lambda c: c.put([large(n) for n in range(9)]))
        await app.quiet()
        assert len(app.core.wheel) == 9
        store._families[Table.MESSAGES].flush()  # type: ignore[attr-defined]
        world.table = world.path / largest(store)  # type: ignore[arg-type]
        world.whole = world.table.read_bytes()
        world.damage()
        await server.pass_time(120_000)
        got = [number_of(message.record) for message in link.sent]
        (gone,) = set(range(9)) - set(got)
        assert got == [n for n in range(9) if n != gone]
        assert app.core.horizon.position > (START_MS + 100_000) << 48
        assert app.core.writer.broken is None
        assert [note.owed for note in notes(store)] == [id_position(ids[gone])]
        for packet_id in list(link.packet_ids):
            app.core.settling.ack(subscriber, packet_id)
    world.mend()
    async with world.server() as server:
        _, link = await server.connect("here", expiry_s=100_000)
        await server.app.quiet()
        assert [number_of(message.record) for message in link.sent] == [gone]
