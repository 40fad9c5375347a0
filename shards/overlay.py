"""Batches that are readable, but not yet in the store: a layer each, the newest on top.

A layer never changes. A reader takes the layers first and the store's rows after. It sees a batch that is
written into the store meanwhile in both places, with the same rows.

Normally there are at most two (group commits that wait for their log). A look-up asks each. A scan merges
their rows with the store's, and costs no more than the store's scan if the layers have none in its range.
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
"""(key, depth, value). Depth 0: the topmost layer; value None: deleted. No two have the same key and
depth."""


class Seen(NamedTuple):
    """A row of the layers. `value` None: deleted."""

    value: bytes | None


class Layer:
    """The changes of one batch, by table. A table's are arranged when somebody first asks for them: most
    groups are gone before."""

    def __init__(self, changes: Changes) -> None:
        self._tables = changes.tables
        self._parts: dict[Table, _Part] = {}

    def part(self, table: Table) -> "_Part | None":
        part = self._parts.get(table)
        if part is None and (made := self._tables.get(table)):
            part = self._parts[table] = _Part(made)
        return part


class _Part:
    """The changes of one table: rows put or deleted, and deleted ranges."""

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
        """Whether a deleted range covers the key."""
        at = bisect_right(self._starts, key) - 1
        return at >= 0 and key < self._ends[at]

    def over(self, start: bytes, end: bytes) -> list[bytes]:
        """Keys in [start, end), in order."""
        if self._keys is None:
            self._keys = sorted(self.rows)
        return self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, end)]

    def touches(self, start: bytes, end: bytes) -> bool:
        """Whether a deleted range overlaps [start, end)."""
        at = bisect_left(self._starts, end) - 1
        return start < end and at >= 0 and start < self._ends[at]


def _joined(ranges: list[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    """Starts and ends of the ranges, merged where they overlap."""
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
    """The row of a key in the layers; None: look in the store."""
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
    """The rows of [start, end), in order: the store's, changed by the layers."""
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
