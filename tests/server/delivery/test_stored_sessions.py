"""Sessions kept as their rows are: read in any steps, and again as rows change, they are as if read anew."""

import random
from typing import Any

import pytest

from server.core import Core
from server.delivery.stored_sessions import StoredSessions
from server.settings.config import Config
from shards import keys
from shards.fields import Record
from shards.record import encode
from shards.store import Table
from shards.tables import CursorRow, FlightRow, SessionRow, SubscriptionRow, encode_row
from tests.support.clock import HandClock
from tests.support.memory_store import MemoryStore
from tests.support.stepper import Stepper
from timeline.position import Position

NAMES = [f"client-{n}" for n in range(8)]
FILTERS = ["a/b", "a/+", "a/#", "+/b", "#", "b", "$share/g/a/#", "$share/g/b"]
TOPICS = ["a/b", "a/c", "a/b/c", "b", "c"]
NOW_MS = 1_700_000_000_000
CONFIG = Config()


class Rows:
    """A store whose rows of sessions change by chance, and what was told of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = MemoryStore()
        self.touched: list[tuple[Table, bytes]] = []

    def change(self) -> None:
        name = self.chance.choice(NAMES)
        choose = self.chance.random()
        if choose < 0.4:
            self._put(Table.CURSORS, name.encode(), encode_row(self._cursor()))
        elif choose < 0.7:
            self._put(Table.SESSIONS, name.encode(), encode_row(self._session()))
        elif choose < 0.8:
            self._put(Table.RECEIVED, name.encode() + b"\0" + bytes((0, self.chance.randrange(4))), b"")
        elif choose < 0.85:
            self._put(Table.SESSIONS, name.encode(), b"rotten")
        elif choose < 0.9:
            self._put(Table.SESSIONS, f"{keys.GROUP_PREFIX}$share/g/b".encode(), b"rotten, and not looked at")
        else:
            self._end(name)

    def _session(self) -> SessionRow:
        chance = self.chance
        chosen = chance.sample(FILTERS, chance.randrange(5))
        left_ms = chance.choice((0, NOW_MS))
        will = encode(Record(b"will", b"gone")) if chance.random() < 0.2 else b""
        return SessionRow(
            chance.randrange(1, 3),
            [
                SubscriptionRow(
                    text, chance.randrange(2), self._place(), retained_request=chance.randrange(2)
                )
                for text in chosen
            ],
            left_ms,
            b"",
            will,
            chance.randrange(2),
            left_running_ms=chance.choice((0, 5)),
            doubt=self._place() if chance.random() < 0.2 else b"",
            owner=chance.choice(("", "alice")),
            incarnation=chance.randrange(3),
        )

    def _cursor(self) -> CursorRow:
        chance = self.chance
        flights = [FlightRow(n + 1, self._place(), 1 + n % 2) for n in range(chance.randrange(3))]
        retired = [7] if chance.random() < 0.3 else []
        return CursorRow(self._place(), flights, chance.randrange(2), b"", retired, [self._place()])

    def _place(self) -> bytes:
        return keys.place(Position(self.chance.randrange(1, 1 << 60)))

    def _end(self, name: str) -> None:
        batch = self.store.batch()
        for table in (Table.SESSIONS, Table.CURSORS):
            batch.delete(table, name.encode())
            self.touched.append((table, name.encode()))
        if self.chance.random() < 0.5:
            start, end = keys.received_range(name)
            batch.delete_range(Table.RECEIVED, start, end)
            self.touched.append((Table.RECEIVED, start))
        self.store.write(batch)

    def _put(self, table: Table, key: bytes, value: bytes) -> None:
        batch = self.store.batch()
        batch.put(table, key, value)
        self.store.write(batch)
        self.touched.append((table, key))


def everything(stored: StoredSessions) -> dict[str, Any]:
    """All that is in it, as values."""
    return {
        "sessions": {name: _values(one) for name, one in sorted(stored.by_id.items())},
        "routes": {
            topic: {
                one.session.client_id: sorted(s.filter for s in theirs)
                for one, theirs in stored.router.route(topic.encode()).items()
            }
            for topic in TOPICS
        },
        "routed": len(stored.router),
        "quota": (stored.quota.count, stored.quota.bytes, stored.quota._share._held),
        "forms": stored.quota._forms.__dict__,
        "shared": (stored.share.taken, stored.share._held),
        "sharing": sorted(one.session.client_id for one in stored.sharing),
        "cursorless": sorted(one.session.client_id for one in stored.cursorless),
        "strays": stored.strays,
    }


def _values(one: object) -> object:
    """Slots and attributes of an object of ours, and so on; others as they are."""
    if isinstance(one, dict):
        return {key: _values(value) for key, value in one.items()}
    if not type(one).__module__.startswith(("server.", "timeline.")) or isinstance(one, int):
        return one
    slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    names = {*getattr(one, "__dict__", ()), *slots} - {"persist"}
    return {name: _values(getattr(one, name)) for name in sorted(names)}


@pytest.mark.parametrize("seed", range(60))
def test_read_in_steps_and_again_it_is_as_read_at_once(seed: int) -> None:
    rows = Rows(seed)
    chance = rows.chance
    for _ in range(chance.randrange(40)):
        rows.change()
    rows.touched.clear()
    kept = StoredSessions(CONFIG, rows.store)
    for _ in range(chance.randrange(1, 60)):
        rows.change()
        if chance.random() < 0.5:
            for table, key in rows.touched:
                kept.changed(table, key)
            rows.touched.clear()
        if chance.random() < 0.2:
            kept.step(lambda: 0.0, 0.0)
    for table, key in rows.touched:
        kept.changed(table, key)
    while not kept.is_current:
        kept.step(lambda: 0.0, 0.0)
    anew = StoredSessions(CONFIG, rows.store)
    anew.step(lambda: 0.0, 1.0)
    assert anew.is_current
    assert everything(kept) == everything(anew)


def test_a_row_that_is_still_to_be_read_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    batch = store.batch()
    for n in range(1_000):
        batch.put(Table.SESSIONS, b"%04d" % n, encode_row(SessionRow(60, [])))
    store.write(batch)
    stored = StoredSessions(CONFIG, store)
    taken: list[bytes] = []
    take = StoredSessions._take

    def noted(self: StoredSessions, key: bytes, value: bytes) -> None:
        taken.append(key)
        take(self, key, value)

    monkeypatch.setattr(StoredSessions, "_take", noted)
    stored.step(lambda: 0.0, 0.0)
    assert 0 < len(taken) < 1_000, "a step is bounded"
    for n in range(1_000):
        stored.changed(Table.SESSIONS, b"%04d" % n)
    read = len(taken)
    stored.step(lambda: 0.0, 1.0)
    assert stored.is_current
    assert len(taken) == 1_000 + read


def test_a_core_takes_over_what_was_read_before() -> None:
    rows = Rows(7)
    Stepper(rows.store, HandClock(NOW_MS)).round()
    for _ in range(60):
        rows.change()
    stored = StoredSessions(CONFIG, rows.store)
    stored.step(lambda: 0.0, 1.0)
    clock = HandClock(NOW_MS)
    early = Core(CONFIG, clock, rows.store, wake=lambda: None, chance=lambda: 0.5, stored=stored)
    late = Core(CONFIG, clock, rows.store, wake=lambda: None, chance=lambda: 0.5)
    for core in (early, late):
        for one in core.sessions:
            assert one.persist == core.cursors.persist
            assert one.dirty is core.cursors.dirty
    assert {
        one.session.client_id: (one.presence.left_ms, one.doubt, one.session.read) for one in early.sessions
    } == {one.session.client_id: (one.presence.left_ms, one.doubt, one.session.read) for one in late.sessions}
