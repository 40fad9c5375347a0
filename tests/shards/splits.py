"""A slice that is cut, on a store in RAM: the steps of a split, done by hand."""

from dataclasses import replace
from pathlib import Path

import msgspec

from shards import handover
from shards.borrow import span_counts
from shards.commit import Commit
from shards.cuts import Cut
from shards.manifest import MovedFile, manifest_faults
from shards.memory import MemoryStore, write_table
from shards.recover import count_pending, read_directory
from shards.store import Table
from shards.verify import verify_counts
from tests.support.mover import move as plain_move
from timeline.position import MessageId, before
from timeline.slices import DAY_MS, Slice

from .timelines import CAPS, NOW, draft, group, open_at, put, sync, texts

FAR = NOW + 10 * DAY_MS
COUNT = 12


class Split:
    """A slice of twelve messages in four shards, and the split of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.store = MemoryStore()
        self.opened = open_at(self.store, caps=replace(CAPS, messages=3))
        self.ids: list[MessageId] = put(
            self.opened, *[draft(FAR + number * 1_000, str(number)) for number in range(COUNT)]
        )
        self.notes = self.opened.notes
        self.files = 0

    @property
    def commit(self) -> Commit:
        return self.opened.commit

    def slices(self) -> list[Slice]:
        return list(self.opened.directory)

    def begin(self, start_ms: int, *cuts: int) -> Cut:
        piece = self.opened.directory.find(start_ms)
        assert piece is not None
        known = {
            shard.number: span_counts(self.store, shard.prefix, piece.start_ms, piece.end_ms).rows
            for shard in handover.shared_sources(self.commit.directory, piece)
        }
        cut = handover.begin(group(self.opened), piece.home, cuts, before(NOW), known)
        self.notes.add(cut)
        self.seal()
        return cut

    def seal(self) -> None:
        sync(self.opened, self.commit.open_group.seal())

    def copy(self, cut: Cut) -> list[MovedFile]:
        self.files += 1
        folder = self.folder / str(self.files)
        folder.mkdir()
        sources = [msgspec.structs.asdict(source) for source in cut.sources]
        children = [{**msgspec.structs.asdict(child), "sources": sources} for child in cut.children]
        files = msgspec.convert(plain_move(self.store, children, folder, write_table), list[MovedFile])
        assert manifest_faults(files, cut.children, cut.sources, cut.rows) == []
        self.store.ingest(Table.MESSAGES, [folder / file.name for file in files])
        return files

    def switch(self, cut: Cut, files: list[MovedFile]) -> None:
        handover.switch(group(self.opened), cut, files, before(NOW))
        self.seal()
        self.notes.drop(cut)

    def cancel(self, index: int) -> None:
        group(self.opened).cancel(self.ids[index])
        self.seal()

    def check(self, expected: str) -> None:
        assert texts(self.opened) == expected.split()
        for directory in (self.opened.directory, read_directory(self.store, 50)):
            assert verify_counts(self.store, directory) == []
        live = sum(text != "-" for text in expected.split())
        assert count_pending(self.opened.reader, before(NOW)) == live == self.opened.pending


ALL = " ".join(map(str, range(COUNT)))
