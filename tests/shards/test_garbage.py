"""What expired slices leave: found in steps, forgotten if it still counts as absent, then cleared."""

import logging

import pytest

from shards import keys
from shards.errors import Corrupt
from shards.expiry import expire
from shards.garbage import clear, forget, left, look, look_through
from shards.recover import Opened
from shards.store import Table
from tests.support.memory_store import MemoryStore
from tests.support.stores import rewrite
from timeline.position import MessageId, before, position
from timeline.slices import Slice

from .timelines import NOW, QUARTER, draft, group, open_at, put, sync

ALL_ROWS, ALL_BYTES = 1_000, 1 << 20


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Left:
    """A slice of four messages, two of them moved into it, that has expired; and one after it."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.opened: Opened = open_at(self.store)
        self.ids: list[MessageId] = put(
            self.opened,
            draft(NOW + 1, "0", key=key_of(0)),
            draft(NOW + 2, "1"),
            draft(NOW + 5 * QUARTER, "2", key=key_of(2)),
            draft(NOW + 5 * QUARTER, "3"),
            draft(NOW + 5 * QUARTER, "4", key=key_of(4)),
        )
        commit = group(self.opened)
        for message in self.ids[2:4]:
            commit.move(message, NOW + 3)
        self.seal()

    def seal(self) -> None:
        sync(self.opened, self.opened.open_batch.seal())

    @property
    def first(self) -> Slice:
        return next(iter(self.opened.directory))

    def expire(self) -> tuple[bytes, bytes]:
        """The slice goes; the range of rows that it leaves."""
        expire(group(self.opened), [self.first])
        self.seal()
        (corrupt,) = left(self.store)
        return corrupt

    def names(self) -> set[tuple[Table, bytes]]:
        """What is known by a key or an id."""
        tables = (Table.DEDUPE, Table.MOVED)
        return {(table, key) for table in tables for key, _ in self.store.scan(table, b"", keys.LAST)}


@pytest.fixture
def it() -> Left:
    return Left()


def test_what_expires_leaves_its_rows_and_a_note(it: Left) -> None:
    home = it.first.home
    assert list(left(it.store)) == []
    assert it.expire() == keys.under(keys.slice_key(home))
    assert len(list(it.store.scan(Table.MESSAGES, *keys.under(keys.slice_key(home))))) == 4
    commit = group(it.opened)
    clear(commit, *keys.under(keys.slice_key(home)))
    it.seal()
    assert list(left(it.store)) == []
    assert list(it.store.scan(Table.MESSAGES, *keys.under(keys.slice_key(home)))) == []


def test_dispatch_turns_go_with_the_slices_that_they_passed(it: Left) -> None:
    end_ms = it.first.end_ms
    turns = [(position(NOW, 1), NOW), (before(end_ms), NOW + 1), (position(end_ms, 1), NOW + 2)]
    group(it.opened).open_batch.dispatched(turns)
    it.seal()
    gone = it.first
    assert expire(group(it.opened), [gone]) == [gone]
    it.seal()
    left_over = [keys.place_of(key) for key, _ in it.store.scan(Table.DISPATCHES, b"", keys.LAST)]
    assert left_over == [before(end_ms), position(end_ms, 1)]
    assert expire(group(it.opened), [gone]) == []


def test_a_look_finds_keys_and_ids(it: Left) -> None:
    start, end = it.expire()
    found = look(it.store, start, end, ALL_ROWS, ALL_BYTES)
    assert found.next is None
    moved = [(Table.MOVED, keys.message(message)) for message in it.ids[2:4]]
    assert sorted(found.names, key=str) == sorted(
        [(Table.DEDUPE, key_of(0)), (Table.DEDUPE, key_of(2)), *moved], key=str
    )


@pytest.mark.parametrize(("rows", "size"), [(1, ALL_BYTES), (3, ALL_BYTES), (4, ALL_BYTES), (ALL_ROWS, 1)])
def test_steps_find_the_same(it: Left, rows: int, size: int) -> None:
    start, end = it.expire()
    whole = look(it.store, start, end, ALL_ROWS, ALL_BYTES).names
    names, at, steps = [], start, 0
    while at is not None:
        found = look(it.store, at, end, rows, size)
        assert len(found.names) <= 2 * rows
        names, at, steps = names + found.names, found.next, steps + 1  # type: ignore[assignment]
    assert names == whole
    assert steps == 4 // min(rows, 4 if size > 1 else 1) + 1


def test_what_has_gone_is_forgotten(it: Left) -> None:
    start, end = it.expire()
    found = look(it.store, start, end, ALL_ROWS, ALL_BYTES)
    assert forget(group(it.opened), found.names) == 4
    it.seal()
    assert it.names() == {(Table.DEDUPE, key_of(4))}, "its message is still to come"
    assert forget(group(it.opened), found.names) == 0


def test_what_is_only_suspected_stays(it: Left) -> None:
    """A key that was taken anew, a message that was moved on, before anybody came to forget them."""
    commit = group(it.opened)
    commit.move(it.ids[2], NOW + 6 * QUARTER)
    it.seal()
    start, end = it.expire()
    (again,) = put(it.opened, draft(NOW + 7 * QUARTER, key=key_of(0)))
    assert again not in it.ids
    found = look(it.store, start, end, ALL_ROWS, ALL_BYTES)
    assert (Table.DEDUPE, key_of(0)) in found.names
    assert forget(group(it.opened), found.names) == 1
    it.seal()
    kept = {(Table.DEDUPE, key_of(number)) for number in (0, 2, 4)}
    assert it.names() == {*kept, (Table.MOVED, keys.message(it.ids[2]))}


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_what_was_left_without_a_note_is_found_by_and_by(it: Left, rows: int) -> None:
    it.expire()
    floor = it.opened.directory.floor
    for table, expected in ((Table.DEDUPE, [key_of(0), key_of(2)]), (Table.MOVED, None)):
        names, start = [], b""
        while True:
            found = look_through(it.store, table, start, rows, ALL_BYTES, floor)
            names += found.names
            if found.next is None:
                break
            start = found.next
        gone = expected or [keys.message(message) for message in it.ids[2:4]]
        assert names == [(table, key) for key in gone]


class Rotten(MemoryStore):
    """One row cannot be read."""

    bad: tuple[Table, bytes] | None = None

    def get(self, table: Table, key: bytes) -> bytes | None:
        if (table, key) == self.bad:
            raise Corrupt("block checksum mismatch")
        return super().get(table, key)


def test_what_cannot_be_read_stays(caplog: pytest.LogCaptureFixture) -> None:
    store = Rotten()
    it = Left(store)
    start, end = it.expire()
    found = look(it.store, start, end, ALL_ROWS, ALL_BYTES)
    store.bad = Table.DEDUPE, key_of(0)
    rewrite(store, (Table.DEDUPE, key_of(2), b"torn"))
    with caplog.at_level(logging.ERROR):
        assert forget(group(it.opened), found.names) == 2
    it.seal()
    assert it.names() == {(Table.DEDUPE, key_of(number)) for number in (0, 2, 4)}
    assert ["row not deleted" in line or "skipped" in line for line in caplog.messages] == [True, True]
