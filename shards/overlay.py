"""Batches that are readable and not yet in the store: one layer each, the newest on top.

A layer never changes. Whoever reads takes the layers first and the store's rows after: a batch that is
written into the store meanwhile is then seen in both places, where it says the same.

There are two of them at the most while all is well (group commits that wait for their log). A lookup asks
each; a scan merges what they hold of its range with what the store has, and costs the store's scan alone
when they hold nothing of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import merge
from typing import NamedTuple, cast

from sortedcontainers import SortedDict

from .changes import Change, Changes
from .store import Store, Table

_HALF = (True, False)
_Entry = tuple[bytes, int, bytes | None]
"""Key, depth (0: the topmost layer), value; None: it is deleted. No two have the same key and depth."""


class Seen(NamedTuple):
    """What the layers say of a key. `value` None: there is no such row."""

    value: bytes | None


class Layer:
    """What one batch leaves, by table."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self._tables = {table: _Part(made) for table, made in changes.tables.items() if made}

    def part(self, table: Table) -> "_Part | None":
        return self._tables.get(table)


class _Part:
    """Of one table: the rows that are put or deleted, and the ranges in which nothing older is left."""

    def __init__(self, changes: Sequence[Change]) -> None:
        ranges = [(key, end) for key, _, end in changes if end is not None and key < end]
        self.rows: dict[bytes, bytes | None] = SortedDict() if ranges else {}
        self._starts, self._ends = _joined(ranges)
        self._keys: list[bytes] | None = None
        for key, value, end in changes:
            if end is None:
                self.rows[key] = value
            elif key < end:
                for doomed in list(
                    cast("SortedDict[bytes, bytes | None]", self.rows).irange(key, end, _HALF)
                ):
                    del self.rows[doomed]

    def covers(self, key: bytes) -> bool:
        """Whether every older row of that key is gone."""
        at = bisect_right(self._starts, key) - 1
        return at >= 0 and key < self._ends[at]

    def over(self, start: bytes, end: bytes) -> list[bytes]:
        """Its keys in [start, end), in order."""
        if self._keys is None:
            self._keys = sorted(self.rows)
        return self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, end)]

    def touches(self, start: bytes, end: bytes) -> bool:
        """Whether something may be deleted of [start, end)."""
        at = bisect_left(self._starts, end) - 1
        return start < end and at >= 0 and start < self._ends[at]


def _joined(ranges: list[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    """Where they start and end, without those that overlap."""
    starts: list[bytes] = []
    ends: list[bytes] = []
    for start, end in sorted(ranges):
        if starts and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def look(layers: Sequence[Layer], table: Table, key: bytes) -> Seen | None:
    """None: they do not say, the store has it or has it not."""
    for layer in layers:
        part = layer.part(table)
        if part is None:
            continue
        if key in part.rows:
            return Seen(part.rows[key])
        if part.covers(key):
            return Seen(None)
    return None


def through(
    layers: Sequence[Layer], store: Store, table: Table, start: bytes, end: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """The rows of [start, end) in order, as the layers leave them."""
    parts = [part for layer in layers if (part := layer.part(table)) is not None]
    if not any(part.touches(start, end) or part.over(start, end) for part in parts):
        yield from store.scan(table, start, end)
        return
    depth = len(parts)
    sources: list[Iterator[_Entry]] = [_entries(part, n, start, end) for n, part in enumerate(parts)]
    sources.append((key, depth, value) for key, value in store.scan(table, start, end))
    last = None
    for key, place, value in merge(*sources):
        if key == last:
            continue
        last = key
        if value is not None and not any(part.covers(key) for part in parts[:place]):
            yield key, value


def _entries(part: _Part, depth: int, start: bytes, end: bytes) -> Iterator[_Entry]:
    return ((key, depth, part.rows[key]) for key in part.over(start, end))
