"""A slice that is cut, on a store in RAM: the steps of a split, done by hand."""

from collections.abc import Sequence
from dataclasses import replace

from shards import handover, keys
from shards.commit import Commit
from shards.handover import Tally
from shards.jobs import SourceRow
from shards.recover import count_pending, read_directory
from shards.store import Table
from shards.tables import slice_value
from shards.verify import verify_counts
from tests.support.memory_store import MemoryStore
from tests.support.mover import pieces_of
from timeline.position import MessageId, before
from timeline.slices import DAY_MS, Counts, Slice

from .timelines import CAPS, NOW, draft, group, open_at, put, sync, texts

FAR = NOW + 10 * DAY_MS
COUNT = 12


class Split:
    """A slice of twelve messages in four shards, and the split of it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.opened = open_at(self.store, caps=replace(CAPS, messages=3), max_slices=500)
        self.ids: list[MessageId] = put(
            self.opened, *[draft(FAR + number * 1_000, str(number)) for number in range(COUNT)]
        )

    @property
    def commit(self) -> Commit:
        return self.opened.commit

    def slices(self) -> list[Slice]:
        return list(self.opened.directory)

    def at(self, at_ms: int) -> Slice:
        piece = self.opened.directory.find(at_ms)
        assert piece is not None
        return piece

    def begin(self, at_ms: int = FAR) -> tuple[Slice, list[SourceRow]]:
        begun = handover.begin(group(self.opened), self.at(at_ms).home, before(NOW))
        self.seal()
        return begun

    def count(self, begun: tuple[Slice, list[SourceRow]], cuts: Sequence[int]) -> list[Counts]:
        """What a job finds in the store as it is now."""
        piece, sources = begun
        named = [{"start_ms": s.start_ms, "generation": s.generation, "shard": s.shard} for s in sources]
        view = {"start_ms": piece.start_ms, "end_ms": piece.end_ms, "sources": named}
        return [Counts(**found) for found in pieces_of(self.store, view, cuts)]

    def cut(self, piece: Slice, cuts: Sequence[int], said: Sequence[Counts]) -> list[Slice]:
        """The commit, with as many rounds as it takes."""
        tally = Tally(piece, cuts)
        while True:
            children = handover.cut(group(self.opened), tally, said, before(NOW))
            self.seal()
            if children is not None:
                return children
            for _ in tally.step(self.store, 2):
                pass

    def split(self, *cuts: int) -> list[Slice]:
        """A whole split of the slice with the first cut, with nothing in between."""
        begun = self.begin(cuts[0])
        return self.cut(begun[0], cuts, self.count(begun, cuts))

    def seal(self) -> None:
        sync(self.opened, self.commit.open_batch.seal())

    def put(self, second: float, text: str) -> MessageId:
        (row,) = put(self.opened, draft(FAR + int(second * 1_000), text))
        self.ids.append(row)
        return row

    def cancel(self, *indexes: int) -> None:
        for index in indexes:
            group(self.opened).cancel(self.ids[index])
            self.seal()

    def check(self, expected: str) -> None:
        """What is there is this, and everybody counts it right: in RAM, on disk, row by row."""
        assert texts(self.opened) == expected.split()
        again = read_directory(self.store, 500)
        for directory in (self.opened.directory, again):
            directory.check()
            assert verify_counts(self.store, directory) == []
        for piece in self.opened.directory:
            stored = self.store.get(Table.SLICES, keys.slice_key(piece.home))
            assert stored == slice_value(piece)
        live = sum(text != "-" for text in expected.split())
        assert count_pending(self.opened.reader, before(NOW)) == live == self.opened.waiting.pending
        for pieces in (self.slices(), list(again)):
            assert sum(piece.live for piece in pieces) == live
            assert sum(piece.count for piece in pieces) == len(expected.split())


ALL = " ".join(map(str, range(COUNT)))
