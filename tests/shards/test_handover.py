"""The two steps of a split in the writer, on a store in RAM: what they write and what they refuse."""

from pathlib import Path
from typing import Any

import pytest

from shards import handover, keys
from shards.commit import Refused
from shards.expiry import expire
from shards.manifest import prefix_of
from shards.recover import Opened
from shards.store import Table
from timeline.position import Position, before, id_position
from timeline.slices import Home

from .splits import ALL, COUNT, FAR, Split
from .timelines import NOW, draft, group, open_at, put, texts


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
    assert handover.overwrite(group(split.opened), cut, 1) == 2
    split.seal()
    split.cancel(10)
    split.switch(cut, files)
    split.check("- - 2 3 4 - 6 7 8 - - 11")


def test_a_stub_of_a_group_that_failed_is_not_put_over_rows(split: Split) -> None:
    cut = split.begin(FAR, FAR + 4_000)
    files = split.copy(cut)
    cut.noted.add((0, Position((FAR << 48) + 1)))
    split.notes.note(cut.prefixes[0], Position(FAR << 48 | 1))
    split.switch(cut, files)
    split.check(ALL)


def test_a_stub_that_was_lost_and_is_made_again(split: Split) -> None:
    """Lost with its group before a step of the overwriting, made again between that and the switch."""
    cut = split.begin(FAR, FAR + 4_000)
    files = split.copy(cut)
    split.notes.note(cut.prefixes[0], id_position(split.ids[1]))
    assert len(cut.noted) == 1
    assert handover.overwrite(group(split.opened), cut, 1_000) == 0
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
    handover.undo_overwrite(cut)
    for child in cut.children:
        start, end = keys.shard_range(prefix_of(child, 0))
        assert list(split.store.scan(Table.MESSAGES, start, end)) == []
    assert refusal(handover.switch, group(split.opened), cut, files, before(NOW)) == "bad-manifest"
    handover.undo_overwrite(cut)
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


def test_a_start_finds_it_all_again(split: Split) -> None:
    split.begin(FAR, FAR + 4_000)
    split.cancel(2)
    again: Opened = open_at(split.store)
    assert texts(again) == ["0", "1", "-", "3", "4", "5", "6", "7", "8", "9", "10", "11"]
    assert again.pending == COUNT - 1
    assert [sorted(piece.borrowed) for piece in again.directory] == [[0, 1, 2, 3]] * 2
    first, second = again.directory
    assert first.borrowed[0] is second.borrowed[0]
