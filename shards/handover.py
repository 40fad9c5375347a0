"""Cutting a slice while the server goes on: what the two steps of a split do, in the writer.

`begin` is the whole logical split, one batch: the slice leaves the directory, its children come in, each
borrowing all the shards that the slice had, own ones and borrowed ones. From then on new messages go to
shards of the children, and what was there is sealed but for the stubs of cancels and moves. Nothing has to
follow: a child that borrows is as good as any other, except that its rows lie elsewhere.

A job copies the sealed rows from a checkpoint taken after `begin`, so it has every row. Those that are
overwritten by stubs meanwhile are *noted* (cuts.py). When the job hands its files back they are ingested
under the children's keys, which nobody reads: a shard is there for readers when it has a row in `shards`.
Noted stubs are put over the ingested rows, most of them in groups of their own, the last of them in the batch
of `switch`, which makes the ingested shards the children's own and deletes what was borrowed.

    slice A(gen 0)  shards 0, 1      begin at t    A(gen 1) borrows 0, 1     B(gen 1, from t) borrows 0, 1
    put in B        B opens shard 2: its number is above all that it borrows, because an id carries it
    ingest          rows under A·1·0, A·1·1, B·1·0, B·1·1: no row in `shards`, not readable
    switch          A has 0, 1; B has 0, 1, 2; nothing is borrowed; the rows under A·0 go

Rows under keys without a row in `shards` are garbage, always: `discard` deletes those of a job.

A refusal comes before anything is changed.
"""

from collections.abc import Mapping, Sequence
from itertools import islice, pairwise

from timeline.position import Position, before
from timeline.slices import Directory, Home, Shard, Slice

from . import keys
from .borrow import Counts, borrowers, is_shared, lessen
from .commit import Commit
from .cuts import Cut
from .dedupe import Refused
from .jobs import PieceRow, SourceRow
from .manifest import MovedFile, child_shards, prefix_of
from .record import is_stub
from .store import Table

GENERATION_MAX = 0xFFFF
PARTS_MAX = 1_000


def far_slice(commit: Commit, home: Home, nearest: Position) -> Slice:
    """The slice, if it is there and starts behind `nearest`. Raises Refused."""
    piece = commit.directory.get(home.start_ms)
    if piece is None or piece.generation != home.generation:
        raise Refused("wrong-state", "the slice is not what it was when the job was made")
    if before(piece.start_ms) <= nearest:
        raise Refused("too-near", "the slice is, or will soon be, in memory")
    return piece


def sources_of(piece: Slice) -> list[SourceRow]:
    """The shards that a job on a slice has to read, by number."""
    return [
        SourceRow(s.home.start_ms, s.home.generation, s.number, s.structure, s.count, s.live)
        for s in sorted(piece.readable(), key=lambda shard: shard.number)
    ]


def begin(
    commit: Commit, home: Home, cuts: Sequence[int], nearest: Position, known: Mapping[int, int]
) -> Cut:
    """Cut the slice at these instants, ms. `known`: rows of borrowed shards in it. Raises Refused."""
    piece = far_slice(commit, home, nearest)
    _check_cuts(commit, piece, cuts)
    bounds = [piece.start_ms, *cuts, piece.end_ms]
    children = [Slice(start, end, piece.generation + 1) for start, end in pairwise(bounds)]
    sources = sources_of(piece)
    shards = {shard.number: shard for shard in piece.readable()}
    rows = {number: known.get(number, shard.count) for number, shard in shards.items()}
    for child in children:
        child.borrowed = {source.shard: shards[source.shard] for source in sources}
    commit.open_group.replaced(piece, children)
    return Cut(
        [PieceRow(child.start_ms, child.end_ms, child.generation) for child in children],
        sources,
        rows,
        {number: shard.prefix for number, shard in shards.items()},
    )


def _check_cuts(commit: Commit, piece: Slice, cuts: Sequence[int]) -> None:
    if any(low >= high for low, high in pairwise([piece.start_ms, *cuts, piece.end_ms])):
        raise Refused("cuts", "must rise and lie inside the slice")
    if not cuts and not piece.borrowed:
        raise Refused("cuts", "are needed: the slice borrows nothing, so there is nothing to copy")
    directory = commit.directory
    if len(cuts) >= PARTS_MAX or len(directory) + len(cuts) > directory.max_slices:
        raise Refused("cuts", f"would make more slices than slices.max allows, {directory.max_slices}")
    if piece.generation == GENERATION_MAX:
        raise Refused("cuts", f"are too many: a slice and what came of it can be cut {GENERATION_MAX} times")


def copy(commit: Commit, rows: Sequence[tuple[bytes, bytes]]) -> None:
    """Put rows of a job's files in place, where files are not ingested. Nobody reads them before `switch`."""
    for key, value in rows:
        commit.row(Table.MESSAGES, key, value)


def overwrite(commit: Commit, cut: Cut, limit: int) -> int:
    """Overwrite ingested rows by the stubs that have been noted, `limit` of them; how many are left.

    Raises Refused if a row is not among the ingested ones.
    """
    waiting = [note for note in cut.noted if note not in cut.overwritten]
    for note in islice(waiting, limit):
        number, place = note
        value = commit.get(Table.MESSAGES, cut.prefixes[number] + keys.place(place))
        if value is None or not is_stub(value):
            # Noted by a group that was lost. If the row is overwritten after all, it is noted again.
            cut.noted.discard(note)
            continue
        child = cut.child_at(place)
        key = prefix_of(child, number) + keys.place(place)
        ingested = commit.get(Table.MESSAGES, key)
        if ingested is None:
            raise Refused("bad-manifest", f"shard {number}: the row at {place:024x} is in no file")
        if not is_stub(ingested):
            spot = child.start_ms, number
            cut.retired[spot] = cut.retired.get(spot, 0) + 1
            commit.row(Table.MESSAGES, key, value)
        cut.overwritten.add(note)
    return max(0, len(waiting) - limit)


def switch(commit: Commit, cut: Cut, files: Sequence[MovedFile], nearest: Position) -> None:
    """The ingested files become what the children hold; what they borrowed goes. Raises Refused."""
    pieces = [far_slice(commit, child.home, nearest) for child in cut.children]
    if any(piece.borrowed.keys() != cut.prefixes.keys() for piece in pieces):
        raise Refused("wrong-state", "the slices do not borrow what they did when the job began")
    overwrite(commit, cut, len(cut.noted))
    # As they are by now: a repair may have come in between.
    structures = {number: shard.structure for number, shard in pieces[0].borrowed.items()}
    made = [child_shards(files, child, structures) for child in cut.children]
    for child, shards in zip(cut.children, made, strict=True):
        for shard in shards:
            shard.retire(cut.retired.get((child.start_ms, shard.number), 0))
    borrowed = dict(pieces[0].borrowed)
    parts = {number: _part(made, number) for number in borrowed}
    _check_parts(commit, pieces, borrowed, parts)
    for piece, shards in zip(pieces, made, strict=True):
        piece.borrowed = {}
        for shard in shards:
            piece.adopt(shard)
        commit.open_group.changed([piece], shards)
    for number, shard in borrowed.items():
        if next(borrowers(commit.directory, shard), None) is None:
            commit.open_group.forget_shard(shard)
            commit.clear(Table.MESSAGES, *keys.shard_range(shard.prefix))
        else:
            lessen(commit, shard, parts[number])
            commit.clear(Table.MESSAGES, *keys.span_range(shard.prefix, cut.start_ms, cut.end_ms))


def _part(made: Sequence[Sequence[Shard]], number: int) -> Counts:
    """What the children have got of a source."""
    shards = [shard for shards in made for shard in shards if shard.number == number]
    return Counts(sum(s.count for s in shards), sum(s.live for s in shards), sum(s.bytes for s in shards))


def _check_parts(
    commit: Commit, pieces: Sequence[Slice], borrowed: Mapping[int, Shard], parts: Mapping[int, Counts]
) -> None:
    """Live rows add up too: to all of a shard that only these slices borrow, else to no more than all."""
    for number, shard in borrowed.items():
        others = [piece for piece in borrowers(commit.directory, shard) if piece not in pieces]
        rows, live, _ = parts[number]
        if (
            live > shard.live
            or rows > shard.count
            or (not others and (rows, live) != (shard.count, shard.live))
        ):
            raise Refused(
                "bad-manifest",
                f"shard {number}: {rows} rows, {live} of them live, in all files, "
                f"{shard.count} and {shard.live} are stored",
            )


def discard(commit: Commit, children: Sequence[PieceRow], sources: Sequence[SourceRow]) -> None:
    """Delete the rows that were ingested for these children and have not become theirs."""
    for child in children:
        for source in sources:
            prefix = prefix_of(child, source.shard)
            if commit.get(Table.SHARDS, prefix) is None:
                commit.clear(Table.MESSAGES, *keys.shard_range(prefix))


def undo_overwrite(cut: Cut) -> None:
    """After `discard`: the stubs have to be put again, over what is ingested next."""
    cut.overwritten.clear()
    cut.retired.clear()


def shared_sources(directory: Directory, piece: Slice) -> list[Shard]:
    """The shards of a slice that others borrow too: their counts are not those of this slice."""
    return [shard for shard in piece.borrowed.values() if is_shared(directory, shard)]
