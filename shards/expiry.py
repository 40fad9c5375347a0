"""Expiry in the writer: drops the oldest slices whole.

The slices leave the directory and the retention floor moves to the end of the last one. From then on their
messages are gone for all readers, and a position before the floor names nothing. Borrowed shards are given
back (borrow.py). The bytes of the rows, the rows of `dedupe` and `moved` that name them, and what is known of
dropped ones go later, in steps (garbage.py).
"""

from collections.abc import Sequence

from timeline.position import Position
from timeline.slices import Slice

from . import keys
from .borrow import give_back
from .commit import Commit
from .garbage import leave
from .order import clear_index
from .store import Table


def expire(commit: Commit, pieces: Sequence[Slice]) -> list[Slice]:
    """Drop the oldest slices. Returns those that were unchanged since they were chosen."""
    group, directory = commit.open_batch, commit.directory
    found = [(directory.get(piece.start_ms), piece.home) for piece in pieces]
    gone = [piece for piece, home in found if piece is not None and piece.home == home]
    for piece in gone:
        start, end = keys.under(keys.slice_key(piece.home))
        leave(commit, start, end)
        for shard in piece.shards.values():
            group.forget_shard(shard)
        group.clear(Table.SHARDS, start, end)
        group.dropped(piece)
        directory.floor = max(directory.floor, Position(piece.end_ms << 48))
    for piece in gone:
        give_back(commit, piece)
    clear_index(commit, directory.floor)
    group.clear(Table.DISPATCHES, b"", keys.place(directory.floor))
    return gone
