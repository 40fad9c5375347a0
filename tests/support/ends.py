"""The journal of ends of a store, and whether each batch of it says the same as the rows that it has."""

from collections import Counter

from server.core import Core
from shards import keys
from shards.ended import DEAD, DONE, DROPPED, EXPIRED, ended_between, ends_between
from shards.store import Store, Table
from shards.tables import DONE as KEPT
from shards.tables import EndRow, end_row_of, ends_row_of, state_row_of
from tests.support.kept import kept_of
from tests.support.memory_store import MemoryBatch, MemoryStore
from timeline.position import POSITION_BYTES

FOREVER_MS = (1 << 48) - 1


def ends_of(store: Store) -> list[EndRow]:
    """All of the journal, in its order."""
    return [one.row for one in ended_between(store, 0, FOREVER_MS)]


def words_of(store: Store) -> list[str]:
    return [row.end for row in ends_of(store)]


def counts_of(store: Store) -> Counter[str]:
    """How many ended how, in all minutes at all places."""
    found: Counter[str] = Counter()
    for one in ends_between(store, 0, FOREVER_MS):
        found.update(one.row.counts)
    return found


def check_batches(store: MemoryStore) -> None:
    """In each batch of its log what dies, is dropped or is kept as done has its end, once, and is counted.
    What is done may be written again by a batch that overlaps: its end is in the first one."""
    counts: dict[bytes, dict[str, int]] = {}
    done = Counter[tuple[str, bytes]]()
    for batch in store.log:
        _check(batch, counts, done)


def _check(batch: MemoryBatch, counts: dict[bytes, dict[str, int]], done: Counter[tuple[str, bytes]]) -> None:
    ended, there = Counter[tuple[str, bytes]](), Counter[tuple[str, bytes]]()
    final = {
        key: value
        for table, key, value, end in batch.changes
        if table is Table.DELIVERIES and end is None and value is not None
    }
    counted: Counter[str] = Counter()
    numbers = [key for key in final if key[:1] == keys.ENDED]
    assert numbers == sorted(numbers)
    for key, value in final.items():
        if key[:1] == keys.ENDED:
            row = end_row_of(value[POSITION_BYTES:])
            ended[DEAD if row.end == EXPIRED else row.end, value[:POSITION_BYTES]] += 1
            counted[row.end] += 1
        elif key[:1] == keys.DEAD:
            there[DEAD, value[keys.WHOSE_BYTES :]] += 1
        elif key[:1] == keys.DROPPED:
            there[DROPPED, key[1 : 1 + POSITION_BYTES]] += 1
        elif key[:1] == keys.STATE and state_row_of(value).state == KEPT:
            there[DONE, key[-POSITION_BYTES:]] += 1
        elif key[:1] == keys.ENDS:
            row_counts, before = ends_row_of(value).counts, counts.get(key, {})
            for end, number in row_counts.items():
                counted[end] -= number - before.get(end, 0)
            counts[key] = row_counts
    assert not there - ended - done, f"ended without a row: {there - ended - done}"
    done.update({name: number for name, number in ended.items() if name[0] == DONE})
    twice = {name for name, number in ended.items() if number > max(1, there[name])}
    assert not twice, f"more ends than there are: {twice}"
    del counted[DONE]  # also of what is not kept, or counted before
    assert not any(counted.values()), counted


def check_last(core: Core) -> None:
    """The last end of each dead letter, and of what groups keep as done, says so."""
    store = core.opened.store
    found = ended_between(store, 0, FOREVER_MS)
    last = {(one.row.place, one.row.incarnation, one.root): one.row.end for one in found}
    for row in core.dead_letters.read():
        assert last.get((row.group, row.incarnation, row.root)) in (DEAD, EXPIRED), row
    for group in core.groups:
        for kept in kept_of(store, group.whose):
            assert last.get((group.name, group.incarnation, kept.root)) == DONE, kept
