"""What is noted of a slice that is being cut: rows of its span and its shards, up to a bound."""

from pathlib import Path

from shards.cuts import Notes
from timeline.position import START, Position, before, id_position

from .splits import FAR, Split
from .timelines import group


def test_notes_are_bounded_and_by_span(tmp_path: Path) -> None:
    split = Split(tmp_path)
    cut = split.begin(FAR, FAR + 4_000)
    notes = Notes(1)
    notes.add(cut)
    prefix = cut.prefixes[0]
    notes.note(prefix, START)
    notes.note(b"another", before(FAR))
    notes.note(prefix, before(cut.end_ms))
    assert (cut.noted, cut.is_overrun) == (set(), False)
    notes.note(prefix, before(FAR))
    assert (cut.noted, cut.is_overrun) == ({(0, before(FAR))}, False)
    notes.note(prefix, before(FAR + 1))
    assert cut.is_overrun
    notes.drop(cut)
    assert notes._cuts == {}


def test_a_row_may_be_noted_with_several_cuts_of_its_shard(tmp_path: Path) -> None:
    split = Split(tmp_path)
    split.notes.drop(split.begin(FAR, FAR + 4_000))
    first, second = split.begin(FAR), split.begin(FAR + 4_000)
    assert first.prefixes[1] == second.prefixes[1], "both borrow it"
    split.cancel(3)
    split.cancel(5)
    assert (len(first.noted), len(second.noted)) == (1, 1), "each what lies in its span"
    split.notes.drop(first)
    split.cancel(0)
    split.cancel(7)
    assert (len(first.noted), len(second.noted)) == (1, 2)


def test_what_is_moved_is_noted_where_it_was(tmp_path: Path) -> None:
    split = Split(tmp_path)
    cut = split.begin(FAR, FAR + 4_000)
    group(split.opened).move(split.ids[5], FAR + 500)
    split.seal()
    assert cut.noted == {(1, id_position(split.ids[5]))}
    assert cut.child_at(id_position(split.ids[5])) == cut.children[1]
    assert (cut.start_ms, cut.end_ms) == (cut.children[0].start_ms, cut.children[1].end_ms)


def test_the_cut_belongs_to_what_comes_after_it(tmp_path: Path) -> None:
    cut = Split(tmp_path).begin(FAR, FAR + 4_000)
    assert cut.child_at(before(FAR + 4_000)) == cut.children[1]
    assert cut.child_at(Position(before(FAR + 4_000) - 1)) == cut.children[0]
