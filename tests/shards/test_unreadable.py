"""Going round what cannot be read, on a store that fails wherever the test says."""

from bisect import bisect_left
from collections.abc import Iterator
from random import Random

import pytest

import shards.unreadable
from shards.errors import Corrupt
from shards.store import Table
from shards.unreadable import CorruptRange, Unreadable, beyond, note_key, note_value, notes
from tests.support.memory_store import MemoryStore
from timeline.position import END, Position

PREFIX = bytes(10)
BLOCK = 10


class Rotten(MemoryStore):
    """Rows lie in blocks of ten; a scan that comes to a bad one ends there."""

    def __init__(self, places: list[int]) -> None:
        super().__init__()
        self.keys = [PREFIX + place.to_bytes(12, "big") for place in sorted(places)]
        batch = self.batch()
        for key in self.keys:
            batch.put(Table.MESSAGES, key, b"row")
        self.write(batch)
        self.bad: set[int] = set()
        self.probes = 0

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.probes += 1
        for key, value in super().scan(table, start, end):
            if table is Table.MESSAGES and bisect_left(self.keys, key) // BLOCK in self.bad:
                raise Corrupt("block checksum mismatch in 000009.sst")
            yield key, value

    def good(self) -> list[bytes]:
        return [key for n, key in enumerate(self.keys) if n // BLOCK not in self.bad]


def read(
    store: Rotten, unreadable: Unreadable, start: bytes = PREFIX, end: bytes = PREFIX + b"\xff" * 12
) -> list[bytes]:
    return [key for key, _ in unreadable.scan(store, Table.MESSAGES, start, end, PREFIX)]


def scattered(r: Random, count: int = 200) -> list[int]:
    places: set[int] = set()
    top = r.choice((count * 2, 1 << 40, (1 << 96) - 2))
    while len(places) < count:
        places.add(r.randrange(1, top))
    return list(places)


@pytest.mark.parametrize("seed", range(60))
def test_one_bad_block_costs_its_rows_and_no_more(seed: int) -> None:
    r = Random(seed)
    store, unreadable = Rotten(scattered(r)), Unreadable()
    store.bad = {r.choice((0, 7, 19, r.randrange(20)))}
    assert read(store, unreadable) == store.good()
    assert len(unreadable) == 1
    assert store.probes < 250
    # It is known now: nobody tries again, from wherever he comes.
    store.probes = 0
    assert read(store, unreadable) == store.good()
    assert store.probes <= 2
    low, high = sorted(r.sample(store.keys, 2))
    assert read(store, unreadable, low, high) == [key for key in store.good() if low <= key < high]
    assert len(unreadable) == 1


@pytest.mark.parametrize("seed", range(60))
def test_of_several_what_is_around_them_stays(seed: int) -> None:
    r = Random(seed)
    store, unreadable = Rotten(scattered(r)), Unreadable()
    store.bad = set(r.sample(range(20), r.randrange(2, 8)))
    got = read(store, unreadable)
    assert got == sorted(set(got))
    assert set(got) <= set(store.good())
    first, last = BLOCK * min(store.bad), BLOCK * (max(store.bad) + 1)
    assert [key for key in got if key < store.keys[first]] == store.keys[:first]
    assert [key for key in got if key > store.keys[last - 1]] == store.keys[last:]
    assert read(store, unreadable) == got
    lost = set(store.keys) - set(got)
    assert all(any(s.start <= key < s.end for s in unreadable) for key in lost)
    assert not any(s.start <= key < s.end for s in unreadable for key in got)


def test_nothing_can_be_read() -> None:
    store, unreadable = Rotten(list(range(1, 100))), Unreadable()
    store.bad = set(range(10))
    assert read(store, unreadable) == []
    (corrupt,) = unreadable
    assert (corrupt.first, corrupt.last) == (0, 99)


def test_what_failed_once_and_reads_again_is_no_corrupt_range() -> None:
    store, unreadable = Rotten(list(range(1, 100))), Unreadable()
    real = store.scan

    def once(table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        store.scan = real  # type: ignore[method-assign]
        for number, row in enumerate(real(table, start, end)):
            if number == 42:
                raise Corrupt("it was the cable")
            yield row

    store.scan = once  # type: ignore[method-assign]
    assert read(store, unreadable) == store.keys
    assert len(unreadable) == 0


def test_beyond_the_bound_the_rest_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards.unreadable, "RANGES_MAX", 100)
    store, unreadable = Rotten(list(range(1, 200))), Unreadable()
    for number in range(100):
        key = number.to_bytes(22, "big")
        unreadable.add(CorruptRange(key, key + b"\0", b"elsewhere", "why"))
    store.bad = {3}
    assert read(store, unreadable) == store.keys[:30]
    assert len(unreadable) == 100 + 1


def test_the_barrier_is_the_first_that_is_not_noted() -> None:
    store, unreadable = Rotten([n << 50 for n in range(1, 200)]), Unreadable()
    assert unreadable.barrier == END
    store.bad = {5, 15}
    read(store, unreadable)
    fresh = list(unreadable.fresh)
    assert unreadable.barrier == min(s.first for s in fresh)
    batch = store.batch()
    for corrupt in fresh:
        batch.put(Table.META, note_key(corrupt), note_value(corrupt, Position(corrupt.first + 7), 123))
    store.write(batch)
    unreadable.noted(fresh)
    assert (unreadable.barrier, unreadable.fresh) == (END, [])
    found = list(notes(store))
    assert [(s.start, s.end, s.scope, s.why) for s in found] == [
        (s.start, s.end, s.scope, s.why) for s in sorted(fresh, key=lambda s: s.start)
    ]
    assert [s.owed for s in found] == [s.first + 7 for s in found]


def test_beyond_of_names() -> None:
    """Keys of any length: the first that can be read is never passed over."""
    names = sorted([b"a", b"ab", b"bob", b"bobby", b"carl", b"d" * 40, b"e"])
    for bad in range(len(names)):
        low = names[bad - 1] + b"\0" if bad else b""

        def is_readable(key: bytes, bad: int = bad) -> bool:
            return key > names[bad]

        found = beyond(is_readable, low, b"\xff" * 24)
        assert names[bad] < found
        if bad + 1 < len(names) and len(names[bad]) < 24:
            assert found <= names[bad + 1].ljust(24, b"\0")


@pytest.mark.long
@pytest.mark.parametrize("size", [70, 2_000, 60_000])
@pytest.mark.parametrize("seed", range(10))
def test_long_names_cost_no_more_probes(size: int, seed: int) -> None:
    r = Random(seed)
    common = b"t" * r.randrange(size - 40)
    names = sorted({common + r.randbytes(r.randrange(1, 40)) + b"e" * r.randrange(size) for _ in range(100)})
    bad = r.randrange(99)
    probes = 0

    def is_readable(key: bytes) -> bool:
        nonlocal probes
        probes += 1
        return key > names[bad]

    found = beyond(is_readable, names[bad - 1] + b"\0" if bad else common, b"\xff" * r.choice((1, 64)))
    assert names[bad] < found <= names[bad + 1]
    assert probes < 1_100
