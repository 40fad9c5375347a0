"""Deliveries that have rows: random lives against a dictionary, with groups that are undone or lost."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import msgspec
import pytest

from shards import deliveries, delivery_rows, keys
from shards.commit import Commit
from shards.dedupe import Refused
from shards.delivery_rows import ROW_BYTES, DeliveryRow, Name, whose
from shards.errors import Corrupt
from shards.expiry import expire
from shards.fields import Record, Retry, TryRow
from shards.garbage import forget, look_through
from shards.pointers import pointers
from shards.record import encode
from shards.recover import read_timeline_again, reopen_store, undo_group
from shards.store import Table
from shards.tables import (
    DEAD,
    DROPPED,
    META_DEAD,
    UNDONE,
    WAITING,
    WITHHELD,
    KeptTotals,
    encode_row,
    kept_totals_value,
)
from shards.verify import repair, verify_owners, verify_tables
from tests.support.delivery_rows import failed
from tests.support.memory_store import MemoryStore
from tests.support.planted import Fault, finds
from tests.support.stores import rewrite
from timeline.position import END, START, MessageId, Position, id_position, message_id, position

from .timelines import CAPS, NOW, QUARTER, draft, group, open_at, piece_at, put, sync, written

OWNER = b"meter-7"
PLACES = [("a", "a", 1), ("a", "a", 2), ("\0share/$share/g/t", "g", 7), ("\0share/$share/g/u", "g", 8)]
ROOTS = [position(NOW - 10 + n // 2, n + 1) for n in range(6)]
MOVED = message_id(position(NOW - 60_000, 99), 0, 5)
ROOMY = replace(CAPS, pending=10_000)
BOUNDS = {"max_messages": 1_000, "max_bytes": 1 << 30}


def made(root: Position, place: tuple[str, str, int] = PLACES[0], payload: bytes = b"job") -> DeliveryRow:
    """A delivery that has failed for the first time. The last two roots are of one moved message."""
    addressee, called, incarnation = place
    id_ = MOVED if root in ROOTS[-2:] else message_id(root, 0, 5)
    record = encode(Record(b"t", payload, owner=OWNER))
    return failed(root, record, addressee=addressee, group=called, incarnation=incarnation, id=id_, shard=3)


def size_of(row: DeliveryRow) -> int:
    return len(row.record) + len(encode_row(delivery_rows.state_of(row))) + _names_bytes(row) + ROW_BYTES


def _names_bytes(row: DeliveryRow) -> int:
    """What the record's row has besides the record."""
    return len(encode_row(delivery_rows.record_of(row))) - len(row.record)


class Lives:
    """A store, and what its deliveries must be. `rows`: as the open group leaves them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = MemoryStore()
        self.opened = open_at(self.store, caps=ROOMY)
        self.written: dict[Name, DeliveryRow] = {}
        self.rows: dict[Name, DeliveryRow] = {}

    def step(self) -> None:
        """A group with a few changes, which is written, undone, or lost."""
        commit = group(self.opened, NOW + self.chance.randrange(5))
        for _ in range(self.chance.randrange(1, 6)):
            self.chance.choice((self.wait, self.wait, self.bury, self.bury, self.end, self.drop, self.older))(
                commit
            )
            self.check_open(commit)
        fate = self.chance.random()
        if fate < 0.15:
            undo_group(self.opened)
        elif fate < 0.3:
            self.opened.open_batch.seal()
            assert reopen_store(self.opened) is None
            read_timeline_again(self.opened)
        else:
            sync(self.opened, self.opened.open_batch.seal())
            self.written = dict(self.rows)
        self.rows = dict(self.written)
        self.check()

    # -- changes

    def some(self) -> DeliveryRow:
        """A delivery as it failed once more, with a row or without."""
        row = made(self.chance.choice(ROOTS), self.chance.choice(PLACES), b"x" * self.chance.randrange(200))
        was = self.rows.get(row.name)
        more = self.chance.randrange(5)
        tries = [TryRow(NOW, "w", "failed", "no", n) for n in range(more)]
        record = row.record if was is None or was.is_dropped else was.record
        return msgspec.structs.replace(
            row,
            attempts=more + 1,
            reason="no" * more,
            tries=tries,
            running_ms=self.chance.randrange(9),
            record=record,
        )

    def wait(self, commit: Commit) -> None:
        row, due_ms = self.some(), NOW + self.chance.randrange(10)
        state = self.chance.choice(UNDONE)
        row = msgspec.structs.replace(row, state=state)
        at = deliveries.wait(commit, row, due_ms, is_owed=self.chance.random() < 0.5)
        assert at >> 48 == due_ms
        self.rows[row.name] = msgspec.structs.replace(row, state=state, at=at)

    def bury(self, commit: Commit) -> None:
        row = self.some()
        most, size = self.chance.choice(((3, 1 << 30), (1_000, 900), (1_000, 1 << 30)))
        at, gone = deliveries.bury(commit, row, max_messages=most, max_bytes=size)
        self.rows[row.name] = msgspec.structs.replace(row, state=DEAD, at=at)
        dropped = 0
        for name in self.oldest():
            if len(self.dead()) <= most and sum(map(size_of, self.dead())) <= size:
                break
            del self.rows[name]
            dropped += 1
        assert gone == dropped

    def older(self, commit: Commit) -> None:
        running_ms, limit = self.chance.randrange(9), self.chance.randrange(3)
        dropped = 0
        for name in self.oldest():
            if dropped == limit or self.rows[name].running_ms >= running_ms:
                break
            del self.rows[name]
            dropped += 1
        assert deliveries.drop_older(commit, running_ms, limit) == dropped

    def end(self, commit: Commit) -> None:
        name = self.some().name
        assert deliveries.end(commit, name) == (self.rows.pop(name, None) is not None)

    def drop(self, commit: Commit) -> None:
        row = self.some()
        deliveries.drop(commit, row)
        self.rows[row.name] = msgspec.structs.replace(row, state=DROPPED, record=b"")

    # -- what must be

    def dead(self) -> list[DeliveryRow]:
        return sorted((row for row in self.rows.values() if row.state == DEAD), key=lambda row: row.at)

    def waiting(self) -> list[DeliveryRow]:
        return sorted((row for row in self.rows.values() if row.state in UNDONE), key=lambda row: row.at)

    def oldest(self) -> list[Name]:
        """Dead letters that were written, and that the open group has not changed."""
        return [row.name for row in self.dead() if self.written.get(row.name) == row]

    def check_open(self, commit: Commit) -> None:
        batch = commit.open_batch
        for root in ROOTS:
            for place in PLACES:
                name = Name(whose(place[0], place[2]), root)
                assert delivery_rows.at(batch, name) == self.rows.get(name)
                assert (delivery_rows.state_at(batch, name) is not None) == (name in self.rows)
                state, row = delivery_rows.state_at(batch, name), self.rows.get(name)
                assert state == (None if row is None else delivery_rows.state_of(row))
        for message in {made(root).id for root in ROOTS}:
            mine = [row for row in self.rows.values() if row.id == message]
            found = list(delivery_rows.of_message_in(batch, message))
            assert sorted(row.name for row in found) == sorted(row.name for row in mine)
            assert all(self.rows[row.name] == row for row in found)
            assert delivery_rows.is_waiting_in(batch, message) == any(row.state in UNDONE for row in mine)
        assert (delivery_rows.totals(batch).count, delivery_rows.totals(batch).bytes) == (
            len(self.dead()),
            sum(map(size_of, self.dead())),
        )
        self.check_counts()

    def check_counts(self) -> None:
        assert self.opened.waiting.retries == len(self.waiting())
        owned = self.opened.owned
        sizes = sum(len(row.record) for row in self.waiting())
        assert (owned.pending(OWNER), owned.pending_bytes(OWNER)) == (len(self.waiting()), sizes)

    def check(self) -> None:
        """Every row of the table is what it must be, and each list says so."""
        store = self.store
        assert dict(store.scan(Table.DELIVERIES, b"", b"\xff" * 64)) == self.expected()
        totals = delivery_rows.totals(store)
        assert (totals.count, totals.bytes) == (len(self.dead()), sum(map(size_of, self.dead())))
        assert all(row.at >= totals.oldest for row in self.dead())
        self.check_counts()
        assert list(delivery_rows.waiting(store)) == self.waiting()
        withheld = [(row.at, row.name if row.state == WITHHELD else None) for row in self.waiting()]
        assert list(delivery_rows.withheld(store, START)) == withheld
        assert list(delivery_rows.dead(store)) == self.dead()
        assert delivery_rows.oldest_dead(store) == next(iter(self.dead()), None)
        assert delivery_rows.waiting_counts(store) == dict(Counter(row.whose for row in self.waiting()))
        for addressee, _, incarnation in PLACES:
            of = whose(addressee, incarnation)
            mine = [row for row in self.waiting() if row.is_of(addressee, incarnation)]
            assert list(delivery_rows.waiting_of(store, of)) == [(row.at, row.root) for row in mine]
            assert [delivery_rows.waits_at(store, row.name, row.at) for row in mine] == mine
            assert delivery_rows.count_waiting(store, of) == len(mine)
            assert delivery_rows.first_waiting(store, of) == next((row.at for row in mine), None)
            assert list(delivery_rows.roots(store, of, START)) == sorted(
                n.root for n in self.rows if n.whose == of
            )
            for root in ROOTS:
                name = Name(of, root)
                assert delivery_rows.stored(store, name) == self.rows.get(name)
                for state in (WAITING, DEAD, DROPPED, WITHHELD):
                    is_there = name in self.rows and self.rows[name].state == state
                    assert delivery_rows.is_there(store, name, state) == is_there
        for called in ("a", "g", "nobody"):
            mine = [row for row in self.dead() if row.group == called]
            assert list(delivery_rows.dead_of(store, called)) == mine
            assert delivery_rows.count_dead(store, called, 2) == min(2, len(mine))
            for after in mine[:1]:
                assert list(delivery_rows.dead_of(store, called, Position(after.at + 1))) == mine[1:]
        for root in ROOTS:
            message = made(root).id
            found = {row.name: row for row in delivery_rows.of_message(store, message)}
            assert found == {name: row for name, row in self.rows.items() if row.id == message}
        assert list(pointers(store, self.opened.directory)) == []
        assert verify_tables(store) == []
        assert verify_owners(store, self.opened.directory, self.opened.horizon.position) == []

    def expected(self) -> dict[bytes, bytes]:
        """The table, row by row, as delivery_rows.py describes it."""
        table: dict[bytes, bytes] = {}
        for (of, root), row in self.rows.items():
            at, spot = keys.place(row.at), keys.place(root)
            table[b"\0" + of + spot] = encode_row(delivery_rows.state_of(row))
            table[b"\1" + spot + of] = encode_row(delivery_rows.record_of(row))
            if row.state in UNDONE:
                table[b"\2" + of + at] = spot
                table[b"\3" + at] = of + spot
            elif row.state == DEAD:
                table[b"\4" + at] = of + spot
                table[b"\5" + keys.hash_of(row.group) + at] = of + spot
            else:
                table[b"\x08" + spot + of] = b""
            if row.id == MOVED:
                table[b"\6" + keys.message(MOVED) + spot + of] = b""
        for of, count in Counter(row.whose for row in self.waiting()).items():
            table[b"\7" + of] = count.to_bytes(8, "big")
        return table


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 20))]
)
def test_random_lives_against_a_dictionary(seed: int) -> None:
    live(seed, 20 if seed < 2 else 60)


def live(seed: int, steps: int) -> None:
    lives = Lives(seed)
    for _ in range(steps):
        lives.step()


@pytest.mark.long
@finds("rows")
def test_a_planted_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    seed = fault.drivers["rows"]
    with pytest.raises((AssertionError, KeyError)):
        live(int(seed), 60)


def lived(seed: int = 0) -> Lives:
    """With some of each."""
    lives = Lives(seed)
    with written(lives.opened) as commit:
        for n, place in enumerate(PLACES):
            for root in ROOTS[n:]:
                lives.wait(commit) if root % 3 else lives.bury(commit)
                row = made(root, place)
                deliveries.wait(commit, row, NOW + n, is_owed=True)
                if n % 2:
                    deliveries.bury(commit, row, **BOUNDS)
                elif n:
                    deliveries.drop(commit, row)
    return lives


# -- one verb


def test_one_beyond_the_bound_is_refused_before_anything_is_changed() -> None:
    opened = open_at(MemoryStore(), caps=replace(CAPS, pending=1))
    first, second = made(ROOTS[0]), made(ROOTS[1])
    with written(opened) as commit:
        deliveries.wait(commit, first, NOW + 5, is_owed=False)
        with pytest.raises(Refused):
            deliveries.wait(commit, second, NOW + 5, is_owed=False)
        assert delivery_rows.at(commit.open_batch, second.name) is None
        deliveries.wait(commit, first, NOW + 6, is_owed=False)  # it counts already
        deliveries.bury(commit, first, **BOUNDS)
        deliveries.wait(commit, second, NOW + 5, is_owed=False)
        with pytest.raises(Refused):
            deliveries.wait(commit, first, NOW + 5, is_owed=False)
        at = delivery_rows.at(commit.open_batch, first.name)
        assert at is not None
        assert at.is_dead
        deliveries.wait(commit, first, NOW + 5, is_owed=True)
    assert opened.waiting.retries == 2


def test_the_record_stays_as_it_first_failed() -> None:
    opened = open_at(MemoryStore())
    row = made(ROOTS[0])
    other = msgspec.structs.replace(row, record=encode(Record(b"t", b"a longer payload", owner=OWNER)))
    with written(opened) as commit:
        deliveries.wait(commit, row, NOW + 5, is_owed=True)
        deliveries.bury(commit, other, **BOUNDS)
        deliveries.wait(commit, other, NOW + 5, is_owed=False)
        deliveries.wait(commit, other, NOW + 6, is_owed=False)
    found = delivery_rows.stored(opened.store, row.name)
    assert found is not None
    assert found.record == row.record
    assert opened.owned.pending_bytes(OWNER) == len(row.record)
    with written(opened) as commit:
        assert deliveries.end(commit, row.name)
    assert (opened.owned.pending(OWNER), opened.owned.pending_bytes(OWNER)) == (0, 0)
    assert not list(opened.store.scan(Table.DELIVERIES, b"", b"\xff"))


def test_what_a_verb_costs() -> None:
    """Rows looked up, and rows that change."""
    opened = open_at(MemoryStore())
    row = made(ROOTS[0])

    def cost(verb: Callable[[Commit], object]) -> tuple[int, int]:
        with written(opened) as commit, patch.object(opened.store, "get", wraps=opened.store.get) as get:
            before = len(opened.open_batch._batch)
            verb(commit)
            return get.call_count, len(opened.open_batch._batch) - before

    def bury(commit: Commit) -> object:
        return deliveries.bury(commit, row, **BOUNDS)

    def wait(commit: Commit) -> object:
        return deliveries.wait(commit, row, NOW + 5, is_owed=True)

    def end(commit: Commit) -> object:
        return deliveries.end(commit, row.name)

    assert [cost(verb) for verb in (wait, wait, bury, wait, end)] == [(2, 5), (1, 5), (4, 7), (5, 7), (3, 5)]
    assert [cost(verb) for verb in (end, bury, end)] == [(1, 0), (2, 5), (3, 5)]


def test_a_message_is_found_by_its_whole_id() -> None:
    """Not by an id that has only its time and number."""
    opened = open_at(MemoryStore())
    row = made(ROOTS[0])
    other = MessageId(row.id + (1 << 64))
    with written(opened) as commit:
        deliveries.wait(commit, row, NOW + 5, is_owed=True)
        assert list(delivery_rows.of_message_in(commit.open_batch, other)) == []
        assert not delivery_rows.is_waiting_in(commit.open_batch, other)
        assert delivery_rows.is_waiting_in(commit.open_batch, row.id)
    assert list(delivery_rows.of_message(opened.store, other)) == []
    assert [one.name for one in delivery_rows.of_message(opened.store, row.id)] == [row.name]


def test_two_places_may_share_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "hash_of", lambda _: b"the same")
    opened = open_at(MemoryStore())
    first, second = made(ROOTS[0], PLACES[0]), made(ROOTS[1], PLACES[2])
    with written(opened) as commit:
        for row in (first, second):
            deliveries.wait(commit, row, NOW + 5, is_owed=True)
    rows = [
        delivery_rows.waits_at(opened.store, Name(first.whose, root), place)
        for place, root in delivery_rows.waiting_of(opened.store, first.whose)
    ]
    assert [row and row.is_of("a", 1) for row in rows] == [True, False]
    assert delivery_rows.count_waiting(opened.store, first.whose) == 2
    with written(opened) as commit:
        for row in (first, second):
            deliveries.bury(commit, row, **BOUNDS)
    for called, row in (("a", first), ("g", second)):
        assert [one.name for one in delivery_rows.dead_of(opened.store, called)] == [row.name]
    assert list(pointers(opened.store, opened.directory)) == []
    with written(opened) as commit:
        assert deliveries.end(commit, first.name)
    assert [one.name for one in delivery_rows.dead(opened.store)] == [second.name]
    assert list(pointers(opened.store, opened.directory)) == []


def test_what_was_dropped_is_known_as_long_as_its_slice_is_there() -> None:
    opened = open_at(MemoryStore())
    ids = put(opened, *(draft(NOW + n) for n in (5, 6, QUARTER + 5)))
    rows = [msgspec.structs.replace(made(id_position(one)), id=one) for one in ids]
    with written(opened) as commit:
        for row in rows:
            deliveries.drop(commit, row)
        deliveries.wait(commit, rows[1], NOW + QUARTER, is_owed=True)  # sent again after all
    with written(opened) as commit:
        expire(commit, [piece_at(opened, NOW + 5)])
    floor = opened.directory.floor
    found = look_through(opened.store, Table.DELIVERIES, b"", 10, 1 << 20, floor)
    assert found.names == [(Table.DELIVERIES, keys.delivery(keys.DROPPED, rows[0].root, rows[0].whose))]
    assert found.next is None
    # What was found may have changed by the time that it is forgotten.
    names = [(Table.DELIVERIES, keys.delivery(keys.DROPPED, row.root, row.whose)) for row in rows]
    with written(opened) as commit:
        assert forget(commit, names) == 1
    state = [
        None if row is None else row.state
        for row in (delivery_rows.stored(opened.store, one.name) for one in rows)
    ]
    assert state == [None, WAITING, DROPPED]
    assert list(pointers(opened.store, opened.directory)) == []
    with written(opened) as commit:
        deliveries.drop(commit, rows[0])
    assert delivery_rows.stored(opened.store, rows[0].name) is None, "its slice has gone"


def test_the_message_of_one_that_waits() -> None:
    record = Record(b"t", b"job", NOW, expires_ms=10_000, key=b"k" * 16, zone=b"z", drop_late=True)
    tries = [TryRow(NOW, "w", "failed", "no", 3)]
    row = msgspec.structs.replace(
        made(ROOTS[0]),
        state=WAITING,
        at=position(NOW + 4_000, 9),
        record=encode(record),
        tries=tries,
        counted=2,
    )
    retry = Retry(1, 2, b"busy", tries)
    assert row.message() == Record(b"t", b"job", NOW + 4_000, expires_ms=6_000, id=row.id, retry=retry)
    late = msgspec.structs.replace(row, at=position(NOW + 60_000, 9))
    assert late.message().expires_ms == 1, "which is over"
    again = msgspec.structs.replace(row, due_ms=NOW + 3_000)
    assert again.message().expires_ms == 9_000
    dead = msgspec.structs.replace(row, state=DEAD)
    assert dead.message() == record
    assert msgspec.structs.replace(dead, due_ms=NOW + 3_000).message() == msgspec.structs.replace(
        record, due_ms=NOW + 3_000
    )


# -- what cannot be read


def test_what_cannot_be_read_is_passed_over_and_ended(caplog: pytest.LogCaptureFixture) -> None:
    for spoilt in (keys.state, lambda whose, root: keys.record(root, whose)):
        opened = open_at(MemoryStore())
        row = made(ROOTS[0])
        with written(opened) as commit:
            deliveries.wait(commit, row, NOW + 5, is_owed=True)
        rewrite(opened.store, (Table.DELIVERIES, spoilt(row.whose, row.root), b"rotten"))
        assert list(delivery_rows.waiting(opened.store)) == []
        assert list(delivery_rows.of_message(opened.store, row.id)) == []
        ((place, root),) = delivery_rows.waiting_of(opened.store, row.whose)
        assert delivery_rows.waits_at(opened.store, Name(row.whose, root), place) is None
        with pytest.raises(Corrupt):
            delivery_rows.stored(opened.store, row.name)
        with written(opened) as commit:
            assert delivery_rows.at(commit.open_batch, row.name) is None
            assert commit.open_batch.get(Table.DELIVERIES, keys.state(*row.name)) is not None
            assert deliveries.end(commit, row.name)
            assert not deliveries.end(commit, row.name)
        assert "unreadable" in caplog.text
        kept = [key[:1] for key, _ in opened.store.scan(Table.DELIVERIES, b"", b"\xff")]
        assert kept == [keys.WAITS_OF, keys.WAITS, keys.WAITING_COUNT], "they name nothing"
        assert list(delivery_rows.waiting(opened.store)) == []
        repair(opened.store, list(pointers(opened.store, opened.directory)))
        assert not list(opened.store.scan(Table.DELIVERIES, b"", b"\xff"))


@pytest.mark.parametrize("spoilt", [META_DEAD, None])
def test_counts_that_cannot_be_read_begin_anew(spoilt: bytes | None) -> None:
    opened = open_at(MemoryStore())
    rows = [made(root) for root in ROOTS[:3]]
    with written(opened) as commit:
        deliveries.wait(commit, rows[0], NOW + 5, is_owed=True)
        deliveries.bury(commit, rows[1], **BOUNDS)
    key = keys.WAITING_COUNT + rows[0].whose
    rewrite(opened.store, (Table.META, META_DEAD, b"?") if spoilt else (Table.DELIVERIES, key, b"?"))
    with written(opened) as commit:
        deliveries.wait(commit, rows[2], NOW + 5, is_owed=True)
        deliveries.bury(commit, rows[2], **BOUNDS)
        deliveries.end(commit, rows[0].name)
    (fault,) = pointers(opened.store, opened.directory) if spoilt else [None]
    if fault is not None:
        assert str(fault).endswith("says that there are 1 dead letters, there are 2")
        repair(opened.store, [fault])
    assert list(pointers(opened.store, opened.directory)) == []
    assert delivery_rows.totals(opened.store).count == 2


# -- what verify finds, and repairs


def table(store: MemoryStore) -> dict[bytes, bytes]:
    return dict(store.scan(Table.DELIVERIES, b"", b"\xff" * 64))


def repaired(lives: Lives) -> list[str]:
    """Repair as `verify --repair` does. Returns what it found."""
    store, directory = lives.store, lives.opened.directory
    damages = verify_tables(store)
    repair(store, damages)
    found = list(pointers(store, directory))
    repair(store, found)
    assert verify_tables(store) == []
    assert list(pointers(store, directory)) == []
    return [str(one) for one in (*damages, *found)]


@pytest.mark.parametrize(
    "kind", [keys.WAITS_OF, keys.WAITS, keys.DEAD, keys.DEAD_OF, keys.MOVED, keys.WAITING_COUNT, keys.DROPPED]
)
@pytest.mark.parametrize("how", ["gone", "another's", "rotten", "too much"])
def test_a_row_that_names_deliveries_is_made_again(kind: bytes, how: str) -> None:
    lives = lived()
    right = table(lives.store)
    mine = [key for key in right if key[:1] == kind]
    key = mine[len(mine) // 2]
    value: bytes | None = None
    if how == "another's":
        value = next((right[other] for other in mine if right[other] != right[key]), b"x" * 8)
    elif how == "rotten":
        value = b"rotten"
    elif how == "too much":
        key, value = key[:3] + bytes(len(key) - 3), right[key]
    rewrite(lives.store, (Table.DELIVERIES, key, value))
    assert len(repaired(lives)) == 1
    assert table(lives.store) == right


@pytest.mark.parametrize("how", ["gone", "rotten"])
@pytest.mark.parametrize("kind", [keys.STATE, keys.RECORD])
def test_a_delivery_that_lost_a_row_goes_whole(kind: bytes, how: str) -> None:
    for n in (0, 4, 8, 12):
        lives = lived()
        right = table(lives.store)
        key = [key for key in right if key[:1] == kind][n]
        name = (
            Name(*keys.state_in(key)) if kind == keys.STATE else Name(keys.whose_of(key), keys.root_of(key))
        )
        rewrite(lives.store, (Table.DELIVERIES, key, None if how == "gone" else b"rotten"))
        assert repaired(lives)
        left = {one: value for one, value in right.items() if not belongs(one, value, name)}
        found = table(lives.store)
        counts = [one for one in left if one[:1] == keys.WAITING_COUNT]
        assert {one: value for one, value in found.items() if one not in counts} == {
            one: value for one, value in left.items() if one not in counts
        }
        with written(lives.opened) as commit:
            assert not deliveries.end(commit, name)
        totals = delivery_rows.totals(lives.store)
        assert totals.count == len(list(delivery_rows.dead(lives.store)))


def belongs(key: bytes, value: bytes, name: Name) -> bool:
    """Whether a row is of the delivery."""
    spot = keys.place(name.root)
    match key[:1]:
        case keys.STATE:
            return key[1:] == name.whose + spot
        case keys.RECORD:
            return key[1:] == spot + name.whose
        case keys.MOVED | keys.DROPPED:
            return key.endswith(spot + name.whose)
        case keys.WAITS_OF:
            return (key[1:9], value) == (name.whose, spot)
        case keys.WAITS | keys.DEAD | keys.DEAD_OF:
            return value == name.whose + spot
    return False


@pytest.mark.parametrize("wrong", [KeptTotals(7, 7, START), KeptTotals(0, 0, START), None])
def test_totals_that_are_wrong_are_counted_again(wrong: KeptTotals | None) -> None:
    lives = lived()
    right = delivery_rows.totals(lives.store)
    # A letter before `oldest` would never be dropped.
    totals = KeptTotals(right.count, right.bytes, END) if wrong is None else wrong
    rewrite(lives.store, (Table.META, META_DEAD, kept_totals_value(totals)))
    assert len(repaired(lives)) == 1
    assert delivery_rows.totals(lives.store) == KeptTotals(right.count, right.bytes, START)
