"""A split in the writer, on a store in RAM: what it writes, what it makes of changes, what it refuses."""

import random
from itertools import pairwise
from typing import Any

import pytest

from shards import handover, keys
from shards.commit import Refused
from shards.expiry import expire
from shards.handover import Tally
from shards.jobs import ABORTED, DONE, JobRow, PieceRow, SourceRow
from shards.recover import Opened, read_directory
from shards.store import Table
from shards.verify import repair, verify_counts
from timeline import slices
from timeline.position import before
from timeline.slices import Counts, Home, Shard

from .splits import ALL, COUNT, FAR, Split
from .timelines import NOW, draft, group, open_at, put, texts


@pytest.fixture
def split() -> Split:
    return Split()


def refusal(work: Any, *arguments: Any) -> str:
    with pytest.raises(Refused) as caught:
        work(*arguments)
    return caught.value.why


def test_a_cut_is_the_whole_split(split: Split) -> None:
    (parent,) = split.slices()
    split.split(FAR + 4_000, FAR + 8_000)
    assert [(p.start_ms, p.end_ms, p.generation) for p in split.slices()] == [
        (parent.start_ms, FAR + 4_000, 1),
        (FAR + 4_000, FAR + 8_000, 1),
        (FAR + 8_000, parent.end_ms, 1),
    ]
    assert [sorted(piece.borrowed) for piece in split.slices()] == [[0, 1], [1, 2], [2, 3]], "what they reach"
    assert not any(piece.shards for piece in split.slices())
    assert [piece.part[:2] for piece in split.slices()] == [(4, 4)] * 3
    assert split.store.get(Table.SLICES, keys.slice_key(parent.home)) is None
    split.check(ALL)
    split.put(5.5, "new")
    assert list(split.slices()[1].shards) == [3], "above what is borrowed"
    split.check(ALL.replace("5 6", "5 new 6"))


def test_counts_by_time_are_divided_without_a_read(split: Split) -> None:
    split.cancel(5)
    split.split(FAR + 4_500, FAR + 8_000)
    split.check("0 1 2 3 4 - 6 7 8 9 10 11")
    assert [piece.cells is not None and piece.cells.total for piece in split.slices()] == [5, 2, 4]
    assert split.put(5.5, "new")
    split.cancel(0)
    assert [piece.cells is not None and piece.cells.total for piece in split.slices()] == [4, 3, 4]
    split.check("- 1 2 3 4 - new 6 7 8 9 10 11")


def test_no_message_is_written_and_none_is_deleted(split: Split) -> None:
    rows = list(split.store.scan(Table.MESSAGES, b"", keys.LAST))
    begun = split.begin()
    cuts = [FAR + number * 1_000 for number in range(1, 8)]
    said = split.count(begun, cuts)
    commit = group(split.opened)
    handover.cut(commit, Tally(begun[0], cuts), said, before(NOW))
    commit.open_batch.count()
    assert commit.open_batch.size < 600
    split.seal()
    assert list(split.store.scan(Table.MESSAGES, b"", keys.LAST)) == rows


def test_a_message_of_the_same_group_goes_to_a_child(split: Split) -> None:
    begun = split.begin()
    cuts = [FAR + 4_000]
    said = split.count(begun, cuts)
    commit = group(split.opened)
    commit.put([draft(FAR, "before")])
    assert handover.cut(commit, Tally(begun[0], cuts), said, before(NOW)) is not None
    commit.put([draft(FAR, "after")])
    split.seal()
    split.check(ALL.replace("0 1 ", "0 before after 1 ", 1))
    assert [piece.count for piece in split.slices()] == [6, 8]


def test_what_changes_while_a_job_counts(split: Split) -> None:
    """Stubs before and after the checkpoint, in shards that it counts and later ones; messages; a move."""
    split.cancel(0)
    begun = split.begin()
    split.cancel(1, 5)
    split.put(2.5, "early")
    cuts = [FAR + 4_000, FAR + 8_000]
    said = split.count(begun, cuts)
    split.cancel(6, 9)
    split.put(3.5, "gone")
    split.cancel(COUNT + 1)
    group(split.opened).move(split.ids[10], FAR + 2_000)
    split.seal()
    split.cut(begun[0], cuts, said)
    split.check("- - 2 10 early 3 - 4 - - 7 8 - - 11")
    assert [piece.part[:2] for piece in split.slices()] == [(7, 4), (4, 2), (4, 2)]
    split.cancel(3, COUNT)
    split.check("- - 2 10 - - - 4 - - 7 8 - - 11")


def test_many_messages_meanwhile_are_counted_outside(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "FEW_ROWS", 2)
    begun = split.begin()
    cuts = [FAR + 4_000]
    said = split.count(begun, cuts)
    for number in range(7):
        split.put(3 + number / 4, f"n{number}")
    split.cancel(COUNT + 2)
    tally = Tally(begun[0], cuts)
    assert handover.cut(group(split.opened), tally, said, before(NOW)) is None
    split.commit.put([draft(FAR + 3_900, "same")])
    split.seal()
    split.put(3.95, "later")
    split.cancel(COUNT + 3)
    for _ in tally.step(split.store, 2):
        pass
    assert handover.cut(group(split.opened), tally, said, before(NOW)) is not None
    split.seal()
    split.check("0 1 2 3 n0 n1 - - same later 4 n4 n5 n6 5 6 7 8 9 10 11")


def test_large_messages_are_counted_outside(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few they are: in the writer everybody would wait for them to be read."""
    monkeypatch.setattr(handover, "FEW_BYTES", 200)
    begun = split.begin()
    cuts = [FAR + 4_000]
    said = split.count(begun, cuts)
    split.put(3.5, "x" * 200)
    tally = Tally(begun[0], cuts)
    assert handover.cut(group(split.opened), tally, said, before(NOW)) is None
    split.seal()
    split.put(3.6, "small")
    for _ in tally.step(split.store, 2):
        pass
    assert handover.cut(group(split.opened), tally, said, before(NOW)) is not None
    split.seal()
    split.check(ALL.replace("4", "x" * 200 + " small 4", 1))


def test_what_a_job_has_counted_wrong_keeps_no_group_from_being_written(split: Split) -> None:
    """It cannot be seen that its rows lie in other pieces. The cancel counts; verify finds the numbers."""
    begun = split.begin()
    cuts = [FAR + 4_000]
    first, second = split.count(begun, cuts)
    split.cut(begun[0], cuts, [Counts(), Counts(*map(sum, zip(first, second, strict=True)))])
    split.cancel(1)
    split.put(2.5, "new")
    assert texts(split.opened) == ALL.replace("1 2 3", "- 2 new 3", 1).split()
    assert [piece.part.live for piece in split.slices()] == [0, COUNT]
    faults = verify_counts(split.store, read_directory(split.store, 500))
    repair(split.store, faults)
    assert [piece.part[:2] for piece in read_directory(split.store, 500)] == [(4, 3), (8, 8)]


def test_a_shard_that_cannot_be_read_is_not_counted(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "FEW_ROWS", 0)
    begun = split.begin()
    said = split.count(begun, [FAR + 4_000])
    split.put(1, "new")
    tally = Tally(begun[0], [FAR + 4_000])
    assert handover.cut(group(split.opened), tally, said, before(NOW)) is None
    tally.sealed[0].grow(before(FAR), 10)
    with pytest.raises(Refused, match="can be read"):
        list(tally.step(split.store, 1))


@pytest.mark.long
def test_cuts_of_cuts_by_hundreds(split: Split) -> None:
    """Every slice is cut again and again at random, with changes in between."""
    chance = random.Random(3)
    texts_now = {number * 1_000: str(number) for number in range(COUNT)}
    shard = split.slices()[0].shards[0]
    for step in range(150):
        at_ms = chance.randrange(1, COUNT * 1_000)
        piece = split.at(FAR + at_ms)
        if piece.start_ms < FAR + at_ms < piece.end_ms:
            split.split(FAR + at_ms)
        if step % 3 == 0 and at_ms not in texts_now:
            split.put(at_ms / 1_000, f"n{step}")
            texts_now[at_ms] = f"n{step}"
        if step % 10 == 0:
            split.check(" ".join(text for _, text in sorted(texts_now.items())))
    assert len(split.slices()) > 140
    assert split.opened.directory.is_borrowed(shard)
    borrowers = [p for p in split.slices() if p.borrowed.get(0) is not None and p.borrowed[0] is shard]
    assert 1 <= len(borrowers) <= 60, "only those that reach into it"
    for piece in split.slices():
        expire(group(split.opened), [piece])
        split.seal()
        split.opened.directory.check()
        assert verify_counts(split.store, read_directory(split.store, 500)) == []
    assert list(split.store.scan(Table.SHARDS, b"", keys.LAST)) == []
    assert list(split.store.scan(Table.SLICES, b"", keys.LAST)) == []


def test_hundreds_of_borrowers_of_one_shard(split: Split) -> None:
    """All due in half a second, in one shard; each borrower knows of the others in no time."""
    (first, *_) = put(split.opened, *[draft(FAR + 5_000 + n // 2, f"x{n}") for n in range(60)])
    assert first
    cuts = [FAR + 5_000 + n for n in range(30)]
    split.split(*cuts)
    shards = split.slices()[1].borrowed
    assert all(split.opened.directory.is_borrowed(shard) for shard in shards.values())
    assert len(split.slices()) == 31
    split.check("0 1 2 3 4 5 " + " ".join(f"x{n}" for n in range(60)) + " 6 7 8 9 10 11")


def test_what_is_refused_changes_nothing(split: Split) -> None:
    (parent,) = split.slices()
    near = before(parent.start_ms)
    commit = group(split.opened)
    assert refusal(handover.begin, commit, parent.home, near) == "too-near"
    assert refusal(handover.begin, commit, Home(parent.start_ms, 7), before(NOW)) == "wrong-state"
    begun = split.begin()
    commit = group(split.opened)

    def refused(cuts: list[int], said: list[Counts] | None = None, nearest: int = before(NOW)) -> str:
        return refusal(handover.cut, commit, Tally(parent, cuts), said or [], nearest)

    for cuts in ([], [FAR, FAR], [parent.end_ms], list(range(FAR, FAR + 600))):
        assert refused(cuts) == "cuts"
    assert refused([FAR + 1], nearest=near) == "too-near"
    parent.generation = handover.GENERATION_MAX
    assert refused([FAR + 1]) == "cuts"
    parent.generation = 0
    one, other = split.count(begun, [FAR + 4_000])
    for wrong in (
        [one, other._replace(rows=other.rows - 1)],
        [one._replace(live=one.live + 1), other],
        [one._replace(live=one.live - 1), other],
        [one._replace(live=-1), other._replace(live=other.live + one.live + 1)],
        [one._replace(bytes=one.rows * 22 - 1), other],
    ):
        assert refused([FAR + 4_000], wrong) == "bad-manifest"
    assert commit.open_batch.is_empty
    assert split.slices() == [parent]
    split.cut(parent, [FAR + 4_000], [one, other])
    split.check(ALL)


def test_too_many_changes_end_it(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WATCH_MAX", 2)
    begun = split.begin()
    said = split.count(begun, [FAR + 4_000])
    split.cancel(1, 2)
    assert not begun[0].watch.is_overrun  # type: ignore[union-attr]
    split.cancel(3)
    assert refusal(handover.cut, group(split.opened), Tally(begun[0], [FAR + 4_000]), said, before(NOW)) == (
        "wrong-state"
    )


def test_a_directory_that_was_read_anew_knows_of_no_job(split: Split) -> None:
    begun = split.begin()
    said = split.count(begun, [FAR + 4_000])
    split.opened.directory.replace(read_directory(split.store, 50))
    split.opened.open_batch.forget()
    tally = Tally(begun[0], [FAR + 4_000])
    assert refusal(handover.cut, group(split.opened), tally, said, before(NOW)) == "wrong-state"
    split.split(FAR + 4_000)
    split.check(ALL)


def test_a_slice_that_is_gone_cannot_be_cut(split: Split) -> None:
    begun = split.begin()
    said = split.count(begun, [FAR + 4_000])
    expire(group(split.opened), [begun[0]])
    split.seal()
    tally = Tally(begun[0], [FAR + 4_000])
    assert refusal(handover.cut, group(split.opened), tally, said, before(NOW)) == "wrong-state"


def test_a_start_finds_it_all_again(split: Split) -> None:
    split.split(FAR + 4_500)
    split.cancel(2)
    again: Opened = open_at(split.store)
    assert texts(again) == ["0", "1", "-", "3", "4", "5", "6", "7", "8", "9", "10", "11"]
    assert again.waiting.pending == COUNT - 1
    assert [sorted(piece.borrowed) for piece in again.directory] == [[0, 1], [1, 2, 3]]
    first, second = again.directory
    assert first.borrowed[1] is second.borrowed[1]
    assert [piece.part[:2] for piece in again.directory] == [(5, 4), (7, 7)]


# -- what older versions have left


def test_what_a_job_of_an_older_version_has_copied(split: Split) -> None:
    piece, source = PieceRow(FAR, FAR + 5, 1), SourceRow(FAR, 0, 3, 0)
    row = JobRow("j", "split", "caller", "moving", 0, 0, [piece], [[source]], 0, [piece])
    assert list(row.copies) == [Shard(Home(FAR, 1), 3).prefix]
    row.state = ABORTED
    assert len(list(row.copies)) == 1
    row.state = DONE
    assert list(row.copies) == []


def test_random_splits_against_a_recount() -> None:
    """Puts, cancels and moves at any moment of a split: what the writer says is what a recount finds."""
    for seed in range(30):
        chance = random.Random(seed)
        split = Split()
        begun: Any = None
        said: Any = None
        cuts: list[int] = []
        for _ in range(60):
            match chance.randrange(7):
                case 0 | 1:
                    split.put(chance.randrange(12_000) / 1_000, "p")
                case 2 | 3:
                    split.cancel(chance.randrange(len(split.ids)))
                case 4:
                    commit = group(split.opened)
                    commit.move(chance.choice(split.ids), FAR + chance.randrange(12_000))
                    split.seal()
                case 5 if begun is None:
                    begun = split.begin(chance.choice(split.slices()).start_ms)
                case 5 if said is None:
                    piece = begun[0]
                    inside = range(max(FAR, piece.start_ms + 1), min(FAR + 12_000, piece.end_ms))
                    cuts = sorted(chance.sample(inside, min(len(inside), 3)))
                    said = split.count(begun, cuts)
                case 5 if not cuts:
                    begun[0].watch = begun = said = None
                case 5:
                    split.cut(begun[0], cuts, said)
                    begun = said = None
                case _:
                    again = read_directory(split.store, 500)
                    assert verify_counts(split.store, again) == []
                    assert [(p.count, p.live) for p in again] == [(p.count, p.live) for p in split.slices()]
        assert all(low.end_ms <= high.start_ms for low, high in pairwise(split.slices()))
