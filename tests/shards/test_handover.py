"""The two steps of a split in the writer, on a store in RAM: what they write and what they refuse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shards import handover, keys
from shards.borrow import borrowers, counted_key, counting, span_counts
from shards.commit import Commit, Refused
from shards.cuts import Cut, Notes
from shards.expiry import expire
from shards.leavings import clear, left
from shards.manifest import MovedFile, manifest_faults, prefix_of
from shards.memory import MemoryStore, write_table
from shards.recover import Opened, count_pending, read_directory
from shards.store import Table
from shards.verify import verify_counts
from tests.support.mover import move as plain_move
from timeline.position import START, MessageId, Position, before, id_position
from timeline.slices import DAY_MS, Home, Slice

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
            for shard in handover.shared_sources(self.commit, piece)
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


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return Split(tmp_path)


def refusal(work: Any, *arguments: Any) -> str:
    with pytest.raises(Refused) as caught:
        work(*arguments)
    return caught.value.why


def test_begin_is_the_whole_split(split: Split) -> None:
    (parent,) = split.slices()
    cut = split.begin(FAR, FAR + 4_000, FAR + 8_000)
    assert [(p.start_ms, p.end_ms, p.generation) for p in split.slices()] == [
        (parent.start_ms, FAR + 4_000, 1),
        (FAR + 4_000, FAR + 8_000, 1),
        (FAR + 8_000, parent.end_ms, 1),
    ]
    assert all(sorted(piece.borrowed) == [0, 1, 2, 3] and not piece.shards for piece in split.slices())
    assert cut.rows == dict.fromkeys(range(4), 3)
    split.check(ALL)
    put(split.opened, draft(FAR + 5_500, "new"))
    assert list(split.slices()[1].shards) == [4], "above what is borrowed"
    split.check(ALL.replace("5 6", "5 new 6"))


def test_a_message_of_the_same_group_goes_to_a_child(split: Split) -> None:
    (parent,) = split.slices()
    commit = group(split.opened)
    commit.put([draft(FAR, "before")])
    handover.begin(commit, parent.home, [FAR + 4_000], before(NOW), {})
    commit.put([draft(FAR, "after")])
    split.seal()
    split.check(ALL.replace("0 1 ", "0 before after 1 ", 1))
    assert split.store.get(Table.SLICES, keys.slice_key(parent.home)) is None


def test_the_switch_leaves_nothing_borrowed(split: Split) -> None:
    cut = split.begin(FAR, FAR + 4_000)
    files = split.copy(cut)
    split.check(ALL)
    split.switch(cut, files)
    assert not any(piece.borrowed for piece in split.slices())
    assert {key[:8] for key, _ in split.store.scan(Table.SHARDS, b"", keys.LAST)} == {
        keys.slice_key(piece.home) for piece in split.slices()
    }
    split.check(ALL)
    put(split.opened, draft(FAR + 9_500, "new"))
    split.check(ALL.replace("9 10", "9 new 10"))


def test_stubs_before_between_and_after(split: Split) -> None:
    split.cancel(0)
    cut = split.begin(FAR, FAR + 4_000)
    split.cancel(1)
    files = split.copy(cut)
    split.cancel(5)
    split.cancel(9)
    assert handover.replay(group(split.opened), cut, 1) == 2
    split.seal()
    split.cancel(10)
    split.switch(cut, files)
    split.check("- - 2 3 4 - 6 7 8 - - 11")


def test_a_stub_of_a_group_that_failed_is_not_replayed(split: Split) -> None:
    cut = split.begin(FAR, FAR + 4_000)
    files = split.copy(cut)
    cut.noted.add((0, Position((FAR << 48) + 1)))
    split.notes.note(cut.prefixes[0], Position(FAR << 48 | 1))
    split.switch(cut, files)
    split.check(ALL)


def test_a_stub_that_was_lost_and_is_made_again(split: Split) -> None:
    """Lost with its group before a step of the replay, made again between that and the switch."""
    cut = split.begin(FAR, FAR + 4_000)
    files = split.copy(cut)
    split.notes.note(cut.prefixes[0], id_position(split.ids[1]))
    assert len(cut.noted) == 1
    assert handover.replay(group(split.opened), cut, 1_000) == 0
    split.seal()
    split.cancel(1)
    split.switch(cut, files)
    split.check(ALL.replace("1 2", "- 2", 1))


def test_one_child_after_the_other(split: Split) -> None:
    cut = split.begin(FAR, FAR + 4_000, FAR + 8_000)
    split.notes.drop(cut)
    for start_ms in (FAR + 4_000, FAR, FAR + 8_000):
        again = split.begin(start_ms)
        split.check(ALL)
        split.switch(again, split.copy(again))
        split.check(ALL)
    assert not any(piece.borrowed for piece in split.slices())


def test_expiry_takes_a_part_of_what_is_borrowed(split: Split) -> None:
    cut = split.begin(FAR, FAR + 4_000, FAR + 8_000)
    split.notes.drop(cut)
    first, second, third = split.slices()
    shard = first.borrowed[1]
    known = span_counts(split.store, shard.prefix, first.start_ms, first.end_ms)
    expire(group(split.opened), [first], {counted_key(first, shard): known})
    split.seal()
    split.opened.waiting.dispatched(4)
    split.check("4 5 6 7 8 9 10 11")
    assert list(borrowers(split.opened.directory, shard)) == [second, third]
    expire(group(split.opened), [second, third])
    split.seal()
    assert [keys.shard_of(start)[1] for start, _ in left(split.store) if len(start) == 10] == [0, 1, 2, 3]
    commit = group(split.opened)
    for start, end in list(left(split.store)):
        clear(commit, start, end)
    split.seal()
    assert list(left(split.store)) == []
    for table in (Table.MESSAGES, Table.SHARDS, Table.SLICES):
        assert list(split.store.scan(table, b"", keys.LAST)) == []


def test_what_is_refused_changes_nothing(split: Split) -> None:
    (parent,) = split.slices()
    commit = group(split.opened)
    near = before(parent.start_ms)
    assert refusal(handover.begin, commit, parent.home, [FAR + 1], near, {}) == "too-near"
    other = Home(parent.start_ms, 7)
    assert refusal(handover.begin, commit, other, [FAR + 1], before(NOW), {}) == "wrong-state"
    for cuts in ([], [FAR, FAR], [parent.end_ms], list(range(FAR, FAR + 60))):
        assert refusal(handover.begin, commit, parent.home, cuts, before(NOW), {}) == "cuts"
    parent.generation = handover.GENERATION_MAX
    home = parent.home
    assert refusal(handover.begin, commit, home, [FAR + 1], before(NOW), {}) == "cuts"
    parent.generation = 0
    assert commit.open_group.is_empty
    assert split.slices() == [parent]


def test_a_switch_that_is_refused_can_be_tried_again(split: Split) -> None:
    cut = split.begin(FAR, FAR + 4_000)
    files = split.copy(cut)
    split.cancel(3)
    commit = group(split.opened)
    assert refusal(handover.switch, commit, cut, files, before(FAR)) == "too-near"
    assert refusal(handover.switch, commit, cut, files[1:], before(NOW)) == "bad-manifest"
    split.seal()
    split.check("0 1 2 - 4 5 6 7 8 9 10 11")
    handover.discard(group(split.opened), cut.children, cut.sources)
    split.seal()
    handover.undo_replay(cut)
    for child in cut.children:
        start, end = keys.shard_range(prefix_of(child, 0))
        assert list(split.store.scan(Table.MESSAGES, start, end)) == []
    assert refusal(handover.switch, group(split.opened), cut, files, before(NOW)) == "bad-manifest"
    handover.undo_replay(cut)
    split.seal()
    split.switch(cut, split.copy(cut))
    split.check("0 1 2 - 4 5 6 7 8 9 10 11")


def test_a_slice_that_is_gone_cannot_be_switched(split: Split) -> None:
    cut = split.begin(FAR, FAR + 4_000)
    files = split.copy(cut)
    expire(group(split.opened), split.slices()[:1])
    split.seal()
    assert refusal(handover.switch, group(split.opened), cut, files, before(NOW)) == "wrong-state"


def test_discard_leaves_what_is_somebodys(split: Split) -> None:
    cut = split.begin(FAR, FAR + 4_000)
    split.switch(cut, split.copy(cut))
    handover.discard(group(split.opened), cut.children, cut.sources)
    split.seal()
    split.check(ALL)


def test_notes_are_bounded_and_by_span(split: Split) -> None:
    cut = split.begin(FAR, FAR + 4_000)
    notes = Notes(1)
    notes.add(cut)
    prefix = cut.prefixes[0]
    notes.note(prefix, START)
    notes.note(b"another", before(FAR))
    assert (cut.noted, cut.is_overrun) == (set(), False)
    notes.note(prefix, before(FAR))
    assert (cut.noted, cut.is_overrun) == ({(0, before(FAR))}, False)
    notes.note(prefix, before(FAR + 1))
    assert cut.is_overrun
    notes.drop(cut)
    assert notes._cuts == {}


def test_counting_in_steps_adds_up(split: Split) -> None:
    (parent,) = split.slices()
    split.cancel(4)
    for step in (1, 2, 3, 100):
        for shard in parent.shards.values():
            parts = list(counting(split.store, shard.prefix, FAR + 1_000, FAR + 11_000, step))
            whole = span_counts(split.store, shard.prefix, FAR + 1_000, FAR + 11_000)
            assert tuple(map(sum, zip(*parts, strict=True))) == whole


def test_a_start_finds_it_all_again(split: Split) -> None:
    split.begin(FAR, FAR + 4_000)
    split.cancel(2)
    again: Opened = open_at(split.store)
    assert texts(again) == ["0", "1", "-", "3", "4", "5", "6", "7", "8", "9", "10", "11"]
    assert again.pending == COUNT - 1
    assert [sorted(piece.borrowed) for piece in again.directory] == [[0, 1, 2, 3]] * 2
    first, second = again.directory
    assert first.borrowed[0] is second.borrowed[0]
