"""What each owner has pending: exact over groups that fail, kills, and what the horizon passes meanwhile."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from shards import keys
from shards.adopt import adopt
from shards.commit import Draft, Outcome
from shards.dedupe import Refused
from shards.deliveries import end, wait
from shards.delivery_rows import DeliveryRow, waiting
from shards.errors import StoreFailed
from shards.fields import Record
from shards.owned import Quota, QuotaOf, any_number
from shards.record import encode, is_stub, owner_of
from shards.recover import (
    Opened,
    count_owned,
    open_timeline,
    read_directory,
    read_timeline_again,
    stored_cursor,
    undo_group,
)
from shards.store import Table
from shards.tables import owned_value
from shards.verify import OwnerFault, repair, verify_owners
from tests.support.delivery_rows import failed
from tests.support.memory_store import MemoryStore
from tests.support.soak import SOAK
from tests.support.stores import rewrite
from timeline.position import END, HELD_SHARD, MessageId, Position, at_of, id_position, id_shard
from timeline.slices import DAY_MS

from .timelines import CAPS, NOW, sync, written

A, B = b"meter-7", b"ops"


@pytest.fixture
def opened() -> Opened:
    return opened_at(MemoryStore())


def opened_at(store: MemoryStore, wall_ms: int = NOW, quota_of: QuotaOf = any_number) -> Opened:
    return open_timeline(
        store, wall_ms=wall_ms, node=5, max_slices=50, max_structures=20, caps=CAPS, quota_of=quota_of
    )


def of(owner: bytes, due_ms: int = NOW + DAY_MS, key: bytes = b"", payload: bytes = b"x") -> Draft:
    record = Record(b"a/b", payload, due_ms, owner=owner, key=key)
    return Draft(due_ms, record.topic, encode(record), key, key)


def retry(message: MessageId) -> DeliveryRow:
    """One of A's messages that waits for its next try."""
    return failed(id_position(message), of(A).value, id=message)


def write(opened: Opened, *requests: list[Draft], wall_ms: int = NOW) -> list[MessageId]:
    """One group, durable."""
    with written(opened, wall_ms) as commit:
        return [one for drafts in requests for one in commit.put(drafts) if isinstance(one, int)]


def passed(opened: Opened, owner: bytes, message: MessageId) -> None:
    """What dispatch does."""
    found = opened.commit.find(message)
    assert found is not None
    opened.owned.passed(owner, len(found.value))
    opened.horizon.advance(max(opened.horizon.position, id_position(message)))


def counts(opened: Opened) -> tuple[int, int]:
    return opened.owned.pending(A), opened.owned.pending(B)


def check(opened: Opened) -> tuple[int, int]:
    """The counters; what is written of them agrees with the rows and the horizon that was written."""
    store = opened.store
    assert isinstance(store, MemoryStore)
    assert verify_owners(store, read_directory(store, 50), stored_cursor(store, 0).horizon) == []
    return counts(opened)


def test_each_request_counts_for_its_owner(opened: Opened) -> None:
    first, second, *_ = write(opened, [of(A), of(A)], [of(B)], [of(b"")], [of(A)])
    assert check(opened) == (3, 1)
    with written(opened) as commit:
        assert commit.cancel(first).outcome is Outcome.DONE
        assert commit.cancel(first).outcome is Outcome.DONE, "cancelled once"
        assert commit.move(second, NOW + 2 * DAY_MS).outcome is Outcome.DONE
    assert check(opened) == (2, 1)
    with written(opened) as commit:
        assert commit.cancel(second).outcome is Outcome.DONE, "wherever it was moved"
    assert check(opened) == (1, 1)


def test_each_way_in_counts(opened: Opened) -> None:
    with written(opened) as commit:
        commit.put_known(of(A))
        commit.put_owed(of(A))
        name = MessageId((NOW + DAY_MS) << 80 | 5 << 48 | 77)
        assert adopt(commit, [of(B), of(B)], [name, MessageId(0)])[0] == name
    assert check(opened) == (2, 2)


def test_what_was_known_under_its_key_counts_once(opened: Opened) -> None:
    for _ in range(2):
        write(opened, [of(A, key=b"k" * 16), of(A, key=b"k" * 16), of(A)])
    assert check(opened) == (3, 0)


def test_what_is_held_counts_until_it_is_cancelled_or_passed(opened: Opened) -> None:
    first, second = write(opened, [of(A, NOW - 30_000), of(A, NOW - 20_000)], wall_ms=NOW - 60_000)
    assert id_shard(first) == HELD_SHARD
    with written(opened, NOW - 60_000) as commit:
        commit.cancel(first)
    assert check(opened) == (1, 0)
    with written(opened) as commit:
        commit.release(Position((NOW - 20_000) << 48 | second & (1 << 48) - 1))
    assert check(opened) == (1, 0)


def killed(opened: Opened, survivors: int = 0) -> Opened:
    assert isinstance(opened.store, MemoryStore)
    opened.store.crash(survivors)
    return opened_at(opened.store)


def test_after_a_kill_it_is_as_of_the_horizon_that_was_written(opened: Opened) -> None:
    """What was passed since is passed again; what was passed before is not."""
    first, second, third = write(opened, [of(A, NOW + at) for at in (1, 2, 3)])
    passed(opened, A, first)
    write(opened, [of(B)])
    passed(opened, A, second)
    passed(opened, A, third)
    assert check(opened) == (0, 1)
    opened = killed(opened)
    assert check(opened) == (2, 1)


def test_the_first_thing_that_an_owner_does_after_a_start_may_be_that_something_falls_due(
    opened: Opened,
) -> None:
    (first, _) = write(opened, [of(A, NOW + 1), of(A)])
    opened = killed(opened)
    passed(opened, A, first)
    write(opened, [of(b"")])
    opened = killed(opened)
    assert check(opened) == (1, 0)


def quota(owner: bytes) -> Quota:
    return Quota(3 if owner == A else 0)


def refused(ask: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        ask()
    assert caught.value.why == "over-quota"
    return str(caught.value)


def test_beyond_the_quota_a_request_is_refused_whole() -> None:
    opened = opened_at(MemoryStore(), quota_of=quota)
    first, *_ = write(opened, [of(A), of(A)], [of(B)] * 5)
    opened.open_batch.begin(NOW)
    commit = opened.commit
    assert (
        refused(lambda: commit.put([of(A), of(A)])) == "key 'meter-7' has 2 messages pending, its limit is 3"
    )
    assert opened.open_batch.is_empty
    commit.put([of(A)])
    for ask in (
        lambda: commit.put([of(A)]),
        lambda: commit.put_known(of(A)),
        lambda: adopt(commit, [of(A)], [MessageId(0)]),
    ):
        assert "limit is 3" in refused(ask)
    commit.put_owed(of(A))
    commit.put([of(B), of(B)])
    commit.put([of(b"")])
    commit.cancel(first)
    assert "3 messages" in refused(lambda: commit.put([of(A)])), "one that was promised before counts"
    sync(opened, opened.open_batch.seal())
    assert check(opened) == (3, 7)


def test_a_key_that_is_known_is_not_refused() -> None:
    opened = opened_at(MemoryStore(), quota_of=quota)
    write(opened, [of(A, key=bytes([n]) * 16) for n in range(3)])
    opened.open_batch.begin(NOW)
    for pending in (CAPS.pending, 1):  # lowered below what is pending
        opened.commit.caps = replace(CAPS, pending=pending)
        again = [of(A, key=bytes([n]) * 16) for n in range(3)]
        opened.commit.put(again)
        adopt(opened.commit, again, [MessageId(0)] * 3)
    assert opened.owned.pending(A) == 3
    refused(lambda: opened.commit.put([of(B)]))


def test_a_counter_that_says_something_else_is_found_and_repaired() -> None:
    store = MemoryStore()
    opened = opened_at(store)
    write(opened, [of(A), of(A)], [of(B)], [of(b"gone")], [of(b"size")])
    said = {A: owned_value(9, 2, 9, 2), B: b"what is this", b"gone": None}
    said |= {b"nobody": owned_value(3, 1, 30, 10), b"size": owned_value(1, 0, 7, 0)}
    rewrite(store, *((Table.META, keys.owned(owner), value) for owner, value in said.items()))
    store.flush()
    again = opened_at(store)
    assert again.owned.pending(B) == 0, "what cannot be read begins anew"
    faults = verify_owners(store, again.directory, again.horizon.position)
    bytes_of = {owner: len(of(owner).value) for owner in (A, B, b"gone", b"size")}
    assert faults == [
        OwnerFault(A, (7, 7), (2, 2 * bytes_of[A])),
        OwnerFault(b"nobody", (2, 20), (0, 0)),
        OwnerFault(B, None, (1, bytes_of[B])),
        OwnerFault(b"size", (1, 7), (1, bytes_of[b"size"])),
        OwnerFault(b"gone", (0, 0), (1, bytes_of[b"gone"])),
    ]
    assert str(faults[0]) == "owner 'meter-7': says 7 messages are pending, there are 2"
    assert str(faults[2]) == "owner 'ops': says nothing that can be read, there are 1"
    assert str(faults[3]) == f"owner 'size': says 7 bytes are pending, there are {bytes_of[b'size']}"
    repair(store, faults)
    assert check(opened_at(store)) == (2, 1)


def test_a_counter_below_nothing_is_nothing(opened: Opened) -> None:
    opened.owned.passed(A, 10)
    assert (opened.owned.pending(A), opened.owned.pending_bytes(A)) == (0, 0)
    assert (opened.owned.messages, opened.owned.owners) == (0, 0)
    write(opened, [of(A), of(A)])
    assert (opened.owned.messages, opened.owned.owners) == (1, 1)


def test_a_store_that_cannot_be_read_says_so(opened: Opened) -> None:

    def broken(*_: object) -> Iterator[tuple[bytes, bytes]]:
        raise StoreFailed("it is gone")

    opened.store.scan = broken  # type: ignore[method-assign]
    with pytest.raises(StoreFailed):
        opened.owned.reread()


def test_beyond_the_bytes_a_request_is_refused_whole() -> None:
    size = len(of(A).value)
    opened = opened_at(MemoryStore(), quota_of=lambda owner: Quota(0, 3 * size if owner == A else 0))
    first, *_ = write(opened, [of(A), of(A)], [of(B)] * 5)
    opened.open_batch.begin(NOW)
    commit = opened.commit
    text = f"key 'meter-7' has {2 * size} bytes pending, its limit is {3 * size}"
    assert refused(lambda: commit.put([of(A), of(A)])) == text
    assert opened.open_batch.is_empty
    commit.move(first, NOW + 2 * DAY_MS)
    refused(lambda: commit.put([of(A)]))  # its row has an id more now
    commit.cancel(first)
    commit.put([of(A), of(A)])
    for ask in (
        lambda: commit.put([of(A)]),
        lambda: commit.put_known(of(A)),
        lambda: adopt(commit, [of(A)], [MessageId(0)]),
        lambda: wait(commit, retry(first), NOW + DAY_MS, is_owed=False),
    ):
        refused(ask)
    commit.put([of(B)])
    commit.put([of(b"")])
    sync(opened, opened.open_batch.seal())
    assert check(opened) == (3, 6)


SHARED = replace(CAPS, pending=80, is_shared=True)


def held_by(opened: Opened, owner: bytes, count: int) -> None:
    """Have them taken, or as many as there may be."""
    opened.open_batch.begin(NOW)
    for _ in range(count):
        opened.commit.put([of(owner)])
    sync(opened, opened.open_batch.seal())


def test_the_last_ones_of_all_are_for_owners_below_an_equal_share(opened: Opened) -> None:
    opened.commit.caps = SHARED
    commit, owned = opened.commit, opened.owned
    held_by(opened, A, 60)
    assert refused(lambda: commit.put([of(A)] * 11)).startswith("key 'meter-7' has 60 messages pending")
    held_by(opened, A, 10)
    text = "key 'meter-7' has 70 messages pending, the rest of limits.pending is reserved for others"
    assert refused(lambda: commit.put([of(A)])) == text
    held_by(opened, B, 5)
    held_by(opened, b"", 4)
    assert (owned.messages, owned.owners) == (75, 2)
    opened.commit.caps = replace(SHARED, pending=83)
    refused(lambda: commit.put([of(A)]))
    held_by(opened, b"", 4)
    assert refused(lambda: commit.put([of(B)])) == "83 messages are pending, the limit of limits.pending"


def test_a_name_that_nobody_has_proven_gets_nothing_of_the_reserve() -> None:
    opened = opened_at(MemoryStore(), quota_of=lambda owner: Quota(is_proven=owner == B))
    opened.commit.caps = SHARED
    write(opened, [of(b"eve-%d" % number) for number in range(70)])
    opened.open_batch.begin(NOW)
    assert "reserved" in refused(lambda: opened.commit.put([of(A)]))
    opened.commit.put([of(B)])


def test_nobody_s_messages_are_one_owner_s(opened: Opened) -> None:
    opened.commit.caps = SHARED
    held_by(opened, b"", 70)
    text = "clients without a key have 70 messages pending, the rest of limits.pending is reserved for others"
    assert refused(lambda: opened.commit.put([of(b"")])) == text
    held_by(opened, A, 10)
    opened.commit.caps = replace(SHARED, is_shared=False, pending=81)
    held_by(opened, b"", 1)


OWNERS = A, B, b""


class Walk:
    """Random requests, groups that fail, kills, dispatch: what is counted is what the rows say."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.wall_ms = NOW
        self.store = MemoryStore()
        self.opened = opened_at(self.store)
        write(self.opened, [of(A)])
        self.ids: list[MessageId] = []

    def group(self) -> None:
        """A few requests, and what becomes of their group."""
        opened, chance = self.opened, self.chance
        opened.open_batch.begin(self.wall_ms)
        made: list[MessageId] = []
        for _ in range(chance.randrange(1, 6)):
            self.request(made)
        if chance.random() < 0.15:
            undo_group(opened)
            return
        group = opened.open_batch.seal()
        if chance.random() < 0.15:
            self.store.crash(chance.randrange(2))
            read_timeline_again(opened)
            return
        sync(opened, group)
        self.ids += made

    def request(self, made: list[MessageId]) -> None:
        commit, chance = self.opened.commit, self.chance
        due_ms = self.wall_ms + chance.randrange(-20_000, 60_000)
        step = chance.randrange(6)
        if step < 2:
            owner = chance.choice(OWNERS)
            drafts = [of(owner, due_ms, payload=b"x" * chance.randrange(50)) for _ in range(1 + step)]
            made += [one for one in commit.put(drafts) if isinstance(one, int)]
        elif step == 2 and self.ids:
            for _ in range(chance.randrange(1, 3)):
                commit.cancel(chance.choice(self.ids))
        elif step == 3 and self.ids:
            commit.move(chance.choice(self.ids), due_ms, zone=chance.choice((b"", b"Europe/Rome")))
        elif step == 4:
            name = MessageId(chance.getrandbits(30) << 80 | 5 << 48 | chance.getrandbits(40))
            made += [one for one in adopt(commit, [of(A, due_ms)], [name]) if isinstance(one, int)]
        else:
            retries = [*waiting(self.store)]
            if retries and chance.random() < 0.5:
                end(commit, chance.choice(retries).name)
            else:
                wait(commit, retry(MessageId(chance.getrandbits(127))), due_ms, is_owed=True)

    def dispatch(self) -> None:
        """The horizon passes what is due."""
        opened = self.opened
        horizon = opened.horizon
        horizon.observe(self.wall_ms)
        to = horizon.limit(END)
        for _, _, value in opened.reader.read(Position(horizon.position + 1), Position(to + 1)):
            owner = owner_of(value)
            opened.waiting.dispatched(not is_stub(value))
            if owner and not is_stub(value):
                opened.owned.passed(owner, len(value))
        horizon.advance(to)

    def release(self) -> None:
        """What was held and is due by now, cancelled or not."""
        self.opened.open_batch.begin(self.wall_ms)
        for place, _, _ in [*self.opened.reader.held()]:
            if at_of(place) <= self.wall_ms:
                self.opened.commit.release(place)
        sync(self.opened, self.opened.open_batch.seal())

    def kill(self) -> None:
        self.store.crash(self.chance.randrange(2))
        self.opened = opened_at(self.store, self.wall_ms)

    def check(self) -> None:
        opened, owned = self.opened, self.opened.owned
        counted = count_owned(opened.store, opened.reader, opened.horizon.position)
        said = {owner: (owned.pending(owner), owned.pending_bytes(owner)) for owner in (A, B)}
        assert said == {owner: counted.get(owner, (0, 0)) for owner in (A, B)}
        assert owned.messages == sum(count for count, _ in counted.values())
        assert owned.owners == len(counted)


@pytest.mark.parametrize("seed", range(400 if SOAK else 20))
def test_whatever_happens_what_is_counted_is_what_the_rows_say(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(60):
        walk.group()
        walk.check()
        walk.wall_ms += walk.chance.randrange(-15_000, 25_000)
        for step in (walk.dispatch, walk.release, walk.kill):
            if walk.chance.random() < 0.3:
                step()
                walk.check()


def rows(opened: Opened) -> int:
    return len(list(opened.store.scan(Table.META, *keys.under(keys.OWNED))))


def test_an_owner_with_nothing_pending_leaves_nothing(opened: Opened) -> None:
    """There is no bound on the owners that come and go where a name needs no password."""
    for number in range(20):
        owner = b"%d" % number
        first, second = write(opened, [of(owner, NOW + number), of(owner)])
        with written(opened) as commit:
            commit.cancel(second)
        passed(opened, owner, first)
    write(opened, [of(A)])
    assert (len(opened.owned), rows(opened)) == (1, 1)
    (first,) = write(opened, [of(B)])
    with written(opened) as commit:
        commit.cancel(first)
    assert (len(opened.owned), rows(opened)) == (1, 1)
    opened = killed(opened)
    assert (len(opened.owned), check(opened)) == (1, (1, 0))


@pytest.mark.parametrize("seed", range(400 if SOAK else 20))
def test_counters_are_exact_whatever_fails(seed: int) -> None:
    """Groups in flight, failures, cancels and what is passed, at random."""
    random, due = Random(seed), NOW
    store = MemoryStore()
    opened = opened_at(store)
    store.flush()
    pending: dict[MessageId, bytes] = {}
    states = [dict(pending)]  # the durable one, and those of groups that are not
    written = durable = 0  # groups
    for _ in range(80):
        opened.open_batch.begin(NOW)
        if pending and random.random() < 0.3:
            gone = random.choice(list(pending))
            assert opened.commit.cancel(gone).outcome is Outcome.DONE
            del pending[gone]
        for _ in range(random.choice((0, 0, 1, 2))):
            owner, due = random.choice((A, B, b"c")), due + 1
            (made,) = opened.commit.put([of(owner, due)])
            assert isinstance(made, int)
            pending[made] = owner
        for _ in range(random.randrange(durable + 1)):
            opened.close_group()
            durable -= 1
        opened.open_batch.seal()
        states.append(dict(pending))
        written += 1
        for _ in range(random.randrange(durable + 1)):
            opened.close_group()
            durable -= 1
        if random.random() < 0.3:
            survivors = random.randrange(len(states))
            store.crash(survivors)
            read_timeline_again(opened)
            passing = opened.horizon.position
            pending = {one: owner for one, owner in states[survivors].items() if id_position(one) > passing}
            states, written, durable = [dict(pending)], 0, 0
        elif random.random() < 0.6:
            store.flush()
            states, written, durable = [dict(pending)], 0, durable + written
        if len(states) == 1:
            for one in sorted(pending)[: random.randrange(4)]:
                passed(opened, pending.pop(one), one)
        assert counts(opened) == tuple(list(pending.values()).count(owner) for owner in (A, B))
