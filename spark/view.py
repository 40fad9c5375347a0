"""One view of a backup and an archive: each message once, whichever of the two is older.

    archive     everything at positions that it covers, up to E          (rows never change)
    backup      everything up to its horizon H, and what was pending then

A row of the backup gives way where the archive has that message:

- at or before H: if the archive covers its position. What the archive could not read there (damaged) is not
  covered.
- anywhere: if the archive has its id beyond H (`Beyond`). The message has been delivered, cancelled, or moved
  to an earlier time since. One that was moved to a time after E is in neither, and stays as it was.

Only *withheld* messages come twice: archived where dispatch gave them to nobody, then again, later, under
their old id, or cancelled where they were. So all ids that are withheld in the archive, and those that the
backup has withheld or where the archive is damaged, are looked up in both (`view_of`): the last row counts.
Manifests say which files have withheld rows; in the others only row groups whose ids reach so far back are
read.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shards import keys
from shards.archived import archive_row
from shards.archives import MESSAGES
from shards.errors import Corrupt
from shards.record import decode, id_at, is_moved
from shards.state import WITHHELD, Journal, state_of
from shards.store import Table
from shards.unreadable import readable, tried
from timeline.position import HELD_SHARD, ID_BYTES, Position, at_of, id_text, parse_id

from .archived import (
    TIME_END,
    Piece,
    between,
    last_rows,
    read_piece,
    standing,
    table_schema,
    withheld_in,
)
from .errors import SparkError
from .manifests import READS, Archive, over
from .pushdown import Predicate
from .snapshot import Snapshot
from .storage import Storage

IDS_MAX = 50_000_000
"""Ids beyond the horizon that a task can hold, 16 bytes each."""
LOOKED_UP_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class View:
    """What a task must know to leave out what another row stands for."""

    after_ms: int = TIME_END
    """`at` of the backup's horizon."""
    beyond: tuple[Piece, ...] = ()
    """Files that may have rows beyond it."""
    last: dict[str, int] = field(default_factory=dict)
    """By id: a withheld row of the archive before that `at` does not count."""
    kept: tuple[tuple[Position, int], ...] = ()
    """(position, shard number) of rows of the backup that count where the archive covers them; rising."""


@dataclass(frozen=True, slots=True)
class Known:
    """A message in the backup."""

    place: Position
    number: int
    at_ms: int
    state: str
    is_covered: bool
    """Whether it is left to the archive, if nothing else is said."""


def view_of(storage: Storage, archive: Archive, snapshot: Snapshot | None, node: int) -> View:
    """Compare the two. `snapshot` None: there is only the archive. Raises SparkError, StorageFailed."""
    row = None if snapshot is None else archive_row(snapshot.store.get)
    if row is not None and archive.commits and row.timeline != archive.commits[0].timeline:
        raise SparkError(f"{storage.name} is the archive of another timeline than the backup's")
    files = archive.files()
    after_ms = TIME_END if snapshot is None else at_of(snapshot.cursor.horizon)
    withheld = withheld_in(storage, files, LOOKED_UP_MAX)
    known = _looked_up(archive, snapshot, node, withheld) if snapshot is not None else {}
    since = min([*withheld.values(), *(one.at_ms for one in known.values())], default=TIME_END)
    found = last_rows(storage, over(files, since, TIME_END), {*withheld, *known}, since)
    last = {name: found[name][0] for name in withheld}
    kept = []
    for name, one in known.items():
        at_ms, state = found.get(name, (-1, WITHHELD))
        is_same = one.at_ms == at_ms and one.state == WITHHELD
        if state != WITHHELD or at_ms >= after_ms or one.at_ms < at_ms or is_same:
            continue
        last[name] = one.at_ms + 1
        if one.is_covered:
            kept.append((one.place, one.number))
    beyond = over(files, after_ms, TIME_END) if snapshot is not None else []
    if sum(file.rows for file in beyond) > IDS_MAX:
        text = f"has more than {IDS_MAX:,} messages beyond the horizon of the backup: take a newer backup"
        raise SparkError(f"{storage.name} {text}")
    pieces = tuple(Piece(file.path, file.rows) for file in beyond)
    return View(after_ms, pieces, last, tuple(sorted(kept)))


def _looked_up(archive: Archive, snapshot: Snapshot, node: int, withheld: Iterable[str]) -> dict[str, Known]:
    """What the backup has of messages that may be in both, by id."""
    reader, horizon, journal = snapshot.reader, snapshot.cursor.horizon, Journal(snapshot.store)
    found: dict[str, Known] = {}

    def add(name: str, place: Position, number: int, value: bytes) -> None:
        is_held = number == HELD_SHARD
        state, _ = state_of(place, decode(value), horizon, journal, is_held=is_held, with_time=False)
        is_covered = not is_held and place <= horizon and archive.covers(at_of(place))
        found[name] = Known(place, number, TIME_END if is_held else at_of(place), state, is_covered)
        if len(found) > LOOKED_UP_MAX:
            raise SparkError(f"more than {LOOKED_UP_MAX:,} messages are withheld or in damaged ranges")

    waiting = readable(snapshot.store, Table.META, *keys.under(keys.WITHHELD))
    for name in chain(withheld, (value[:ID_BYTES].hex() for _, value in waiting)):
        with suppress(Corrupt):
            if one := reader.find(parse_id(name)):
                add(name, *one.address, one.value)
    ranges = list(archive.damaged)
    ranges += [
        (note.owed or note.first, note.last) for note, is_readable in tried(snapshot.store) if is_readable
    ]
    for start, end in ranges:
        for place, number, value in reader.read(start, min(end, Position(horizon + 1))):
            if not is_moved(value):
                add(id_text(id_at(place, number, node, decode(value).id)), place, number, value)
    return found


def read_archived(
    storage: Storage, piece: Piece, names: Sequence[str], predicate: Predicate, view: View
) -> Iterator[pa.RecordBatch]:
    """The messages of a piece that are wanted, and for which no later row stands."""
    names = table_schema(MESSAGES, names).names
    is_doubtful = piece.has_withheld and bool(view.last)
    needed = dict.fromkeys([*names, *["topic"] * predicate.has_topic, *["id", "at", "state"] * is_doubtful])
    for batch in read_piece(storage, piece, MESSAGES, list(needed), predicate.archived()):
        some = batch
        if predicate.has_topic:
            wanted = [topic for topic in batch["topic"].unique().to_pylist() if predicate.wants_topic(topic)]
            some = some.filter(pc.is_in(batch["topic"], pa.array(wanted, pa.string())))
        if is_doubtful:
            some = standing(some, view.last)
        yield some.select(names)


class Beyond:
    """Ids of the archive beyond the backup's horizon, sorted."""

    def __init__(self, storage: Storage, view: View) -> None:
        where = between("at", view.after_ms, TIME_END)

        def read(piece: Piece) -> list[NDArray[Any]]:
            return [packed(batch[0]) for batch in read_piece(storage, piece, MESSAGES, ("id",), where)]

        with ThreadPoolExecutor(READS) as threads:
            ids = [*chain.from_iterable(threads.map(read, view.beyond))]
        self._ids = np.sort(np.concatenate(ids)) if ids else np.empty(0, "S16")

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose ids are not among them."""
        if not len(self._ids):
            return batch
        mine = packed(batch["id"])
        places = np.minimum(np.searchsorted(self._ids, mine), len(self._ids) - 1)
        return batch.filter(pa.array(self._ids[places] != mine))


def packed(ids: pa.Array) -> NDArray[Any]:
    """Ids as 16 bytes each, which sort as the texts do."""
    digits = np.frombuffer("".join(ids.to_pylist()).encode(), np.uint8)
    halves = np.where(digits >= ord("a"), digits - (ord("a") - 10), digits - ord("0"))
    return (halves[::2] << 4 | halves[1::2]).astype(np.uint8).view("S16")
