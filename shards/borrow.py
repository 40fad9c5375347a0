"""Shards that several slices read: what a cut leaves until the rows have been copied.

A borrowed shard stays where it was written, under the key of the slice that was cut, and each borrower reads
of it what lies in its own span. Its row in `shards` says what all borrowers together hold, and it lives as
long as one of them does:

    begin      slice A(0, 1, 2)  ->  B, C, D, each with A's 0, 1, 2 borrowed; A's rows in `shards` stay
    D copied   D has 0, 1, 2 of its own; of A's shards the span of D is deleted, their rows say B + C
    B expires  the span of B is deleted, their rows say C
    C copied   A's shards are deleted whole

How many rows each borrower holds is stored nowhere: they are counted when that is needed. No row is ever
added to a borrowed shard and none leaves it except with its borrower, so the count cannot go stale.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from timeline.slices import Directory, Shard, Slice

from . import keys
from .commit import Commit
from .leavings import leave
from .record import is_stub
from .store import Store, Table
from .unreadable import readable


class Counts(NamedTuple):
    """Of the rows of a shard in a span: all, those that are no stubs, their bytes."""

    rows: int = 0
    live: int = 0
    bytes: int = 0

    def plus(self, other: "Counts") -> "Counts":
        return Counts(self.rows + other.rows, self.live + other.live, self.bytes + other.bytes)


def counting(store: Store, prefix: bytes, start_ms: int, end_ms: int, step_rows: int) -> Iterator[Counts]:
    """Count a shard's rows in a span: yields what each step has found, of at most so many rows."""
    start, end = keys.span_range(prefix, start_ms, end_ms)
    while True:
        rows = live = size = 0
        for key, value in readable(store, Table.MESSAGES, start, end):
            rows += 1
            live += not is_stub(value)
            size += len(value) + keys.MESSAGE_KEY_BYTES
            if rows == step_rows:
                start = key + b"\0"
                break
        yield Counts(rows, live, size)
        if rows < step_rows:
            return


def span_counts(store: Store, prefix: bytes, start_ms: int, end_ms: int) -> Counts:
    """`counting` in one step."""
    return next(counting(store, prefix, start_ms, end_ms, 1 << 62))


def counted_key(piece: Slice, shard: Shard) -> bytes:
    """Stands for a slice's part of a shard that it borrows, where parts have been counted."""
    return keys.slice_key(piece.home) + shard.prefix


def borrowers(directory: Directory, shard: Shard) -> Iterator[Slice]:
    """The slices that read a shard which is not theirs.

    A shard is known by its prefix: after a failure the directory is read anew, and holds other objects.
    """
    return (piece for piece in directory if _borrows(piece, shard))


def _borrows(piece: Slice, shard: Shard) -> bool:
    found = piece.borrowed.get(shard.number)
    return found is not None and found.prefix == shard.prefix


def is_shared(directory: Directory, shard: Shard) -> bool:
    """Whether more than one slice borrows it."""
    found = borrowers(directory, shard)
    return next(found, None) is not None and next(found, None) is not None


def give_back(commit: Commit, piece: Slice, counted: Mapping[bytes, Counts]) -> None:
    """A slice that has expired, and is in the directory no more, gives up what it borrowed."""
    for shard in piece.borrowed.values():
        if next(borrowers(commit.directory, shard), None) is None:
            commit.open_group.forget_shard(shard)
            leave(commit, *keys.shard_range(shard.prefix))
            continue
        part = counted.get(counted_key(piece, shard))
        if part is None:
            part = span_counts(commit.open_group.store, shard.prefix, piece.start_ms, piece.end_ms)
        lessen(commit, shard, part)
        leave(commit, *keys.span_range(shard.prefix, piece.start_ms, piece.end_ms))


def lessen(commit: Commit, shard: Shard, part: Counts) -> None:
    """Rows have left a shard that other slices go on borrowing."""
    shard.lessen(part.rows, part.live, part.bytes)
    commit.open_group.changed((), (shard,))
