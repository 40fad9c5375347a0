"""Imported messages that keep their ids: an export with ids, taken back in.

An id names the row that it was first written to. An imported id names no row here, so its message is stored
like a moved one: the record carries the id and `moved` says where it lies. Three rules keep an id from ever
meaning two messages:

  - an id that is known here is refused, whatever became of its message;
  - the row that it names must never be written. So seq rises above the id's seq: rows are only written with
    a higher one. An id may use the lower half of all seqs, so that no import can use up the rest;
  - an id of another timeline is refused: its rows are another server's.
"""

from collections.abc import Sequence

from timeline.position import SEQ_BITS, MessageId, id_node, id_position, seq_of

from .commit import Commit
from .dedupe import Refused, woven
from .draft import AS_EVER, Draft, Known, Terms
from .record import owner_of, with_id
from .steps import STEP, Bits, at_once
from .store import Table
from .tables import DedupeRow, dedupe_value

SEQ_LIMIT = 1 << SEQ_BITS - 1


def adopt(
    commit: Commit, drafts: Sequence[Draft], names: Sequence[MessageId], terms: Terms = AS_EVER
) -> list[MessageId | Known]:
    """Place all drafts of one owner under these ids (0: a new one), or none; returns the ids in their order.

    Raises Refused, naming the first draft that cannot be placed.
    """
    return at_once(adopt_in_steps(commit, drafts, names, terms))


def adopt_in_steps(
    commit: Commit, drafts: Sequence[Draft], names: Sequence[MessageId], terms: Terms = AS_EVER
) -> Bits[list[MessageId | Known]]:
    known = yield from commit.known_in_steps(drafts, terms)
    fresh = [index for index in range(len(drafts)) if index not in known]
    owner = owner_of(drafts[0].value) if drafts else b""
    commit.check_pending(len(fresh), owner, sum([len(drafts[index].value) for index in fresh]))
    yield from _check(commit, [(index, names[index]) for index in fresh if names[index]])
    group = commit.open_batch
    reserved = group.reserve([drafts[index] for index in fresh])
    group.stay_below(reserved)
    placed: list[MessageId | Known] = []
    size = 0
    for count, (index, slot) in enumerate(zip(fresh, reserved, strict=True)):
        if count and not count % STEP:
            yield
        draft, name = drafts[index], names[index]
        value = with_id(draft.value, name, draft.due_ms) if name else draft.value
        size += len(value)
        if name:
            row = commit.rehome(name, value, draft.due_ms, slot, None)
            placed.append(name)
            if draft.key:
                extra = group.extra_of(draft.key)
                seen = DedupeRow(name, draft.fingerprint, draft.due_ms, id_position(row), extra)
                commit.row(Table.DEDUPE, draft.key, dedupe_value(seen))
        else:
            placed += group.place([draft], [slot])
    commit.placed(len(fresh), owner, size)
    return woven(placed, known, len(drafts))


def _check(commit: Commit, named: Sequence[tuple[int, MessageId]]) -> Bits[None]:
    """Refuse the first id that cannot be taken; else raise seq above all of them."""
    seen: set[MessageId] = set()
    highest = 0
    for count, (index, name) in enumerate(named):
        if count and not count % STEP:
            yield
        seq = seq_of(id_position(name))
        if id_node(name) != commit.open_batch.node:
            raise Refused("id", "belongs to another timeline (store.number)", index)
        if seq >= SEQ_LIMIT:
            raise Refused("id", "is beyond the ids that can be taken over", index)
        if name in seen or commit.find(name) is not None:
            raise Refused("id", "is taken: another message has this id", index)
        seen.add(name)
        highest = max(highest, seq)
    commit.horizon.seq = max(commit.horizon.seq, highest)
