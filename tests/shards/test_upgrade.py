"""Retries as format 4 had them, on the timeline, become rows of `retries` alone when a store is opened."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import pack

import msgspec
import pytest

from shards import keys
from shards.commit import Draft
from shards.fields import Record, Retry
from shards.memory import MemoryStore
from shards.pointers import pointers
from shards.record import MOVED, decode, encode
from shards.recover import Opened, format_of, read_directory
from shards.retries import RETRIES
from shards.store import Table
from shards.tables import (
    FORMAT,
    META_CURSOR,
    META_FORMAT,
    CursorRow,
    FlightRow,
    GroupRow,
    SessionRow,
    SubscriptionRow,
    cursor_from,
    cursor_row_of,
    cursor_value,
    encode_row,
    owned_from,
    owned_value,
)
from shards.verify import verify_counts, verify_owners, verify_tables
from timeline.position import (
    END,
    HELD_SHARD,
    RETRY_SHARD,
    START,
    MessageId,
    Position,
    before,
    id_position,
    id_shard,
)

from .timelines import NOW, open_at, put, written

DUE = NOW + 60_000
NAME, OTHER = MessageId(77), MessageId(78)
OWNER = b"meter-7"
GROUP = keys.GROUP_PREFIX + "$share/g/t"
LATER = DUE + 5_000


@dataclass
class Old:
    """A store that a program of format 4 has left, and what it had kept for others than its places."""

    store: MemoryStore
    rows: list[tuple[Position, int]] = field(default_factory=list)
    """Where each retry stands, and its shard."""

    def open(self, wall_ms: int = LATER) -> Opened:
        return open_at(self.store, wall_ms)

    @property
    def place(self) -> Position:
        return self.rows[0][0]

    def pass_all(self) -> None:
        """The horizon has come to LATER."""
        stored = self.store.get(Table.META, META_CURSOR)
        assert stored is not None
        now = msgspec.structs.replace(cursor_from(stored), horizon=before(LATER), bound_ms=LATER + 2_000)
        self.write((Table.META, META_CURSOR, cursor_value(now)))

    def write(self, *rows: tuple[Table, bytes, bytes]) -> None:
        batch = self.store.batch()
        for row in rows:
            batch.put(*row)
        self.store.write(batch)
        self.store.flush()


def old(
    *addressees: str,
    is_passed: bool = True,
    is_held: bool = False,
    known: Sequence[str] = ("a",),
    names: Sequence[MessageId] = (),
) -> Old:
    """A retry of the message NAME for each addressee, which the horizon has passed or not.

    `known`: the sessions and groups that there are. `names`: of the messages, if not all are NAME.
    """
    names = names or [NAME] * len(addressees)
    store = MemoryStore()
    opened = open_at(store)
    if is_held:
        opened.horizon.observe(DUE + 60_000)
    ids = put(opened, *(Draft(DUE, b"t", retry(*one)) for one in zip(addressees, names, strict=True)))
    found = Old(store, [(id_position(name), id_shard(name)) for name in ids])
    for (place, shard), addressee, of in zip(found.rows, addressees, names, strict=True):
        name = keys.message(of) + pack(">H", shard)
        spots = b"\xff" + keys.message(of) + keys.kept_of(addressee)[1:]
        found.write(
            (Table.RETRIES, keys.place(place), name), (Table.RETRIES, spots, keys.place(place) + name[16:])
        )
    for one in known:
        subscription = SubscriptionRow("t", 1, keys.place(START))
        row = GroupRow(subscription) if one == GROUP else SessionRow(3_600, [subscription])
        found.write((Table.SESSIONS, one.encode(), encode_row(row)))
    if is_passed and not is_held:
        found.pass_all()
        found.write((Table.META, keys.owned(OWNER), owned_value(len(ids), len(ids))))
    found.write((Table.META, META_FORMAT, b"4"), (Table.META, b"retries", b"1"))
    return found


def retry(addressee: str, name: MessageId) -> bytes:
    tried = Retry(addressee.encode(), 3, 2, b"busy")
    return encode(Record(b"t", b"job", DUE, 1, owner=OWNER, id=name, retry=tried))


def cursor(old: Old, of: str, place: Position, *flying: Position, finished: Sequence[Position] = ()) -> None:
    flights = [
        FlightRow(number, keys.place(one), shard=next(shard for spot, shard in old.rows if spot == one))
        for number, one in enumerate(flying, 1)
    ]
    row = CursorRow(keys.place(place), flights, finished=[keys.place(one) for one in finished])
    old.write((Table.CURSORS, of.encode(), encode_row(row)))


def kept(opened: Opened) -> list[tuple[str, Position]]:
    """Whose retries there are, and where; all that says something of them agrees."""
    store, directory = opened.store, read_directory(opened.store, 50)
    found = list(RETRIES.all(store))
    assert format_of(store) == FORMAT
    assert RETRIES.stored_totals(store).count == opened.retries == len(found)
    assert list(pointers(store, directory)) == []
    assert verify_counts(store, directory) == []
    assert verify_owners(store, directory, opened.horizon.position) == []
    assert verify_tables(store) == []
    for _, row in found:
        assert keys.message_of(row.id) in (NAME, OTHER)
        assert (row.attempts, row.counted, row.reason) == (3, 2, "busy")
        record = decode(row.record)
        assert (record.payload, record.owner, record.retry) == (b"job", OWNER, None)
    assert opened.owned.pending(OWNER) == len(found)
    assert opened.pending == opened.held == 0
    assert {key[0] for key, _ in store.scan(Table.RETRIES, b"", b"\xff" * 64)} <= {0, 1, 2, 3}
    assert store.get(Table.META, b"retries") is None
    return [(row.addressee, place) for place, row in found]


def stubs(opened: Opened) -> list[int]:
    return [decode(value).stub for _, _, value in opened.reader.read(START, END)]


def test_one_that_waits_stands_where_it_stood() -> None:
    had = old("a", is_passed=False)
    opened = had.open(NOW)
    assert kept(opened) == [("a", had.place)]
    assert stubs(opened) == [MOVED]
    ((_, row),) = RETRIES.all(opened.store)
    assert (row.group, row.incarnation) == ("a", 0)


def test_one_in_flight_is_in_flight_from_its_own_row() -> None:
    had = old("a", "a", known=["a"])
    cursor(had, "a", before(LATER), had.place)
    opened = had.open()
    assert kept(opened) == [("a", had.place)], "the other one is done"
    value = opened.store.get(Table.CURSORS, b"a")
    assert value is not None
    assert [(one.place, one.shard) for one in cursor_row_of(value).flights] == [
        (keys.place(had.place), RETRY_SHARD)
    ]


def test_other_flights_stay_as_they_are() -> None:
    had = old("a")
    row = CursorRow(keys.place(before(LATER)), [FlightRow(1, keys.place(Position(5)), shard=3)])
    had.write((Table.CURSORS, b"a", encode_row(row)))
    opened = had.open()
    assert kept(opened) == []
    assert opened.store.get(Table.CURSORS, b"a") == encode_row(row)


def test_one_that_was_read_and_is_done_leaves_nothing() -> None:
    had = old("a")
    cursor(had, "a", had.place)
    opened = had.open()
    assert kept(opened) == []
    assert stubs(opened) == [MOVED]


def test_one_that_is_done_behind_what_was_read_leaves_nothing() -> None:
    had = old("a")
    cursor(had, "a", Position(had.place - 1), finished=[had.place])
    assert kept(had.open()) == []


@pytest.mark.parametrize("has_cursor", [True, False])
def test_one_that_its_place_has_not_read_is_due_at_once(has_cursor: bool) -> None:
    had = old("a")
    if has_cursor:
        cursor(had, "a", Position(had.place - 1))
    assert kept(had.open()) == [("a", had.place)]


@pytest.mark.parametrize("is_passed", [True, False])
def test_one_that_was_held_waits_too(is_passed: bool) -> None:
    """Also where the horizon stood behind it already, when the clock was set back."""
    had = old("a", "gone", is_held=True)
    assert had.rows[0][1] == HELD_SHARD
    if is_passed:
        had.pass_all()
    opened = had.open(NOW)
    assert kept(opened) == [("a", had.place)]
    assert stubs(opened) == []


@pytest.mark.parametrize("is_passed", [True, False])
def test_one_of_who_has_gone_is_nobodys(is_passed: bool) -> None:
    had = old("a", "gone", is_passed=is_passed)
    assert kept(had.open(LATER if is_passed else NOW)) == [("a", had.place)]


def test_a_group_has_its_name_as_people_call_it() -> None:
    had = old(GROUP, known=[GROUP])
    opened = had.open()
    assert kept(opened) == [(GROUP, had.place)]
    ((_, row),) = RETRIES.all(opened.store)
    assert row.group == "g"
    assert RETRIES.count_of(opened.store, RETRIES.whose(row)) == 1


def test_what_the_horizon_has_passed_counts_for_its_owner_again() -> None:
    had = old("a", "a", "gone", names=[NAME, OTHER, NAME])
    opened = had.open()
    assert len(kept(opened)) == 2
    value = opened.store.get(Table.META, keys.owned(OWNER))
    assert value is not None
    assert owned_from(value)[:2] == (5, 3)


@pytest.mark.parametrize("flying", [None, 1])
def test_of_two_retries_of_one_message_and_place_one_stays(flying: int | None) -> None:
    """The one in flight, else the first."""
    had = old("a", "a")
    if flying is not None:
        cursor(had, "a", START, had.rows[flying][0])
    opened = had.open()
    assert kept(opened) == [("a", had.rows[flying or 0][0])]
    assert verify_counts(opened.store, opened.directory) == []


@pytest.mark.parametrize("what", ["row", "cursor"])
def test_what_cannot_be_read_is_passed_over(what: str) -> None:
    had = old("a", "a", names=[NAME, OTHER])
    if what == "row":
        opened = open_at(MemoryStore())
        key = next(key for key, _ in had.store.scan(Table.MESSAGES, b"", b"\xff" * 24))
        had.write((Table.MESSAGES, key, b"rotten"))
        found = had.open()
        assert [place for place, _ in RETRIES.all(found.store)] == [had.rows[1][0]]
        assert opened.retries == 0
    else:
        had.write((Table.CURSORS, b"b", b"rotten"))
        assert len(list(RETRIES.all(had.open().store))) == 2


def test_a_kill_leaves_it_raised_or_as_it_was() -> None:
    had = old("a")
    before_ = list(had.store.scan(Table.RETRIES, b"", b"\xff" * 64))
    flush, had.store.flush = had.store.flush, lambda: None  # type: ignore[method-assign]
    had.open()
    had.store.flush = flush  # type: ignore[method-assign]
    had.store.crash(0)
    assert format_of(had.store) == 4
    assert list(had.store.scan(Table.RETRIES, b"", b"\xff" * 64)) == before_
    opened = had.open()
    had.store.crash(0)
    assert format_of(had.store) == FORMAT
    assert kept(had.open()) == kept(opened) == [("a", had.place)]


def test_what_is_written_afterwards_counts_on() -> None:
    had = old("a", is_passed=False)
    opened = had.open(NOW)
    with written(opened) as commit:
        ((place, row),) = RETRIES.all(opened.store)
        assert RETRIES.remove(commit.open_batch, place, row)
    assert (
        RETRIES.stored_totals(opened.store).count == RETRIES.count_of(opened.store, RETRIES.whose(row)) == 0
    )
    assert list(opened.store.scan(Table.RETRIES, b"", b"\xff" * 64)) == []
