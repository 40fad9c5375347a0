"""A run of a timeline with an archive, and the account of what a view of both must show.

`World` is a timeline whose messages are put, cancelled, moved, withheld and dropped at random. It
keeps its own account: each message's state and place at each moment, and what each commit of the archive
found. Its commits are those of the job's program, but for what is damaged and compactions: these are by hand.
"""

import random
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from shards.archives import MARKER, MESSAGES, QUARTER_MS, VERSION, DamagedRange, manifest_name
from shards.commit import Caps
from shards.expiry import expire
from shards.state import CANCELLED, DISPATCHED, PENDING, WITHHELD
from spark.columns import SCHEMA
from spark.manifests import read_archive
from spark.parquet import write_file
from spark.publish import Marker
from spark.storage import storage_at
from timeline.position import MessageId, before, id_text
from timeline.slices import DAY_MS

from .archived import Book
from .archives import TIMELINE, Archived
from .stores import NOW, Timeline, record

CAPS = Caps(messages=60, bytes=1 << 20, pending=1 << 40, structure_above=40)


def in_ms(value: object) -> object:
    return round(value.timestamp() * 1_000) if isinstance(value, datetime) else value


def damage(archive: Archived, gap: tuple[int, int]) -> None:
    """The last commit is one that could not read the rows in [gap), ms."""
    made, storage, files = archive.commits[-1], archive.storage, []
    for file in made.files:
        rows = pq.ParquetFile(storage.full(file.path)).read().to_pylist()
        rows = [row for row in rows if not gap[0] <= in_ms(row["at"]) < gap[1]]
        if rows:
            storage.delete(file.path)
            files += [write_file(storage, file.path, MESSAGES, iter([pa.Table.from_pylist(rows, SCHEMA)]))]
    lost_range = DamagedRange(*(f"{before(at):024x}" for at in gap))
    spans = [replace(made.spans[0], damaged=[lost_range]), *made.spans[1:]]
    archive.commits[-1] = replace(made, files=files, spans=spans)
    storage.write(manifest_name(made.number), msgspec.json.encode(archive.commits[-1]))


def compact(archive: Archived, *, keeps: bool = True) -> None:
    """All message files become one a day; the old ones are moved away, or, without `keeps`, gone."""
    storage = archive.storage
    old = read_archive(storage).files()
    for day in sorted({one.path.partition("/")[0] for one in old}):
        mine = [one.path for one in old if one.path.startswith(day)]
        rows = [row for path in mine for row in pq.ParquetFile(storage.full(path)).read().to_pylist()]
        archive.compact(mine, MESSAGES, [{name: in_ms(value) for name, value in row.items()} for row in rows])
        for path in mine:
            storage.move(path, f"_replaced/{path}") if keeps else storage.delete(path)


class Place(NamedTuple):
    at_ms: int
    state: str


Account = dict[str, Place]


class World(Timeline):
    """A timeline that lives at random, and what it knows of itself."""

    def __init__(self, folder: Path, seed: int, start_ms: int = NOW) -> None:
        super().__init__(folder / "data", wall_ms=start_ms, caps=CAPS)
        self.folder = folder
        self.dice = random.Random(seed)
        self.account: Account = {}
        self.moments: list[tuple[str, Account]] = []
        """(backup, the account then)."""
        self.archive = Archived(storage_at(str(folder / "archive")))
        self.book = Book(folder / "archive", TIMELINE)
        self.book.records = self.archive.commits
        self.book.storage.write(MARKER, msgspec.json.encode(Marker(VERSION, TIMELINE)))
        self.archived: dict[str, tuple[Place, int]] = {}
        """The last row of each id in the archive, and the moment at which it was written."""
        self.archives: list[tuple[Path, dict[str, tuple[Place, int]]]] = []
        self.covered_ms = start_ms // QUARTER_MS * QUARTER_MS

    def live(self) -> None:
        """Some minutes go by."""
        dice, wall = self.dice, self.wall_ms
        for _ in range(dice.randrange(5, 25)):
            due = wall + dice.choice(
                [-5_000, 60_000 * dice.randrange(1, 40), 60_000 * dice.randrange(30, 90), 40 * DAY_MS]
            )
            (name,) = self.put(record(due, "x", f"orders/{dice.randrange(3)}"))
            self._note(name, PENDING)
        for name in self._some(PENDING, 4) + self._some(WITHHELD, 2):
            self.cancel(name)
            self._note(name, CANCELLED)
        for name in self._some(PENDING, 5) + self._some(WITHHELD, 2):
            self.move(name, wall + 60_000 * dice.randrange(1, 60))
            self._note(name, PENDING)
        for name in self._some(WITHHELD, 3):
            self.revive(name)
        until = wall + 60_000 * dice.randrange(3, 20)
        # Often in the very millisecond of a message.
        exact = [
            one.at_ms for one in self.account.values() if one.state == PENDING and wall < one.at_ms <= until
        ]
        self.go_on(max([until + dice.randrange(60_000)] if dice.random() < 0.3 or not exact else exact))

    def revive(self, name: MessageId) -> None:
        """Its owner is back."""
        found = self.opened.reader.find(name)
        assert found is not None
        self.begin().revive(found)
        self.sync()
        self._note(name, PENDING)

    def go_on(self, wall_ms: int, share: float = 0.15) -> None:
        """Dispatch passes what is due, and gives a share of it to nobody."""
        passed = [name for name, one in self.account.items() if one.state == PENDING and one.at_ms <= wall_ms]
        lost = {name for name in passed if self.dice.random() < share}
        withheld = self.opened.withheld
        for name in lost:
            found = self.opened.reader.find(MessageId(int(name, 16)))
            assert found is not None
            withheld.note(found.position, found.id, b"somebody")
        self.begin()
        notes = withheld.write(self.opened.open_batch)
        self.sync()
        withheld.written(notes, None)
        self.dispatch(wall_ms)
        for name in passed:
            self.account[name] = self.account[name]._replace(state=WITHHELD if name in lost else DISPATCHED)

    def back_up(self) -> None:
        path = self.folder / f"backup-{len(self.moments)}"
        self.moments.append((self.checkpoint(path), dict(self.account)))

    def write_archive(self) -> None:
        """What a job does: all that is five minutes behind the horizon."""
        end = (self.wall_ms - 300_000) // QUARTER_MS * QUARTER_MS
        if end > self.covered_ms:
            uri, account = self.moments[-1]
            found = {name: one for name, one in account.items() if self.covered_ms <= one.at_ms < end}
            damaged = sorted(one.at_ms for one in found.values())[3:5] if self.dice.random() < 0.3 else []
            gap = (damaged[0], damaged[-1] + 1) if damaged else (0, 0)
            self.book.commit(self, uri, end)
            if damaged:
                damage(self.archive, gap)
            for name, one in found.items():
                if not gap[0] <= one.at_ms < gap[1]:
                    self.archived[name] = one, len(self.moments) - 1
            self.covered_ms = end

    def drop(self) -> None:
        """Retention: the oldest slices go, when they are archived; without an archive at once."""
        directory, until = self.opened.directory, self.wall_ms - 7_200_000
        if self.archive.commits:
            until = min(until, self.covered_ms)
        gone = [piece for piece in directory if piece.end_ms <= until]
        commit = self.begin()
        expire(commit, gone)
        self.sync()
        floor = max([0, *(piece.end_ms for piece in gone)])
        self.account = {name: one for name, one in self.account.items() if one.at_ms >= floor}

    def _some(self, state: str, most: int) -> list[MessageId]:
        """Of those that are withheld, or not due yet: a cancel or move still wins."""
        names = [
            name
            for name, one in self.account.items()
            if one.state == state and (state == WITHHELD or one.at_ms > self.wall_ms)
        ]
        return [MessageId(int(name, 16)) for name in self.dice.sample(names, min(most, len(names)))]

    def _note(self, name: MessageId, state: str) -> None:
        found = self.opened.reader.find(name)
        assert found is not None
        self.account[id_text(name)] = Place(found.position >> 48, state)


def expected(backup: Account, moment: int, archived: dict[str, tuple[Place, int]]) -> Account:
    """What a view shows: of a message in both the archive's row; where that was withheld, the later one."""
    shown = dict(backup)
    for name, (one, written) in archived.items():
        if name not in backup or one.state != WITHHELD or written >= moment:
            shown[name] = one
    return shown
