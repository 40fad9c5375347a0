"""What a group decides: places, quotas, keys, cancels, moves, the clock set back, expiry."""

import pytest

from shards import keys
from shards.commit import Caps, Control, Draft, Known, Outcome, Refused
from shards.errors import Corrupt, StoreFailed
from shards.expiry import expire
from shards.fields import Record
from shards.group_commit import GroupCommit
from shards.record import CANCELLED, MOVED, decode, encode
from shards.recover import Opened, count_pending
from shards.store import Table
from shards.tables import cursor_from
from shards.verify import verify_counts
from tests.support.memory_store import MemoryStore
from tests.support.stores import rewrite
from timeline.position import HELD_SHARD, MessageId, Position, at_of, before, id_position, id_shard, seq_of
from timeline.slices import DAY_MS

from .timelines import (
    CAPS,
    NOW,
    QUARTER,
    draft,
    found_in,
    group,
    open_at,
    piece_at,
    put,
    sync,
    texts,
    written,
)


def outcome(control: Control) -> Outcome:
    return control.outcome


def consistent(opened: Opened) -> bool:
    counted = count_pending(opened.reader, opened.horizon.position)
    held = sum(1 for _ in opened.reader.held())
    return (
        not verify_counts(opened.store, opened.directory)
        and counted == opened.waiting.pending
        and held == opened.waiting.held
    )


# -- put


def test_a_message_is_placed_at_its_due_or_now(opened: Opened) -> None:
    late, none, future = put(opened, draft(NOW - 5), draft(0), draft(NOW + 5))
    assert [at_of(id_position(m)) for m in (late, none, future)] == [NOW, NOW, NOW + 5]
    assert id_position(late) < id_position(none)
    assert opened.waiting.pending == 3
    assert consistent(opened)


def test_full_shards_are_followed_by_the_next(opened: Opened) -> None:
    ids = put(opened, *(draft(NOW + 5) for _ in range(7)))
    assert [id_shard(m) for m in ids] == [0, 0, 0, 1, 1, 1, 2]
    assert consistent(opened)


def test_a_shard_is_full_in_bytes_too() -> None:
    opened = open_at(MemoryStore(), caps=Caps(messages=100, bytes=60, pending=100, structure_above=100))
    ids = put(opened, *(draft(NOW + 5, "x" * 40) for _ in range(3)))
    assert [id_shard(m) for m in ids] == [0, 1, 2]


def test_a_busy_slice_keeps_structures_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeline.structures.LEARN_TOPICS", 1)
    opened = open_at(MemoryStore(), caps=Caps(messages=100, bytes=1 << 20, pending=100, structure_above=2))
    put(opened, draft(NOW + 5, "1", "a"), draft(NOW + 5, "2", "b"))
    ids = put(opened, *(draft(NOW + 5, "x", topic) for topic in ("a", "b", "a")))
    assert [id_shard(m) for m in ids] == [1, 2, 1]
    again = open_at(opened.store, caps=opened.commit.caps)  # type: ignore[arg-type]
    assert [again.reader.structures.pattern(n) for n in (1, 2)] == ["a", "b"]
    piece = piece_at(again, NOW + 5)
    assert [piece.shards[n].structure for n in range(3)] == [0, 1, 2]


def test_what_is_posted_stands_in_structure_0_however_busy_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that who reads for an endpoint, whatever the topics, reads that and no more."""
    monkeypatch.setattr("timeline.structures.LEARN_TOPICS", 1)
    opened = open_at(MemoryStore(), caps=Caps(messages=100, bytes=1 << 20, pending=100, structure_above=1))
    put(opened, draft(NOW + 5, "1", "a"))
    posted = encode(Record(b"a", b"x", NOW + 5, deliver_to=b"billing"))
    ids = put(opened, draft(NOW + 5, "2", "a"), Draft(NOW + 5, b"a", posted), draft(NOW + 5, "3", "a"))
    assert [id_shard(m) for m in ids] == [1, 0, 1]


def test_a_slice_opens_a_bounded_number_of_structures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeline.structures.LEARN_TOPICS", 1)
    monkeypatch.setattr("shards.open_batch.SLICE_STRUCTURES", 3)
    opened = open_at(MemoryStore(), caps=Caps(messages=100, bytes=1 << 20, pending=100, structure_above=1))
    ids = put(opened, *(draft(NOW + 5, "x", topic) for topic in "abcdefc"))
    assert [id_shard(m) for m in ids] == [0, 1, 2, 0, 0, 0, 2]


def test_a_slice_with_as_many_shards_as_it_can_have_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shards.open_batch.SHARDS_MAX", 4)
    opened = open_at(MemoryStore(), caps=Caps(messages=1, bytes=1 << 20, pending=100, structure_above=1_000))
    for text in "abc":
        put(opened, draft(NOW + 5, text))
    opened.open_batch.forget()
    with pytest.raises(Refused, match="shards") as caught:
        group(opened).put([draft(NOW + 5, "d")])
    assert (caught.value.why, caught.value.index) == ("over-quota", 0)
    assert texts(opened) == ["a", "b", "c"]


def test_the_floor_of_a_group_is_the_lowest_place_that_it_touches() -> None:
    made = GroupCommit()
    floors = []
    for place in (5, 3, 9, 3):
        made.touch(Position(place))
        floors.append(made.floor)
    assert floors == [5, 3, 3, 3]


def test_a_group_tells_how_many_rows_it_has(opened: Opened) -> None:
    commit = group(opened)
    commit.put([draft(NOW + 5), draft(NOW + 6)])
    made = sync(opened, opened.open_batch.seal())
    assert made.rows == 5, "two messages, their shard, its slice, the cursor"


def test_what_is_pending_is_bounded(opened: Opened) -> None:
    put(opened, *(draft(NOW + 5) for _ in range(99)))
    commit = group(opened)
    with pytest.raises(Refused, match="100 messages"):
        commit.put([draft(NOW + 5), draft(NOW + 5)])
    assert len(commit.put([draft(NOW + 5, key=b"k" * 16)])) == 1
    (again,) = commit.put([draft(NOW + 5, key=b"k" * 16)])
    assert isinstance(again, Known), "what was accepted before needs no room"


def test_a_group_holds_the_horizon_below_what_it_touches(opened: Opened) -> None:
    (message,) = put(opened, draft(NOW + 50))
    commit = group(opened)
    commit.put([draft(NOW + 90), draft(NOW + 70)])
    first = commit.open_batch.seal()
    assert first.floor is not None
    assert at_of(first.floor) == NOW + 70
    commit = group(opened)
    commit.cancel(message)
    second = commit.open_batch.seal()
    assert second.floor == id_position(message)
    assert second.gone == [id_position(message)]
    commit = group(opened)
    assert commit.open_batch.is_empty
    assert commit.open_batch.seal().floor is None


def test_each_group_writes_the_cursor(opened: Opened) -> None:
    commit = group(opened, NOW + 7)
    commit.open_batch.ran(12_345)
    sealed = sync(opened, commit.open_batch.seal())
    value = opened.store.get(Table.META, b"cursor")
    assert value is not None
    cursor = cursor_from(value)
    assert cursor.horizon == opened.horizon.position
    assert cursor.bound_ms == sealed.bound_ms == opened.horizon.bound_ms > NOW + 7
    assert (cursor.seq, cursor.running_ms) == (opened.horizon.seq, 12_345)


def test_a_failed_write_is_told(opened: Opened) -> None:
    commit = group(opened)
    commit.put([draft(NOW + 5)])
    opened.store.fail_writes = True  # type: ignore[attr-defined]
    with pytest.raises(StoreFailed):
        commit.open_batch.seal()


# -- idempotency keys

KEY = b"k" * 16


def test_a_key_without_a_due_tells_where_it_was_placed(opened: Opened) -> None:
    put(opened, draft(0, key=KEY))
    (again,) = group(opened).put([draft(0, key=KEY)])
    assert isinstance(again, Known)
    assert again.due_ms == NOW


def test_a_key_goes_with_the_slice_of_its_message(opened: Opened) -> None:
    (first,) = put(opened, draft(NOW + 5, key=KEY))
    piece = piece_at(opened, NOW + 5)
    with written(opened, NOW + QUARTER) as commit:
        expire(commit, [piece])
    (second,) = group(opened, NOW + QUARTER).put([draft(NOW + 5, key=KEY)])
    assert not isinstance(second, Known)
    assert second != first


def test_a_key_follows_its_message_when_that_is_moved(opened: Opened) -> None:
    (first,) = put(opened, draft(NOW + 5, key=KEY))
    with written(opened) as commit:
        commit.move(first, NOW + 3 * QUARTER)
    piece = piece_at(opened, NOW + 5)
    commit = group(opened)
    expire(commit, [piece])
    (again,) = commit.put([draft(NOW + 5, key=KEY)])
    assert again == Known(first, NOW + 5)


def test_a_key_of_a_held_message_does_not_lie_behind_the_floor(opened: Opened) -> None:
    opened.directory.floor = before(NOW)
    (first,) = put(opened, draft(NOW - 30_000, key=KEY), wall_ms=NOW - 60_000)
    assert id_shard(first) == HELD_SHARD
    (again,) = group(opened, NOW - 60_000).put([draft(NOW - 30_000, key=KEY)])
    assert again == Known(first, NOW - 30_000)
    commit = group(opened, NOW - 60_000)
    commit.move(first, NOW - 20_000)
    (again,) = commit.put([draft(NOW - 30_000, key=KEY)])
    assert again == Known(first, NOW - 30_000)


# -- cancel


def test_a_cancel_leaves_a_stub(opened: Opened) -> None:
    (message,) = put(opened, draft(NOW + 5, "load"))
    with written(opened) as commit:
        assert outcome(commit.cancel(message)) is Outcome.DONE
        assert outcome(commit.cancel(message)) is Outcome.DONE, "in one group as in two"
    assert opened.waiting.pending == 0
    found = found_in(opened, message)
    left = decode(found.value)
    assert (left.stub, left.when_ms, left.payload, left.topic) == (CANCELLED, NOW, b"", b"a/b")
    assert outcome(group(opened).cancel(message)) is Outcome.DONE
    assert consistent(opened)


def test_a_cancel_is_too_late_from_the_due_millisecond_on(opened: Opened) -> None:
    message, now = put(opened, draft(NOW + 50), draft(0))
    assert outcome(group(opened, NOW + 49).cancel(message)) is Outcome.DONE
    opened.open_batch.forget()
    assert outcome(group(opened, NOW).cancel(now)) is Outcome.ALREADY_DISPATCHED
    (other,) = put(opened, draft(NOW + 60))
    assert outcome(group(opened, NOW + 60).cancel(other)) is Outcome.ALREADY_DISPATCHED


def test_after_a_start_what_may_have_been_sent_cannot_be_cancelled() -> None:
    store = MemoryStore()
    opened = open_at(store)
    near, far = put(opened, draft(NOW + 1_000), draft(NOW + 60_000))
    again = open_at(store, NOW - 5_000)
    assert outcome(group(again, NOW - 5_000).cancel(near)) is Outcome.ALREADY_DISPATCHED
    assert outcome(group(again, NOW - 5_000).cancel(far)) is Outcome.DONE


def test_nobody_knows_a_message_that_is_not_there(opened: Opened) -> None:
    commit = group(opened)
    assert outcome(commit.cancel(MessageId(1))) is Outcome.NOT_FOUND
    assert outcome(commit.move(MessageId(1), NOW + 5)) is Outcome.NOT_FOUND
    assert commit.open_batch.is_empty


# -- move


def test_a_move_keeps_the_id_and_takes_a_new_place(opened: Opened) -> None:
    (message,) = put(opened, draft(NOW + 5))
    commit = group(opened)
    control = commit.move(message, NOW + 90)
    assert control.outcome is Outcome.DONE
    assert at_of(id_position(control.row)) == NOW + 90
    sealed = sync(opened, commit.open_batch.seal())
    assert sealed.gone == [id_position(message)]
    assert [place for place, _, _ in sealed.placed] == [id_position(control.row)]
    found = found_in(opened, message)
    assert found.row_id == control.row
    record = decode(found.value)
    assert (record.id, record.due_ms) == (message, NOW + 90)
    old = opened.reader.value_at(id_position(message), id_shard(message))
    assert old is not None
    assert (decode(old).stub, decode(old).when_ms) == (MOVED, seq_of(id_position(control.row)))
    assert opened.waiting.pending == 1
    assert consistent(opened)


def test_a_moved_message_is_moved_and_cancelled_by_its_id_at_once(opened: Opened) -> None:
    """Whoever does not wait for the first answer gets the same truth, in one group as in two."""
    (message,) = put(opened, draft(NOW + 5))
    commit = group(opened)
    assert outcome(commit.move(message, NOW + 90)) is Outcome.DONE
    assert outcome(commit.move(message, NOW + 40)) is Outcome.DONE
    assert outcome(commit.cancel(message)) is Outcome.DONE
    assert outcome(commit.move(message, NOW + 70)) is Outcome.CANCELLED
    sealed = sync(opened, commit.open_batch.seal())
    assert {place for place, _, _ in sealed.placed} <= set(sealed.gone)
    assert texts(opened) == ["-", "-", "-"]
    assert consistent(opened)


def test_a_move_may_ask_for_the_row_it_knows(opened: Opened) -> None:
    (message,) = put(opened, draft(NOW + 5))
    commit = group(opened)
    first = commit.move(message, NOW + 90, message)
    assert outcome(commit.move(message, NOW + 95, message)) is Outcome.CHANGED
    assert outcome(commit.move(message, NOW + 95, first.row)) is Outcome.DONE


def test_a_move_to_now_is_dispatched_now(opened: Opened) -> None:
    (message,) = put(opened, draft(NOW + 5_000))
    with written(opened) as commit:
        control = commit.move(message, 0)
    assert at_of(id_position(control.row)) == NOW
    assert outcome(group(opened).cancel(message)) is Outcome.ALREADY_DISPATCHED


def test_a_move_that_is_refused_leaves_the_message(opened: Opened) -> None:
    opened = open_at(MemoryStore(), max_slices=1)
    (message,) = put(opened, draft(NOW + 5))
    commit = group(opened)
    with pytest.raises(Refused):
        commit.move(message, NOW + 5 * DAY_MS)
    assert outcome(commit.cancel(message)) is Outcome.DONE


# -- the clock set back

BACK = NOW - 60_000


def test_a_message_between_wall_and_t_is_held(opened: Opened) -> None:
    held, now, later = put(opened, draft(BACK + 10_000), draft(0), draft(NOW + 5), wall_ms=BACK)
    assert [id_shard(m) == HELD_SHARD for m in (held, now, later)] == [True, False, False]
    assert (opened.waiting.held, opened.waiting.pending) == (1, 3)
    assert consistent(opened)


def release(opened: Opened, wall_ms: int) -> None:
    commit = group(opened, wall_ms)
    for place, _, _ in list(opened.reader.held()):
        if at_of(place) <= wall_ms:
            commit.release(place)
    sync(opened, commit.open_batch.seal())


def test_a_held_message_goes_to_t_when_its_due_has_come(opened: Opened) -> None:
    (message,) = put(opened, draft(BACK + 10_000), wall_ms=BACK)
    release(opened, BACK + 10_000)
    found = found_in(opened, message)
    assert at_of(found.position) == NOW
    assert found.shard is not None
    record = decode(found.value)
    assert (record.id, record.due_ms, opened.waiting.held, opened.waiting.pending) == (
        message,
        BACK + 10_000,
        0,
        1,
    )
    assert consistent(opened)


def test_a_held_message_is_released_once(opened: Opened) -> None:
    put(opened, draft(BACK + 10_000), wall_ms=BACK)
    (place,) = [place for place, _, _ in opened.reader.held()]
    with written(opened, NOW) as commit:
        commit.release(place)
        commit.release(place)
    assert texts(opened) == ["x"]
    assert consistent(opened)


def test_a_held_message_whose_release_is_refused_stays(opened: Opened) -> None:
    """T has no slice yet and there is no room for one: nothing may be lost over that."""
    opened = open_at(MemoryStore(), max_slices=1)
    put(opened, draft(NOW + DAY_MS, "far"))
    (message,) = put(opened, draft(BACK + 10_000), wall_ms=BACK)
    (place,) = [place for place, _, _ in opened.reader.held()]
    with written(opened, NOW) as commit, pytest.raises(Refused):
        commit.release(place)
    assert opened.reader.find(message) is not None
    assert consistent(opened)


def test_a_held_message_can_be_cancelled_until_it_is_released(opened: Opened) -> None:
    (message,) = put(opened, draft(BACK + 10_000), wall_ms=BACK)
    with written(opened, BACK) as commit:
        assert outcome(commit.cancel(message)) is Outcome.DONE
        assert outcome(commit.cancel(message)) is Outcome.DONE
    assert (opened.waiting.held, opened.waiting.pending) == (1, 0)
    assert consistent(opened)
    release(opened, NOW)
    assert (opened.waiting.held, opened.waiting.pending) == (0, 0)
    assert texts(opened) == ["-"]
    assert outcome(group(opened, NOW).cancel(message)) is Outcome.DONE
    assert outcome(group(opened, NOW).move(message, NOW + 5)) is Outcome.CANCELLED
    assert consistent(opened)


def test_a_held_message_can_be_moved_on_and_about(opened: Opened) -> None:
    (message,) = put(opened, draft(BACK + 10_000), wall_ms=BACK)
    with written(opened, BACK) as commit:
        assert outcome(commit.move(message, BACK + 20_000)) is Outcome.DONE
    assert (opened.waiting.held, opened.waiting.pending) == (1, 1)
    assert consistent(opened)
    with written(opened, BACK) as commit:
        assert outcome(commit.move(message, NOW + 500)) is Outcome.DONE
    assert (opened.waiting.held, opened.waiting.pending) == (0, 1)
    found = found_in(opened, message)
    assert at_of(found.position) == NOW + 500
    with written(opened, BACK) as commit:
        assert outcome(commit.move(message, BACK + 5_000)) is Outcome.DONE
    assert opened.waiting.held == 1
    release(opened, BACK + 5_000)
    assert texts(opened) == ["x", "-"]
    assert consistent(opened)


def test_a_released_message_is_held_again_when_the_clock_goes_back_meanwhile(opened: Opened) -> None:
    (message,) = put(opened, draft(BACK + 10_000), wall_ms=BACK)
    (place,) = [place for place, _, _ in opened.reader.held()]
    with written(opened, BACK) as commit:
        commit.release(place)
    assert opened.waiting.held == 1
    found = found_in(opened, message)
    assert at_of(found.position) == BACK + 10_000
    assert consistent(opened)


# -- small tables, expiry


def test_a_group_sees_its_own_rows(opened: Opened) -> None:
    with written(opened) as commit:
        commit.row(Table.SESSIONS, b"c", b"1")
        assert commit.get(Table.SESSIONS, b"c") == b"1"
        commit.row(Table.SESSIONS, b"c", None)
        assert commit.get(Table.SESSIONS, b"c") is None
    assert opened.store.get(Table.SESSIONS, b"c") is None


def test_turns_are_journalled(opened: Opened) -> None:
    with written(opened) as commit:
        commit.open_batch.dispatched([(Position(5), 77), (Position(9), 78)])
    assert opened.reader.dispatched_ms(Position(6)) == 78


def test_a_dropped_slice_is_gone_with_its_rows(opened: Opened) -> None:
    first, second = put(opened, draft(NOW + 5, "a"), draft(NOW + QUARTER, "b"))
    piece = piece_at(opened, NOW + 5)
    with written(opened, NOW + QUARTER - 1) as commit:
        commit.open_batch.ran(7_000)
        commit.open_batch.passed(piece)
    again = open_at(opened.store)  # type: ignore[arg-type]
    kept = piece_at(again, NOW + 5)
    assert kept.passed_s == 7
    with written(opened, NOW + QUARTER) as commit:
        commit.open_batch.dispatched([(Position(5), 77)])
        expire(commit, [piece])
    assert opened.reader.find(first) is None
    assert opened.reader.find(second) is not None
    assert texts(opened) == ["b"]
    again = open_at(opened.store, NOW + QUARTER)  # type: ignore[arg-type]
    assert again.directory.floor == opened.directory.floor == before(piece.end_ms)
    assert len(again.directory) == 1
    assert list(opened.store.scan(Table.SHARDS, b"", keys.LAST)) != []
    assert consistent(again)


def test_cached_slices_are_forgotten_at_their_bound() -> None:
    opened = open_at(MemoryStore(), caps=CAPS, max_slices=3)
    for number in range(12):
        put(opened, draft(NOW + 30 * DAY_MS + number * QUARTER))
    assert len(opened.open_batch._quarters) <= 7
    assert consistent(opened)


class Rotten(MemoryStore):
    """What is stored under keys cannot be read."""

    is_rotten = False

    def get(self, table: Table, key: bytes) -> bytes | None:
        if self.is_rotten and table is Table.DEDUPE:
            raise Corrupt("block checksum mismatch")
        return super().get(table, key)


def test_a_move_that_is_refused_leaves_the_message_where_it_is() -> None:
    store = Rotten()
    opened = open_at(store)
    (name,) = put(opened, draft(NOW + QUARTER, "precious", key=b"k" * 16))
    store.is_rotten = True
    with written(opened) as commit, pytest.raises(Refused):
        commit.move(name, NOW + 2 * QUARTER)
    assert texts(open_at(store)) == ["precious"]
    assert opened.waiting.pending == 1


def test_what_has_to_go_out_does_not_wait_for_its_key() -> None:
    store = Rotten()
    opened = open_at(store)
    with written(opened, NOW - 60_000) as commit:
        commit.put([draft(NOW - 30_000, "held", key=b"h" * 16)])
    (name,) = put(opened, draft(NOW + QUARTER, "revived", key=b"r" * 16))
    store.is_rotten = True
    with written(opened) as commit:
        (place,) = [place for place, _, _ in opened.reader.held()]
        commit.release(place)
        found = found_in(opened, name)
        commit.revive(found)
    assert sorted(texts(opened)) == ["-", "held", "revived"]
    assert opened.waiting.held == 0


def test_a_key_whose_message_is_lost_is_free() -> None:
    store = MemoryStore()
    opened = open_at(store)
    one = draft(NOW + QUARTER, key=b"k" * 16)
    (name,) = put(opened, one)
    found = found_in(opened, name)
    assert found.shard is not None
    rewrite(store, (Table.MESSAGES, found.shard.prefix + keys.place(found.position), None))
    with written(opened) as commit:
        ((again,), twin) = commit.put([one]), commit.put([one])
    assert isinstance(again, int)
    assert again != name
    assert twin == [Known(again, NOW + QUARTER)]
    assert opened.reader.find(MessageId(again)) is not None


def test_a_key_that_cannot_be_read_names_its_draft() -> None:
    store = Rotten()
    opened = open_at(store)
    store.is_rotten = True
    with pytest.raises(Refused) as refused:
        group(opened).put([draft(NOW), draft(NOW, key=b"k" * 16)])
    assert (refused.value.why, refused.value.index) == ("unreadable", 1)


# -- put in other words


def test_what_is_put_known_can_be_cancelled_in_its_own_group(opened: Opened) -> None:
    with written(opened) as commit:
        (fresh,) = commit.put([draft(NOW + 5, "fresh")])
        known = commit.put_known(draft(NOW + 5, "known"))
        assert isinstance(fresh, int)
        assert commit.cancel(fresh).outcome is Outcome.NOT_FOUND, "nobody has been told its id"
        assert commit.cancel(known).outcome is Outcome.DONE
    assert texts(opened) == ["fresh", "-"]
    assert opened.waiting.pending == 1
    assert consistent(opened)


def test_what_is_put_known_while_the_clock_is_set_back_is_held(opened: Opened) -> None:
    with written(opened, NOW - 60_000) as commit:
        known = commit.put_known(draft(NOW - 30_000))
        assert id_shard(known) == HELD_SHARD
        assert commit.cancel(known).outcome is Outcome.DONE
    assert (opened.waiting.pending, opened.waiting.held) == (0, 1), "the stub stays until its due"
    assert consistent(opened)


def test_what_is_owed_is_put_however_much_is_pending() -> None:
    opened = open_at(MemoryStore(), max_slices=1)
    put(opened, *(draft(NOW + 5) for _ in range(CAPS.pending)))
    commit = group(opened)
    for refused in (lambda: commit.put([draft(NOW + 5)]), lambda: commit.put_known(draft(NOW + 5))):
        with pytest.raises(Refused, match="pending"):
            refused()
    owed = commit.put_owed(draft(NOW + 5, "owed"))
    with pytest.raises(Refused, match="1 slices"):
        commit.put_owed(draft(NOW + DAY_MS))
    sync(opened, commit.open_batch.seal())
    assert opened.waiting.pending == CAPS.pending + 1
    assert opened.reader.find(owed) is not None
    assert consistent(opened)
