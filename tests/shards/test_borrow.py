"""Borrowed shards: who reads them, what each holds of them, and what is left when one goes."""

from pathlib import Path

import pytest

from shards import keys
from shards.borrow import (
    Counts,
    borrowers,
    counted_key,
    counting,
    give_back,
    is_shared,
    lessen,
    span_counts,
)
from shards.expiry import expire
from shards.leavings import clear, left
from shards.recover import read_directory
from shards.store import Table
from shards.tables import shard_from
from timeline.slices import Home, Shard, Slice

from .splits import ALL, FAR, Split
from .timelines import group


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return Split(tmp_path)


def cut_in_three(split: Split) -> list[Slice]:
    """Slices of messages 0 to 3, 4 to 7 and 8 to 11; the shards hold 0 to 2, 3 to 5, 6 to 8 and 9 to 11."""
    split.notes.drop(split.begin(FAR, FAR + 4_000, FAR + 8_000))
    return split.slices()


def stored(split: Split, shard: Shard) -> Shard | None:
    value = split.store.get(Table.SHARDS, shard.prefix)
    return None if value is None else shard_from(shard.prefix, value)


# -- counting


def test_counts_are_added_part_by_part() -> None:
    assert Counts(1, 2, 3).plus(Counts(10, 20, 30)) == Counts(11, 22, 33)
    assert Counts().plus(Counts(1, 1, 1)) == Counts(1, 1, 1)


def test_a_span_is_counted_without_its_end(split: Split) -> None:
    (parent,) = split.slices()
    split.cancel(1)
    rows = dict(split.store.scan(Table.MESSAGES, *keys.shard_range(parent.shards[0].prefix)))
    sizes = [len(key) + len(value) for key, value in sorted(rows.items())]
    prefix = parent.shards[0].prefix
    assert span_counts(split.store, prefix, FAR, FAR + 2_000) == Counts(2, 1, sum(sizes[:2]))
    assert span_counts(split.store, prefix, FAR, FAR + 2_001) == Counts(3, 2, sum(sizes))
    assert span_counts(split.store, prefix, FAR + 2_001, FAR + 9_000) == Counts()


def test_a_shards_counts_are_those_of_its_span(split: Split) -> None:
    (parent,) = split.slices()
    split.cancel(4)
    for shard in parent.shards.values():
        counted = span_counts(split.store, shard.prefix, parent.start_ms, parent.end_ms)
        assert counted.rows == shard.count
        assert counted.live == shard.live


def test_counting_in_steps_adds_up(split: Split) -> None:
    (parent,) = split.slices()
    split.cancel(4)
    for step in (1, 2, 3, 100):
        for shard in parent.shards.values():
            parts = list(counting(split.store, shard.prefix, FAR + 1_000, FAR + 11_000, step))
            whole = span_counts(split.store, shard.prefix, FAR + 1_000, FAR + 11_000)
            assert tuple(map(sum, zip(*parts, strict=True))) == whole
            assert all(part.rows <= step for part in parts)


# -- who borrows


def test_a_shard_of_a_whole_slice_is_nobodys_loan(split: Split) -> None:
    (parent,) = split.slices()
    assert list(borrowers(split.opened.directory, parent.shards[0])) == []
    assert not is_shared(split.opened.directory, parent.shards[0])


def test_every_child_borrows_until_it_has_rows_of_its_own(split: Split) -> None:
    cut = split.begin(FAR, FAR + 4_000)
    first, second = split.slices()
    shard = first.borrowed[0]
    assert list(borrowers(split.opened.directory, shard)) == [first, second]
    assert is_shared(split.opened.directory, shard)
    split.notes.drop(cut)
    again = split.begin(FAR)
    split.switch(again, split.copy(again))
    assert list(borrowers(split.opened.directory, shard)) == split.slices()[1:]
    assert not is_shared(split.opened.directory, shard), "one borrower alone"
    split.check(ALL)


def test_a_shard_is_known_by_its_prefix_and_not_by_its_object(split: Split) -> None:
    first, *_ = cut_in_three(split)
    again = read_directory(split.store, 50)
    (found, *_) = again
    assert found.borrowed[0] is not first.borrowed[0]
    assert len(list(borrowers(again, first.borrowed[0]))) == 3
    namesake = Shard(Home(FAR, 7), 0)
    assert list(borrowers(again, namesake)) == [], "the same number, of another home"


def test_parts_are_told_apart_by_slice_and_shard(split: Split) -> None:
    pieces = cut_in_three(split)
    names = {counted_key(piece, shard) for piece in pieces for shard in piece.borrowed.values()}
    assert len(names) == 3 * 4


# -- what is left


def test_lessen_writes_what_the_others_hold(split: Split) -> None:
    first, *_ = cut_in_three(split)
    shard = first.borrowed[1]
    commit = group(split.opened)
    lessen(commit, shard, Counts(2, 1, shard.bytes + 5))
    split.seal()
    row = stored(split, shard)
    assert row is not None
    assert (row.count, row.live, row.bytes) == (1, 2, 0)
    assert (shard.count, shard.live, shard.bytes) == (1, 2, 0)


def test_a_part_is_given_back_by_its_span(split: Split) -> None:
    first, *_ = cut_in_three(split)
    shards = dict(first.borrowed)
    split.opened.directory.drop(first)
    give_back(group(split.opened), first, {})
    split.seal()
    counts = {number: shard.count for number, shard in shards.items()}
    assert counts == {0: 0, 1: 2, 2: 3, 3: 3}, "messages 0 to 3 have gone"
    assert [(start, end) for start, end in left(split.store)] == [
        keys.span_range(shard.prefix, FAR, FAR + 4_000) for shard in shards.values()
    ]
    for shard in shards.values():
        row = stored(split, shard)
        assert row is not None
        assert row.count == shard.count


def test_a_part_that_was_counted_before_is_not_counted_again(split: Split) -> None:
    first, *_ = cut_in_three(split)
    shard = first.borrowed[2]
    split.opened.directory.drop(first)
    give_back(group(split.opened), first, {counted_key(first, shard): Counts(1, 1, 10)})
    assert (shard.count, shard.live) == (2, 2), "as was said, though it holds nothing of it"
    assert first.borrowed[1].count == 2, "counted, since nobody said"


def test_the_last_borrower_takes_the_shard_with_it(split: Split) -> None:
    pieces = cut_in_three(split)
    shards = dict(pieces[0].borrowed)
    for piece in pieces:
        split.opened.directory.drop(piece)
    give_back(group(split.opened), pieces[-1], {})
    split.seal()
    assert [stored(split, shard) for shard in shards.values()] == [None] * 4
    assert list(left(split.store)) == [keys.shard_range(shard.prefix) for shard in shards.values()]


def test_expiry_takes_a_part_of_what_is_borrowed(split: Split) -> None:
    first, second, third = cut_in_three(split)
    shard = first.borrowed[1]
    known = span_counts(split.store, shard.prefix, first.start_ms, first.end_ms)
    expire(group(split.opened), [first], {counted_key(first, shard): known})
    split.seal()
    split.opened.waiting.dispatched(4)
    split.check("4 5 6 7 8 9 10 11")
    assert list(borrowers(split.opened.directory, shard)) == [second, third]
    expire(group(split.opened), [second, third])
    split.seal()
    assert [keys.shard_of(start)[1] for start, _ in left(split.store) if len(start) == 10] == [0, 1, 2, 3]
    commit = group(split.opened)
    for start, end in list(left(split.store)):
        clear(commit, start, end)
    split.seal()
    assert list(left(split.store)) == []
    for table in (Table.MESSAGES, Table.SHARDS, Table.SLICES):
        assert list(split.store.scan(table, b"", keys.LAST)) == []
