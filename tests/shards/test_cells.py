"""When messages are: what the cells say is what the rows say, through whatever a timeline goes."""

import random

import pytest

from shards.cells import is_changed, save, step
from shards.commit import Commit, Draft
from shards.group_commit import Caps
from shards.keys import CELLS, cells_key, under
from shards.record import is_stub
from shards.recover import Opened, read_directory, undo_group
from shards.store import Table
from shards.verify import repair, verify_counts
from tests.support.memory_store import MemoryStore
from timeline.cells import Cells
from timeline.position import END, START, MessageId
from timeline.slices import DAY_MS

from .timelines import CAPS, NOW, QUARTER, draft, group, open_at, put, sync, written

MINUTE = 60_000
MANY = Caps(messages=3, bytes=1 << 20, pending=10_000, structure_above=1_000)


def opened_at(store: MemoryStore) -> Opened:
    return open_at(store, caps=MANY, max_slices=1_000)


def check(opened: Opened, *, all_counted: bool = True) -> None:
    """Each slice's cells are what a read of its rows gives."""
    places = [place for place, _, value in opened.reader.read(START, END) if not is_stub(value)]
    for piece in opened.directory:
        if piece.cells is None or not piece.cells.is_exact:
            assert not all_counted
            continue
        wanted = Cells(piece.start_ms, piece.end_ms, piece.cells.width_ms)
        for place in places:
            wanted.count_in(place)
        assert (piece.cells.counts, piece.cells.total) == (wanted.counts, piece.live)


def saved(opened: Opened) -> None:
    with written(opened) as commit:
        assert save(commit, most=1 << 20) == 0


def counted(opened: Opened) -> None:
    for piece in list(opened.directory):
        while piece.cells is None or not piece.cells.is_exact:
            step(opened.reader, piece, opened.horizon.seq, 3)


def some(opened: Opened, chance: random.Random, ids: list[MessageId]) -> None:
    """A group of puts, cancels and moves."""
    commit = group(opened)
    for _ in range(chance.randrange(6)):
        ids += [one for one in commit.put([_draft(chance)]) if isinstance(one, int)]
    for name in chance.sample(ids, min(len(ids), 3)):
        if chance.random() < 0.5:
            commit.cancel(name)
        else:
            commit.move(name, NOW + chance.randrange(1, 70 * DAY_MS))
    sync(opened, commit.open_batch.seal())


def _draft(chance: random.Random) -> Draft:
    return draft(NOW + chance.randrange(1, chance.choice((QUARTER, DAY_MS, 90 * DAY_MS))))


@pytest.mark.parametrize("seed", range(15))
def test_they_follow_whatever_happens(seed: int) -> None:
    chance, store = random.Random(seed), MemoryStore()
    opened = opened_at(store)
    ids: list[MessageId] = []
    for _ in range(30):
        some(opened, chance, ids)
        what = chance.random()
        if what < 0.15:
            saved(opened)
        elif what < 0.3:
            opened = opened_at(store)
            if chance.random() < 0.5:
                some(opened, chance, ids)
            check(opened, all_counted=False)
            assert verify_counts(store, read_directory(store, 1_000)) == []
        elif what < 0.4:
            commit = group(opened)
            commit.put([_draft(chance)])
            undo_group(opened)
            check(opened, all_counted=False)
        if chance.random() < 0.5:
            counted(opened)
            check(opened)
    assert verify_counts(store, opened.directory) == []


@pytest.mark.parametrize("seed", range(15))
def test_a_slice_is_counted_while_messages_come_and_go(seed: int) -> None:
    chance, store = random.Random(seed), MemoryStore()
    opened = opened_at(store)
    ids: list[MessageId] = []
    for _ in range(20):
        some(opened, chance, ids)
    for piece in opened.directory:
        piece.cells = None
    for _ in range(200):
        left = [piece for piece in opened.directory if piece.cells is None or not piece.cells.is_exact]
        if left:
            step(opened.reader, left[0], opened.horizon.seq, chance.randrange(1, 4))
        if chance.random() < 0.3:
            some(opened, chance, ids)
    counted(opened)
    check(opened)


def test_a_start_takes_those_that_were_saved_as_the_slices_are() -> None:
    store = MemoryStore()
    opened = open_at(store)
    put(opened, draft(NOW + 1), draft(NOW + QUARTER + 1))
    saved(opened)
    assert not any(is_changed(piece) for piece in opened.directory)
    put(opened, draft(NOW + 2))
    first, second = opened.directory
    assert is_changed(first)
    assert not is_changed(second)
    first, second = open_at(store).directory
    assert first.cells is None, "one more message than were saved"
    assert second.cells is not None
    assert second.cells.counts[0] == 1
    counted(opened := open_at(store))
    check(opened)


def test_saving_goes_on_where_it_ended() -> None:
    store = MemoryStore()
    opened = open_at(store)
    put(opened, *(draft(NOW + QUARTER * n + 1) for n in range(5)))
    with written(opened) as commit:
        start_ms = save(commit, most=1)
        assert start_ms == NOW + QUARTER
        assert save(commit, start_ms, most=1 << 20) == 0
    assert len(list(store.scan(Table.META, *under(CELLS)))) == 5
    assert all(piece.cells is not None for piece in open_at(store).directory)


def test_a_cancel_and_a_move_in_the_group_of_the_message(opened: Opened) -> None:
    with written(opened) as commit:
        first = commit.put_known(draft(NOW + MINUTE))
        second = commit.put_known(draft(NOW + MINUTE))
        commit.move(second, NOW + 3 * MINUTE)
        commit.cancel(first)
    check(opened)
    (piece,) = opened.directory
    assert piece.cells is not None
    assert list(piece.cells.counts)[:5] == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("value", [b"", b"x" * 20, b"x" * 400])
def test_a_row_that_says_nothing_is_counted_again(value: bytes) -> None:
    store = MemoryStore()
    put(open_at(store), draft(NOW + 1))
    batch = store.batch()
    (piece,) = read_directory(store, 50)
    batch.put(Table.META, cells_key(piece.home), value)
    store.write(batch)
    opened = open_at(store)
    assert [piece.cells for piece in opened.directory] == [None]
    counted(opened)
    check(opened)


def test_verify_finds_wrong_ones_and_repair_has_them_counted_again() -> None:
    store = MemoryStore()
    opened = open_at(store)
    put(opened, draft(NOW + 1), draft(NOW + MINUTE))
    (piece,) = opened.directory
    assert piece.cells is not None
    piece.cells.counts[0], piece.cells.counts[1] = 0, 2
    saved(opened)
    (fault,) = verify_counts(store, directory := read_directory(store, 50))
    assert "by time" in str(fault)
    repair(store, [fault])
    assert verify_counts(store, read_directory(store, 50)) == []
    assert [piece.cells for piece in open_at(store).directory] == [None]
    assert len(directory) == 1


def test_the_row_goes_with_its_slice() -> None:
    store = MemoryStore()
    opened = open_at(store)
    put(opened, draft(NOW + 1))
    saved(opened)
    commit: Commit = group(opened)
    (piece,) = opened.directory
    commit.open_batch.dropped(piece)
    sync(opened, commit.open_batch.seal())
    assert list(store.scan(Table.META, *under(CELLS))) == []


def test_more_slices_than_are_counted_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeline.slices.CELLED_MAX", 2)
    opened = open_at(MemoryStore(), caps=CAPS)
    put(opened, *(draft(NOW + QUARTER * n + 1) for n in range(4)))
    assert [piece.cells is not None for piece in opened.directory] == [True, True, False, False]
