"""A decision in steps: what it comes to is what it comes to in one go, and what has been found out holds."""

import pytest

from shards.adopt import adopt_in_steps
from shards.commit import Caps, Known, Refused
from shards.record import decode
from shards.recover import Opened, count_pending
from shards.steps import STEP, Bits, Steps, at_once
from shards.store import Table
from tests.support.memory_store import MemoryBatch, MemoryStore
from timeline.position import END, MessageId, Position, at_of, id_position, message_id, position, seq_of
from timeline.slices import DAY_MS

from .timelines import CAPS, NOW, draft, group, open_at, put, sync, texts

ROOMY = Caps(messages=1_000, bytes=1 << 20, pending=1_000, structure_above=10_000)


def bits(fault: Exception | None = None) -> Bits[str]:
    yield
    yield
    if fault is not None:
        raise fault
    return "answer"


def test_steps_are_counted_by_their_yields() -> None:
    steps = Steps(bits())
    assert [steps.step() for _ in range(3)] == [True, True, False]
    assert steps.answer == "answer"
    assert at_once(bits()) == "answer"


def test_what_a_step_raises_is_raised() -> None:
    steps = Steps(bits(KeyError("x")))
    assert steps.step()
    assert steps.step()
    with pytest.raises(KeyError):
        steps.step()
    with pytest.raises(KeyError):
        at_once(bits(KeyError("x")))


def written(opened: Opened, table: Table) -> list[bytes]:
    """The keys of a table in the order in which the last batch has them."""
    store = opened.store
    assert isinstance(store, MemoryStore)
    batch = store.log[-1]
    assert isinstance(batch, MemoryBatch)
    return [key for kind, key, value, _ in batch.changes if kind is table and value is not None]


def test_many_are_placed_in_the_order_of_their_keys_and_answered_in_their_own() -> None:
    opened = open_at(MemoryStore(), caps=ROOMY)
    dues = [NOW + 1 + 7_919 * n % 400 for n in range(300)]
    drafts = [
        draft(due, f"{n}", key=bytes([255 - n % 256, n // 256]) * 8, fingerprint=b"f" * 16)
        for n, due in enumerate(dues)
    ]
    group(opened)
    steps = Steps(opened.open_batch.in_order(opened.commit.put_in_steps(drafts)))
    count = 1
    while steps.step():
        count += 1
    assert count >= 4 * 300 // STEP, "to look keys up, to place, to put the rows of both"
    sync(opened, opened.open_batch.seal())
    assert [at_of(id_position(name)) for name in steps.answer] == dues
    assert [seq_of(id_position(name)) for name in steps.answer] == sorted(
        seq_of(id_position(name)) for name in steps.answer
    )
    found = [opened.reader.find(name) for name in steps.answer]
    assert [decode(one.value).payload for one in found if one is not None] == [b"%d" % n for n in range(300)]
    for table in (Table.MESSAGES, Table.DEDUPE):
        assert written(opened, table) == sorted(written(opened, table))
        assert len(written(opened, table)) == 300
    assert opened.waiting.pending == count_pending(opened.reader, opened.horizon.position) == 300
    group(opened)
    again = at_once(opened.commit.put_in_steps(drafts))
    assert again == [Known(name, due) for name, due in zip(steps.answer, dues, strict=True)]


def test_messages_keep_their_order() -> None:
    opened = open_at(MemoryStore(), caps=ROOMY)
    drafts = [draft(due, f"{n}") for n, due in enumerate([NOW + 9, 0, NOW - 3, NOW + 9, 0])]
    group(opened)
    names = at_once(opened.commit.put_in_steps(drafts, step=2))
    sync(opened, opened.open_batch.seal())
    assert texts(opened) == ["1", "2", "4", "0", "3"]
    assert isinstance(names[1], int)
    assert at_of(id_position(names[1])) == NOW


def test_what_fails_half_way_leaves_all_its_rows_to_be_undone(opened: Opened) -> None:
    """The group's mark has to tell that something was written."""
    group(opened)
    mark = opened.open_batch.mark

    def bits() -> Bits[None]:
        opened.commit.row(Table.META, b"b", b"1")
        opened.commit.row(Table.META, b"a", b"1")
        opened.commit.row(Table.META, b"b", None)
        yield
        raise KeyError

    steps = Steps(opened.open_batch.in_order(bits()))
    assert steps.step()
    assert opened.open_batch.mark[0] == mark[0] + 3
    with pytest.raises(KeyError):
        steps.step()
    assert opened.open_batch.mark[0] == mark[0] + 3
    opened.commit.row(Table.META, b"c", b"1")
    sync(opened, opened.open_batch.seal())
    assert [opened.store.get(Table.META, key) for key in (b"a", b"b", b"c")] == [b"1", None, b"1"]


def test_of_one_key_the_last_change_counts(opened: Opened) -> None:
    group(opened)

    def bits() -> Bits[None]:
        for value in (b"1", None, b"2"):
            opened.commit.row(Table.META, b"b", value)
            opened.commit.row(Table.META, b"a", b"x")
            yield
        opened.commit.row(Table.META, b"c", b"3")
        opened.commit.open_batch.clear(Table.META, b"c", b"d")
        opened.commit.row(Table.META, b"a", None)

    at_once(opened.open_batch.in_order(bits()))
    sync(opened, opened.open_batch.seal())
    assert [opened.store.get(Table.META, key) for key in (b"a", b"b", b"c")] == [None, b"2", None]


def test_a_group_that_was_dropped_half_way_is_not_touched_again(opened: Opened) -> None:
    group(opened)
    bits = opened.open_batch.in_order(opened.commit.put_in_steps([draft(NOW + 5)] * 3, step=1))
    for _ in range(3):
        next(bits)
    opened.open_batch.forget()
    opened.commit.row(Table.META, b"a", b"1")
    bits.close()
    assert opened.open_batch.mark == (1, 0, 0)


def test_it_is_refused_before_anything_is_placed() -> None:
    opened = open_at(MemoryStore(), caps=CAPS, max_slices=2)
    group(opened)
    steps = Steps(opened.commit.put_in_steps([draft(NOW + n * DAY_MS) for n in range(4)], step=1))
    with pytest.raises(Refused) as refused:
        steps.step()
    assert (refused.value.index, refused.value.why) == (2, "over-quota")
    assert opened.open_batch.is_empty
    assert opened.waiting.pending == 0


def test_a_key_of_another_request_is_named(opened: Opened) -> None:
    put(opened, draft(NOW + 5, key=b"k" * 16, fingerprint=b"1" * 16))
    group(opened)
    wanted = [draft(NOW + 5), draft(NOW + 5), draft(NOW + 5, key=b"k" * 16, fingerprint=b"2" * 16)]
    with pytest.raises(Refused) as refused:
        at_once(opened.commit.put_in_steps(wanted, step=1))
    assert refused.value.index == 2
    assert opened.open_batch.is_empty


def test_what_is_reserved_is_touched_before_it_is_placed(opened: Opened) -> None:
    """The clock goes on, and the horizon may not: there will be rows at what was "now" in the first step."""
    group(opened)
    steps = Steps(opened.commit.put_in_steps([draft(NOW + 60_000), draft(0), draft(NOW + 3)], step=1))
    seq = opened.horizon.seq
    assert steps.step()
    assert opened.open_batch.is_empty
    assert opened.open_batch.made.floor == position(NOW, seq + 1)
    assert steps.step()
    opened.open_batch.resume(NOW + 10)
    while steps.step():
        pass
    far, now, soon = (id_position(name) for name in steps.answer)
    assert [at_of(place) for place in (far, now, soon)] == [NOW + 60_000, NOW, NOW + 3]
    assert opened.open_batch.made.floor == position(NOW, seq + 1) < now
    assert opened.horizon.clock_ms == NOW + 10


def test_what_is_held_back_touches_nothing_and_keeps_its_key() -> None:
    opened = open_at(MemoryStore(), wall_ms=NOW + 60_000)
    group(opened, NOW)
    wanted = [draft(NOW + 5_000, f"{n}", key=bytes([n]) * 16, fingerprint=b"f" * 16) for n in range(3)]
    first = at_once(opened.commit.put_in_steps(wanted, step=1))
    assert opened.open_batch.made.floor is None
    assert opened.waiting.held == 3
    again = at_once(opened.commit.put_in_steps(wanted, step=1))
    assert again == [Known(name, NOW + 5_000) for name in first if isinstance(name, int)]


def test_those_with_ids_of_their_own_stay_below_too() -> None:
    opened = open_at(MemoryStore(), caps=ROOMY)
    group(opened)
    count = 2 * STEP + 1
    names = [message_id(position(NOW + 1, 1_000 + n), 0, 5) for n in range(count)]
    drafts = [draft(NOW + 5_000 - n) for n in range(count)]
    steps = Steps(adopt_in_steps(opened.commit, drafts, names))
    floors: list[Position | None] = []
    while steps.step():
        floors.append(opened.open_batch.made.floor)
    lowest = NOW + 5_000 - count + 1
    seqs = [seq_of(floor or END) for floor in floors]
    assert [at_of(floor or END) for floor in floors][-2:] == [lowest, lowest]
    assert seqs[-1] == seqs[-2] == opened.horizon.seq - count + 1
    assert steps.answer == names
    sync(opened, opened.open_batch.seal())
    assert all(opened.reader.find(MessageId(name)) is not None for name in names)
