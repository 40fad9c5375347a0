"""Borrowed shards: who reads them, what each holds of them, and what is left when one goes."""

import pytest

from shards import keys
from shards.borrow import give_back, part_of
from shards.expiry import expire
from shards.garbage import clear, left
from shards.recover import read_directory
from shards.store import Table
from shards.tables import prefixes_of, shard_from, slice_from, slice_value
from timeline.slices import Counts, Home, Shard, Slice

from .splits import FAR, Split
from .timelines import group


@pytest.fixture
def split() -> Split:
    return Split()


def cut_in_three(split: Split) -> list[Slice]:
    """Slices of messages 0 to 3, 4 to 7 and 8 to 11; the shards hold 0 to 2, 3 to 5, 6 to 8 and 9 to 11."""
    return split.split(FAR + 4_000, FAR + 8_000)


def stored(split: Split, shard: Shard) -> Shard | None:
    value = split.store.get(Table.SHARDS, shard.prefix)
    return None if value is None else shard_from(shard.prefix, value)


# -- counting


def test_a_part_is_counted_without_its_end(split: Split) -> None:
    (parent,) = split.slices()
    split.cancel(1)
    shard = parent.shards[0]
    rows = dict(split.store.scan(Table.MESSAGES, *keys.under(shard.prefix)))
    sizes = [len(key) + len(value) for key, value in sorted(rows.items())]
    assert part_of(split.store, Slice(FAR, FAR + 2_000, 1), [shard]) == Counts(2, 1, sum(sizes[:2]))
    assert part_of(split.store, Slice(FAR, FAR + 2_001, 1), [shard]) == Counts(3, 2, sum(sizes))
    assert part_of(split.store, Slice(FAR + 2_001, FAR + 9_000, 1), [shard]) == Counts()


def test_a_cancel_lessens_the_part_and_not_the_shard(split: Split) -> None:
    first, second, _ = cut_in_three(split)
    shard = first.borrowed[1]
    split.cancel(3, 4, 5)
    assert (first.part.live, second.part.live) == (3, 2)
    assert (shard.count, shard.live) == (3, 3), "as it was when it was cut"
    row = stored(split, shard)
    assert row is not None
    assert (row.count, row.live) == (3, 3)
    again, *_ = read_directory(split.store, 50)
    assert again.part == first.part


# -- who borrows


def test_a_shard_of_a_whole_slice_is_nobodys_loan(split: Split) -> None:
    (parent,) = split.slices()
    assert not split.opened.directory.is_borrowed(parent.shards[0])


def test_a_shard_is_known_by_its_prefix_and_not_by_its_object(split: Split) -> None:
    first, *_ = cut_in_three(split)
    again = read_directory(split.store, 50)
    (found, *_) = again
    assert found.borrowed[0] is not first.borrowed[0]
    assert again.is_borrowed(first.borrowed[0])
    assert not again.is_borrowed(Shard(Home(FAR, 7), 0)), "the same number, of another home"


def test_runs_of_borrowed_shards_are_short() -> None:
    piece, home, other = Slice(5, 9, 2), Home(1, 1), Home(0, 3)
    numbers = [*range(100), 200, 202, 203]
    shards = [Shard(home, number) for number in numbers] + [Shard(other, 1_000)]
    piece.borrow(shards, Counts(7, 6, 500))
    value = slice_value(piece)
    assert len(value) == 16 + 17 + 4 * 12
    again, runs, part = slice_from(keys.slice_key(piece.home), value)
    assert sorted(prefixes_of(runs)) == sorted(shard.prefix for shard in shards)
    assert part == Counts(7, 6, 500)
    assert (again.start_ms, again.end_ms, again.generation) == (5, 9, 2)


# -- what is left


def test_a_part_is_given_back_by_its_span(split: Split) -> None:
    first, second, _ = cut_in_three(split)
    split.opened.directory.drop(first)
    give_back(group(split.opened), first)
    split.seal()
    assert list(left(split.store)) == [
        keys.under(first.borrowed[0].prefix),
        keys.span_range(first.borrowed[1].prefix, first.start_ms, first.end_ms),
    ]
    assert stored(split, first.borrowed[0]) is None, "nobody else reads it"
    assert stored(split, second.borrowed[1]) is not None


def test_a_shard_that_changes_in_the_group_that_drops_it_has_no_row(split: Split) -> None:
    commit = group(split.opened)
    commit.cancel(split.ids[1])
    expire(commit, split.slices())
    split.seal()
    assert list(split.store.scan(Table.SHARDS, b"", keys.LAST)) == []


def test_expiry_takes_a_part_of_what_is_borrowed(split: Split) -> None:
    first, second, third = cut_in_three(split)
    shard = first.borrowed[1]
    expire(group(split.opened), [first])
    split.seal()
    split.opened.waiting.dispatched(4)
    split.check("4 5 6 7 8 9 10 11")
    assert split.opened.directory.is_borrowed(shard)
    expire(group(split.opened), [second, third])
    split.seal()
    assert {keys.shard_of(start)[1] for start, _ in left(split.store) if len(start) == 10} == {0, 1, 2, 3}
    commit = group(split.opened)
    for start, end in list(left(split.store)):
        clear(commit, start, end)
    split.seal()
    assert list(left(split.store)) == []
    for table in (Table.MESSAGES, Table.SHARDS, Table.SLICES):
        assert list(split.store.scan(table, b"", keys.LAST)) == []
