"""What each owner has pending: exact over groups that fail, kills, and what the horizon passes meanwhile."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from shards import keys
from shards.adopt import adopt
from shards.commit import Draft, Outcome
from shards.dedupe import Refused
from shards.errors import StoreFailed
from shards.fields import Record
from shards.memory import MemoryStore
from shards.owned import QuotaOf, any_number
from shards.record import encode
from shards.recover import (
    Opened,
    open_timeline,
    read_directory,
    read_timeline_again,
    stored_cursor,
    undo_group,
)
from shards.store import Table
from shards.tables import owned_value
from shards.verify import OwnerFault, repair_owners, verify_owners
from timeline.position import HELD_SHARD, MessageId, Position, id_position, id_shard
from timeline.slices import DAY_MS

from .timelines import CAPS, NOW, sync

A, B = b"meter-7", b"ops"


def opened_at(store: MemoryStore, wall_ms: int = NOW, quota_of: QuotaOf = any_number) -> Opened:
    return open_timeline(
        store, wall_ms=wall_ms, node=5, max_slices=50, max_structures=20, caps=CAPS, quota_of=quota_of
    )


def of(owner: bytes, due_ms: int = NOW + DAY_MS, key: bytes = b"") -> Draft:
    record = Record(b"a/b", b"x", due_ms, owner=owner, key=key)
    return Draft(due_ms, record.topic, encode(record), key, key)


def write(opened: Opened, *requests: list[Draft], wall_ms: int = NOW) -> list[MessageId]:
    """One group, durable."""
    opened.open_group.begin(wall_ms)
    ids = [one for drafts in requests for one in opened.commit.put(drafts) if isinstance(one, int)]
    sync(opened, opened.open_group.seal())
    return ids


def passed(opened: Opened, owner: bytes, message: MessageId) -> None:
    """What dispatch does."""
    opened.owned.passed(owner)
    opened.horizon.advance(max(opened.horizon.position, id_position(message)))


def counts(opened: Opened) -> tuple[int, int]:
    return opened.owned.pending(A), opened.owned.pending(B)


def check(opened: Opened) -> tuple[int, int]:
    """The counters; what is written of them agrees with the rows and the horizon that was written."""
    store = opened.store
    assert isinstance(store, MemoryStore)
    assert verify_owners(store, read_directory(store, 50), stored_cursor(store, 0).horizon) == []
    return counts(opened)


def test_each_request_counts_for_its_owner() -> None:
    opened = opened_at(MemoryStore())
    first, second, *_ = write(opened, [of(A), of(A)], [of(B)], [of(b"")], [of(A)])
    assert check(opened) == (3, 1)
    opened.open_group.begin(NOW)
    assert opened.commit.cancel(first).outcome is Outcome.DONE
    assert opened.commit.cancel(first).outcome is Outcome.DONE, "cancelled once"
    assert opened.commit.move(second, NOW + 2 * DAY_MS).outcome is Outcome.DONE
    sync(opened, opened.open_group.seal())
    assert check(opened) == (2, 1)
    opened.open_group.begin(NOW)
    assert opened.commit.cancel(second).outcome is Outcome.DONE, "wherever it was moved"
    sync(opened, opened.open_group.seal())
    assert check(opened) == (1, 1)


def test_each_way_in_counts() -> None:
    opened = opened_at(MemoryStore())
    opened.open_group.begin(NOW)
    opened.commit.put_known(of(A))
    opened.commit.put_owed(of(A))
    name = MessageId((NOW + DAY_MS) << 80 | 5 << 48 | 77)
    assert adopt(opened.commit, [of(B), of(B)], [name, MessageId(0)])[0] == name
    sync(opened, opened.open_group.seal())
    assert check(opened) == (2, 2)


def test_what_was_known_under_its_key_counts_once() -> None:
    opened = opened_at(MemoryStore())
    for _ in range(2):
        write(opened, [of(A, key=b"k" * 16), of(A, key=b"k" * 16), of(A)])
    assert check(opened) == (3, 0)


def test_what_is_held_counts_until_it_is_cancelled_or_passed() -> None:
    opened = opened_at(MemoryStore())
    first, second = write(opened, [of(A, NOW - 30_000), of(A, NOW - 20_000)], wall_ms=NOW - 60_000)
    assert id_shard(first) == HELD_SHARD
    opened.open_group.begin(NOW - 60_000)
    opened.commit.cancel(first)
    sync(opened, opened.open_group.seal())
    assert check(opened) == (1, 0)
    opened.open_group.begin(NOW)
    opened.commit.release(Position((NOW - 20_000) << 48 | second & (1 << 48) - 1))
    sync(opened, opened.open_group.seal())
    assert check(opened) == (1, 0)


def killed(opened: Opened, survivors: int = 0) -> Opened:
    assert isinstance(opened.store, MemoryStore)
    opened.store.crash(survivors)
    return opened_at(opened.store)


def test_after_a_kill_it_is_as_of_the_horizon_that_was_written() -> None:
    """What was passed since is passed again; what was passed before is not."""
    opened = opened_at(MemoryStore())
    first, second, third = write(opened, [of(A, NOW + at) for at in (1, 2, 3)])
    passed(opened, A, first)
    write(opened, [of(B)])
    passed(opened, A, second)
    passed(opened, A, third)
    assert check(opened) == (0, 1)
    opened = killed(opened)
    assert check(opened) == (2, 1)


def test_the_first_thing_that_an_owner_does_after_a_start_may_be_that_something_falls_due() -> None:
    opened = opened_at(MemoryStore())
    (first, _) = write(opened, [of(A, NOW + 1), of(A)])
    opened = killed(opened)
    passed(opened, A, first)
    write(opened, [of(b"")])
    opened = killed(opened)
    assert check(opened) == (1, 0)


@pytest.mark.parametrize("survives", [False, True])
def test_a_group_that_fails_counts_if_it_is_there_after_all(survives: bool) -> None:
    opened = opened_at(MemoryStore())
    store = opened.store
    assert isinstance(store, MemoryStore)
    (first, *_) = write(opened, [of(A, NOW + 1), of(A)], [of(B)])
    passed(opened, A, first)
    opened.open_group.begin(NOW)
    opened.commit.put([of(A), of(A), of(A)])
    opened.open_group.seal()
    store.crash(int(survives))
    read_timeline_again(opened)
    assert check(opened) == (4 if survives else 1, 1)
    write(opened, [of(b"")])
    opened = killed(opened)
    assert check(opened) == (4 if survives else 1, 1), "what was passed is written again"


def test_a_group_that_is_given_up_counts_nothing() -> None:
    opened = opened_at(MemoryStore())
    first, second = write(opened, [of(A), of(A)])
    opened.open_group.begin(NOW)
    opened.commit.put([of(A), of(A)])
    opened.commit.put([of(B)])
    opened.commit.cancel(first)
    undo_group(opened)
    assert check(opened) == (2, 0)
    opened.open_group.begin(NOW)
    opened.commit.cancel(second)
    sync(opened, opened.open_group.seal())
    assert check(opened) == (1, 0)


def quota(owner: bytes) -> int:
    return 3 if owner == A else 0


def refused(ask: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        ask()
    assert caught.value.why == "over-quota"
    return str(caught.value)


def test_beyond_the_quota_a_request_is_refused_whole() -> None:
    opened = opened_at(MemoryStore(), quota_of=quota)
    first, *_ = write(opened, [of(A), of(A)], [of(B)] * 5)
    opened.open_group.begin(NOW)
    commit = opened.commit
    assert refused(lambda: commit.put([of(A), of(A)])) == "2 messages of meter-7 are pending, 3 may be"
    assert opened.open_group.is_empty
    commit.put([of(A)])
    for ask in (
        lambda: commit.put([of(A)]),
        lambda: commit.put_known(of(A)),
        lambda: adopt(commit, [of(A)], [MessageId(0)]),
    ):
        assert "3 may be" in refused(ask)
    commit.put_owed(of(A))
    commit.put([of(B), of(B)])
    commit.put([of(b"")])
    commit.cancel(first)
    assert "3 messages" in refused(lambda: commit.put([of(A)])), "one that was promised before counts"
    sync(opened, opened.open_group.seal())
    assert check(opened) == (3, 7)


def test_a_key_that_is_known_is_not_refused() -> None:
    opened = opened_at(MemoryStore(), quota_of=quota)
    write(opened, [of(A, key=bytes([n]) * 16) for n in range(3)])
    opened.open_group.begin(NOW)
    for pending in (CAPS.pending, 1):  # lowered below what is pending
        opened.commit.caps = replace(CAPS, pending=pending)
        again = [of(A, key=bytes([n]) * 16) for n in range(3)]
        opened.commit.put(again)
        adopt(opened.commit, again, [MessageId(0)] * 3)
    assert opened.owned.pending(A) == 3
    refused(lambda: opened.commit.put([of(B)]))


def test_a_counter_that_says_something_else_is_found_and_repaired() -> None:
    opened = opened_at(MemoryStore())
    store = opened.store
    assert isinstance(store, MemoryStore)
    write(opened, [of(A), of(A)], [of(B)], [of(b"gone")])
    batch = store.batch()
    batch.put(Table.META, keys.owned(A), owned_value(9, 2))
    batch.put(Table.META, keys.owned(B), b"what is this")
    batch.delete(Table.META, keys.owned(b"gone"))
    batch.put(Table.META, keys.owned(b"nobody"), owned_value(3, 1))
    store.write(batch)
    store.flush()
    again = opened_at(store)
    assert again.owned.pending(B) == 0, "what cannot be read begins anew"
    faults = verify_owners(store, again.directory, again.horizon.position)
    assert faults == [
        OwnerFault(A, 7, 2),
        OwnerFault(b"nobody", 2, 0),
        OwnerFault(B, None, 1),
        OwnerFault(b"gone", 0, 1),
    ]
    assert str(faults[0]) == "owner 'meter-7': says 7 messages are pending, there are 2"
    assert str(faults[2]) == "owner 'ops': says nothing that can be read, there are 1"
    repair_owners(store, faults)
    assert check(opened_at(store)) == (2, 1)


def test_a_counter_below_nothing_is_nothing() -> None:
    opened = opened_at(MemoryStore())
    opened.owned.passed(A)
    assert opened.owned.pending(A) == 0


def test_a_store_that_cannot_be_read_says_so() -> None:
    opened = opened_at(MemoryStore())

    def broken(*_: object) -> bytes:
        raise StoreFailed("it is gone")

    opened.store.get = broken  # type: ignore[method-assign]
    with pytest.raises(StoreFailed):
        opened.owned.pending(A)
