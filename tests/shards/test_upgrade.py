"""Format 1, of release 0.1.0, becomes this program's in one step. What no release wrote is refused."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from shards import keys
from shards.changes import Changes, decode_changes
from shards.delivery_rows import dead, dead_of, of_message, size_of, totals
from shards.errors import StoreFailed, UnreleasedFormat, WrongFormat
from shards.fields import Record
from shards.log.errors import UnknownVersion
from shards.pointers import pointers
from shards.record import encode
from shards.recover import Opened, format_of, read_directory
from shards.store import Table
from shards.tables import (
    FORMAT,
    FORMAT_FIRST,
    META_DEAD,
    META_FORMAT,
    KeptTotals,
    encode_row,
    kept_totals_value,
    slice_from,
)
from shards.upgrade import DeadLetterRow
from shards.verify import verify_counts, verify_owners, verify_tables
from tests.support.memory_store import MemoryStore
from tests.support.stores import rewrite
from timeline.position import HELD_SHARD, START, MessageId, id_position, message_id, position
from timeline.slices import Counts

from .splits import ALL, FAR, Split
from .timelines import NOW, draft, open_at, put, texts

GROUP = keys.GROUP_PREFIX + "$share/g/g"
Rows = dict[Table, list[tuple[bytes, bytes]]]


def cut_by_the_first_release() -> tuple[MemoryStore, list[Counts]]:
    """A store whose slices borrow, in rows that do not say how much. And what they borrow."""
    split = Split()
    split.cancel(3)
    split.split(FAR + 4_000, FAR + 8_000)
    batch = split.store.batch()
    for piece in split.slices():
        head = piece.end_ms.to_bytes(8, "big") + bytes(8)
        runs = b"".join(shard.prefix + bytes(2) for shard in piece.borrowed.values())
        batch.put(Table.SLICES, keys.slice_key(piece.home), head + runs)
    batch.put(Table.META, META_FORMAT, b"%d" % FORMAT_FIRST)
    split.store.write(batch)
    split.store.flush()
    return split.store, [piece.part for piece in split.slices()]


def letter(addressee: str, message: MessageId, number: int) -> DeadLetterRow:
    record = encode(Record(b"t", b"job", NOW))
    return DeadLetterRow(
        addressee, addressee[-1], keys.message(message), 4, f"no {number}", "ops", 77 + number, record
    )


def with_letters() -> tuple[MemoryStore, list[DeadLetterRow]]:
    """Such a store with dead letters: two of one message and place, and one of a message that was held."""
    store, _ = cut_by_the_first_release()
    names = [message_id(position(NOW - 60_000, 7), 3, 5), message_id(position(NOW, 8), HELD_SHARD, 5)]
    letters = [
        letter("a", names[0], 1),
        letter("a", names[0], 2),
        letter(GROUP, names[0], 3),
        letter("a", names[1], 4),
    ]
    batch = store.batch()
    for number, one in enumerate(letters, 1):
        at = keys.place(position(NOW + number, number))
        batch.put(Table.DEAD, b"\0" + at, encode_row(one))
        batch.put(Table.DEAD, b"\1" + keys.hash_of(one.group) + at, b"")
        batch.put(Table.DEAD, b"\2" + one.id + at, b"")
    batch.put(Table.META, META_DEAD, kept_totals_value(KeptTotals(4, 1_000, START)))
    store.write(batch)
    store.flush()
    return store, letters


def rows_in(store: MemoryStore) -> Rows:
    return {table: list(store.scan(table, b"", b"\xff" * 64)) for table in Table}


def counts_in(store: MemoryStore) -> list[Counts | None]:
    return [slice_from(key, value)[2] for key, value in store.scan(Table.SLICES, b"", keys.LAST)]


def check(opened: Opened) -> None:
    """It is whole, and of this format."""
    store, directory = opened.store, read_directory(opened.store, 500)
    assert format_of(store) == FORMAT
    assert texts(opened) == ALL.replace("3", "-").split()
    assert verify_counts(store, directory) == []
    assert verify_tables(store) == []
    assert verify_owners(store, directory, opened.horizon.position) == []
    assert list(pointers(store, directory)) == []
    assert list(store.scan(Table.DELIVERIES, b"", b"\xff")) == []


def test_what_it_has_cut_is_counted_once() -> None:
    store, parts = cut_by_the_first_release()
    assert len(parts) == 3
    check(open_at(store, max_slices=500))
    assert counts_in(store) == parts
    raised = rows_in(store)
    check(open_at(store, max_slices=500))
    assert rows_in(store) == raised, "the second start finds nothing to do"


def test_it_is_durable_before_anything_else_is_written() -> None:
    store, parts = cut_by_the_first_release()
    written = len(store.log)
    open_at(store, max_slices=500)
    assert (len(store.log), store.durable) == (written + 1, written + 1), "one batch"
    store.crash(0)
    assert counts_in(store) == parts


@pytest.mark.parametrize("survivors", [0, 1])
def test_a_kill_leaves_it_raised_or_as_it_was(survivors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upgrade is written and not synced."""
    store, _ = cut_by_the_first_release()
    before = rows_in(store)
    with monkeypatch.context() as patched:
        patched.setattr(store, "flush", lambda: None)
        open_at(store, max_slices=500)
    raised = rows_in(store)
    store.crash(survivors)
    assert rows_in(store) == (raised if survivors else before)
    assert format_of(store) == (FORMAT if survivors else FORMAT_FIRST)
    check(open_at(store, max_slices=500))
    assert rows_in(store)[Table.SLICES] == raised[Table.SLICES]


@pytest.mark.parametrize("fails", ["fail_writes", "fail_flushes"])
def test_one_that_fails_is_done_at_the_next_start(fails: str) -> None:
    store, _ = cut_by_the_first_release()
    before = rows_in(store)
    setattr(store, fails, True)
    with pytest.raises(StoreFailed):
        open_at(store, max_slices=500)
    setattr(store, fails, False)
    store.crash(0)
    assert rows_in(store) == before
    check(open_at(store, max_slices=500))


# -- its dead letters


def test_dead_letters_become_deliveries() -> None:
    store, letters = with_letters()
    opened = open_at(store, max_slices=500)
    check_letters(opened, letters)
    raised = rows_in(store)
    check_letters(open_at(store, max_slices=500), letters)
    assert rows_in(store) == raised


def check_letters(opened: Opened, letters: list[DeadLetterRow]) -> None:
    store = opened.store
    found = list(dead(store))
    assert [(row.addressee, row.group, row.id, row.reason) for row in found] == [
        (one.addressee, one.group, keys.message_of(one.id), one.reason) for one in letters[1:]
    ], "of two of one message and place the last one"
    for number, row in enumerate(found, 2):
        assert (row.at, row.running_ms) == (position(NOW + number, number), 77 + number)
        assert (row.attempts, row.keeper, row.incarnation) == (4, "ops", 0)
        assert row.root == id_position(row.id)
        assert row.message().payload == b"job"
        assert row.name in [one.name for one in of_message(store, row.id)]
        assert row in dead_of(store, row.group)
    assert [row.shard for row in found] == [3, 3, 0]
    assert totals(store) == KeptTotals(3, sum(map(size_of, found)), START)
    assert list(store.scan(Table.DEAD, b"", b"\xff" * 64)) == []
    assert opened.waiting.retries == 0
    assert list(pointers(store, opened.directory)) == []
    assert verify_tables(store) == []


@pytest.mark.parametrize("survivors", [0, 1])
def test_a_kill_leaves_letters_in_one_of_both(survivors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store, letters = with_letters()
    before = rows_in(store)
    with monkeypatch.context() as patched:
        patched.setattr(store, "flush", lambda: None)
        open_at(store, max_slices=500)
    raised = rows_in(store)
    store.crash(survivors)
    assert rows_in(store) == (raised if survivors else before)
    check_letters(open_at(store, max_slices=500), letters)


def test_a_letter_that_cannot_be_read_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    store, letters = with_letters()
    rewrite(
        store,
        (Table.DEAD, b"\0" + keys.place(position(NOW + 5, 5)), b"rotten"),
        (Table.DEAD, b"\0" + keys.place(position(NOW + 6, 6)), encode_row(replace(letters[0], id=b"short"))),
    )
    check_letters(open_at(store, max_slices=500), letters)
    assert caplog.text.count("upgrade: a dead letter is unreadable, skipped") == 2


def test_before_the_upgrade_nothing_is_wrong_of_them() -> None:
    """`verify` reads a store as it is."""
    store, _ = with_letters()
    assert list(pointers(store, read_directory(store, 500))) == []


# -- what is refused


def made() -> MemoryStore:
    store = MemoryStore()
    put(open_at(store), draft(NOW + 5, "kept"))
    return store


@pytest.mark.parametrize("number", range(FORMAT_FIRST + 1, FORMAT))
@pytest.mark.parametrize("looks", [open_at, format_of])
def test_a_format_of_no_release_is_refused(looks: Callable[[MemoryStore], object], number: int) -> None:
    store = made()
    rewrite(store, (Table.META, META_FORMAT, b"%d" % number))
    before = rows_in(store)
    with pytest.raises(UnreleasedFormat) as raised:
        looks(store)
    assert str(raised.value) == (
        f"the data has format {number}, which no release wrote, this program reads formats {FORMAT_FIRST} and"
        f" {FORMAT}: go on with the version that wrote it, or begin with an empty directory"
    )
    assert rows_in(store) == before


@pytest.mark.parametrize("value", [b"0", b"%d" % (FORMAT + 1), b"05", b"", b"1.0", b"\xff" * 30])
def test_any_other_is_refused(value: bytes) -> None:
    store = made()
    rewrite(store, (Table.META, META_FORMAT, value))
    with pytest.raises(
        WrongFormat, match=f"this program reads formats {FORMAT_FIRST} and {FORMAT}$"
    ) as raised:
        open_at(store)
    assert not isinstance(raised.value, UnreleasedFormat)


@pytest.mark.parametrize("table", [b"retries", b"dead"])
def test_a_record_of_a_log_that_changes_tables_of_such_a_format_is_refused(table: bytes) -> None:
    changes = Changes()
    changes.put(Table.META, b"a", b"1")
    assert decode_changes(changes.encode()).tables == changes.tables
    data = changes.encode().replace(b"\xa4meta", bytes((0xA0 | len(table),)) + table)
    with pytest.raises(UnknownVersion, match=f"changes a table {table.decode()!r}: another version"):
        decode_changes(data)


def test_an_upgrade_by_who_leads_is_followed() -> None:
    """Its rows are the base of the log: what it empties is a range of the table of letters."""
    changes = Changes()
    changes.delete_range(Table.DEAD, b"", b"\xff" * 64)
    assert decode_changes(changes.encode()).tables == changes.tables
