"""Shared shards: after a split several slices read the same shard, for good (handover.py).

A borrowed shard stays under the key of the slice that was cut. Each borrower reads the rows in its own span.
The shard's row in `shards` says what it held when it was cut, and lives as long as one slice borrows it. What
each slice holds of all its borrowed shards, its *part*, is in the slice's own row:

    cut          slice A(0, 1, 2)  ->  B, C, D, each borrows A's 0, 1, 2 and has its part; A's rows stay
    a cancel     of a message of C: its row is a stub, the part of C has one live row less
    B expires    the span of B is deleted from A's shards
    C is cut     -> E, F, which borrow A's 0, 1, 2, and what C had of its own
    D, E, F go   with the last of them A's shards are deleted whole

The directory knows how many slices borrow a shard.
"""

from collections.abc import Iterable

from timeline.slices import Counts, Shard, Slice

from . import keys
from .commit import Commit
from .garbage import leave
from .record import is_stub
from .store import Store, Table
from .unreadable import readable


def count(rows: Iterable[tuple[bytes, bytes]]) -> Counts:
    """Counts rows of messages, given as (key, value)."""
    total = live = size = 0
    for _, value in rows:
        total += 1
        live += not is_stub(value)
        size += len(value) + keys.MESSAGE_KEY_BYTES
    return Counts(total, live, size)


def part_of(store: Store, piece: Slice, shards: Iterable[Shard]) -> Counts:
    """Counts of a slice's messages in these shards. Blocks: reads all its rows."""
    spans = (keys.span_range(shard.prefix, piece.start_ms, piece.end_ms) for shard in shards)
    return count(row for span in spans for row in readable(store, Table.MESSAGES, *span))


def give_back(commit: Commit, piece: Slice) -> None:
    """Delete an expired slice's rows in borrowed shards. The directory no longer has the slice."""
    for shard in piece.borrowed.values():
        if commit.directory.is_borrowed(shard):
            leave(commit, *keys.span_range(shard.prefix, piece.start_ms, piece.end_ms))
        else:
            abandon(commit, shard)


def abandon(commit: Commit, shard: Shard) -> None:
    """Delete a shard that no slice reads any longer."""
    commit.open_batch.forget_shard(shard)
    leave(commit, *keys.under(shard.prefix))
