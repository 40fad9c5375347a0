"""Messages that bring their own ids: they are found by these, and no id ever means two messages."""

import pytest

from shards import keys
from shards.adopt import SEQ_LIMIT, adopt
from shards.commit import Draft, Known, Outcome, Refused
from shards.record import decode
from shards.recover import Opened, count_pending
from shards.store import Table
from shards.tables import dedupe_from
from shards.verify import verify_counts
from tests.support.memory_store import MemoryStore
from timeline.position import (
    HELD_SHARD,
    SEQ_MAX,
    MessageId,
    at_of,
    id_position,
    id_shard,
    message_id,
    position,
    seq_of,
)
from timeline.slices import DAY_MS

from .timelines import CAPS, NOW, draft, found_in, group, open_at, put, sync, texts, written

NODE = 5
LATER = NOW + DAY_MS
NEW = MessageId(0)


def name_of(seq: int, at_ms: int = LATER, node: int = NODE) -> MessageId:
    """An id as another life of this server gave it."""
    return message_id(position(at_ms, seq), 0, node)


def adopted(opened: Opened, *pairs: tuple[Draft, MessageId], wall_ms: int = NOW) -> list[MessageId | Known]:
    """In a group of its own, durable."""
    answers = adopt(group(opened, wall_ms), [one for one, _ in pairs], [name for _, name in pairs])
    sync(opened, opened.open_batch.seal())
    return answers


def is_consistent(opened: Opened) -> bool:
    return (
        not verify_counts(opened.store, opened.directory)
        and count_pending(opened.reader, opened.horizon.position) == opened.waiting.pending
        and sum(1 for _ in opened.reader.held()) == opened.waiting.held
    )


HIGH = 1 << 40
"""A seq that this server has not come to: it begins at SEQ_GAP."""


def test_a_message_is_found_by_the_id_that_it_brings(opened: Opened) -> None:
    name = name_of(700)
    assert adopted(opened, (draft(LATER, "kept"), name)) == [name]
    for life in (opened, open_at(opened.store)):  # type: ignore[arg-type]
        found = found_in(life, name)
        assert found.row_id != name, "no row here has its key"
        assert (decode(found.value).payload, decode(found.value).id, life.waiting.pending) == (
            b"kept",
            name,
            1,
        )
    assert is_consistent(opened)


def test_answers_come_in_the_order_of_the_drafts(opened: Opened) -> None:
    one, other = name_of(700), name_of(701)
    first, fresh, last = adopted(
        opened, (draft(LATER, "a"), other), (draft(LATER, "b"), NEW), (draft(LATER, "c"), one)
    )
    assert (first, last) == (other, one)
    assert isinstance(fresh, int)
    assert opened.reader.find(fresh) is not None
    assert texts(opened) == ["a", "b", "c"]
    assert opened.waiting.pending == 3
    assert is_consistent(opened)


def test_no_row_gets_an_id_that_was_adopted(opened: Opened) -> None:
    assert opened.horizon.seq < HIGH - 1
    adopted(opened, (draft(LATER), name_of(HIGH)), (draft(LATER), name_of(HIGH - 1)))
    (fresh,) = put(opened, draft(LATER))
    assert seq_of(id_position(fresh)) > HIGH + 1, "above what was adopted and above its rows"
    (again,) = put(open_at(opened.store), draft(LATER))  # type: ignore[arg-type]
    assert seq_of(id_position(again)) > seq_of(id_position(fresh))


def test_it_is_cancelled_and_moved_by_its_id(opened: Opened) -> None:
    gone, moved = name_of(700), name_of(701)
    adopted(opened, (draft(LATER, "gone"), gone), (draft(LATER, "moved"), moved))
    with written(opened) as commit:
        assert commit.cancel(gone).outcome is Outcome.DONE
        assert commit.move(moved, LATER + 5).outcome is Outcome.DONE
    found = found_in(opened, moved)
    assert at_of(found.position) == LATER + 5
    assert texts(opened) == ["-", "-", "moved"]
    assert is_consistent(opened)


def test_in_its_own_group_it_can_be_cancelled_too(opened: Opened) -> None:
    """Its id is known to who brought it, unlike that of a fresh message."""
    name = name_of(700)
    with written(opened) as commit:
        adopt(commit, [draft(LATER)], [name])
        assert commit.cancel(name).outcome is Outcome.DONE
    assert (texts(opened), opened.waiting.pending) == (["-"], 0)
    assert is_consistent(opened)


def test_while_the_clock_is_set_back_it_is_held(opened: Opened) -> None:
    name, key = name_of(700, NOW - 30_000), b"k" * 16
    adopted(opened, (draft(NOW - 30_000, "held", key=key), name), wall_ms=NOW - 60_000)
    found = found_in(opened, name)
    assert (id_shard(found.row_id), opened.waiting.held, opened.waiting.pending) == (HELD_SHARD, 1, 1)
    assert is_consistent(opened)
    with written(opened) as commit:
        commit.release(found.position)
    assert texts(opened) == ["held"]
    assert (opened.waiting.held, opened.waiting.pending) == (0, 1)
    released = found_in(opened, name)
    assert released.id == name


# -- keys


def test_its_key_answers_with_the_id_that_it_brought(opened: Opened) -> None:
    name, key = name_of(700), b"k" * 16
    adopted(opened, (draft(LATER, key=key), name))
    value = opened.store.get(Table.DEDUPE, key)
    assert value is not None
    row = dedupe_from(value)
    found = found_in(opened, name)
    assert (row.id, row.due_ms, row.position) == (name, LATER, found.position)
    assert group(opened).put([draft(LATER, key=key)]) == [Known(name, LATER)]


def test_what_was_taken_in_before_is_answered_as_then(opened: Opened) -> None:
    name, key = name_of(700), b"k" * 16
    adopted(opened, (draft(LATER, key=key), name))
    assert adopted(opened, (draft(LATER, key=key), name)) == [Known(name, LATER)]
    assert opened.waiting.pending == 1


def test_two_of_one_key_are_one_message(opened: Opened) -> None:
    name, key = name_of(700), b"k" * 16
    answers = adopted(opened, (draft(LATER, key=key), name), (draft(LATER, key=key), name_of(701)))
    assert answers == [name, name]
    assert opened.reader.find(name_of(701)) is None
    assert opened.waiting.pending == 1


# -- refusals


def refusal(opened: Opened, *pairs: tuple[Draft, MessageId]) -> tuple[str, int]:
    """Its word and the index of its draft; nothing has been written."""
    commit = group(opened)
    seq = opened.horizon.seq
    with pytest.raises(Refused) as caught:
        adopt(commit, [one for one, _ in pairs], [name for _, name in pairs])
    assert opened.open_batch.is_empty
    assert opened.horizon.seq == seq
    return caught.value.why, caught.value.index


def test_an_id_of_another_node(opened: Opened) -> None:
    good = draft(LATER), name_of(700)
    assert refusal(opened, good, (draft(LATER), name_of(701, node=NODE + 1))) == ("id", 1)


def test_the_upper_half_of_all_seqs_is_not_taken(opened: Opened) -> None:
    assert refusal(opened, (draft(LATER), name_of(SEQ_LIMIT))) == ("id", 0)
    highest = name_of(SEQ_LIMIT - 1)
    assert adopted(opened, (draft(LATER), highest)) == [highest]


def test_an_id_that_is_there_already(opened: Opened) -> None:
    (fresh,) = put(opened, draft(LATER))
    brought = name_of(700)
    adopted(opened, (draft(LATER), brought))
    for name in (fresh, brought):
        assert refusal(opened, (draft(LATER), NEW), (draft(LATER), name)) == ("id", 1)
    group(opened).cancel(brought)
    sync(opened, opened.open_batch.seal())
    assert refusal(opened, (draft(LATER), brought)) == ("id", 0), "whatever became of its message"


def test_an_id_twice_in_one_request(opened: Opened) -> None:
    assert refusal(opened, (draft(LATER), name_of(700)), (draft(LATER), name_of(700))) == ("id", 1)


def test_more_than_may_be_pending(opened: Opened) -> None:
    put(opened, *(draft(LATER) for _ in range(CAPS.pending - 1)))
    pair = (draft(LATER), name_of(700)), (draft(LATER), name_of(701))
    assert refusal(opened, *pair) == ("over-quota", 0)
    adopted(opened, pair[0])
    assert opened.waiting.pending == CAPS.pending


def test_no_room_for_a_slice() -> None:
    opened = open_at(MemoryStore(), max_slices=1)
    put(opened, draft(LATER))
    with written(opened) as commit:
        with pytest.raises(Refused) as caught:
            adopt(commit, [draft(LATER), draft(LATER + 30 * DAY_MS)], [name_of(700), name_of(701)])
        assert (caught.value.why, caught.value.index) == ("over-quota", 1)
    assert opened.waiting.pending == 1
    assert opened.reader.find(name_of(700)) is None
    assert list(opened.store.scan(Table.MOVED, b"", keys.LAST)) == []


def test_imports_leave_half_of_all_seqs() -> None:
    assert 2 * SEQ_LIMIT == SEQ_MAX + 1
