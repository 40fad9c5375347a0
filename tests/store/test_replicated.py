"""Stores on one log, with all that can come between them: lost answers, partitions, kills, two who lead.

What has to hold whatever happens: a store below is a prefix of the log, row by row; what was acked (a `flush`
returned) stays in the log where it was; nothing is in the log twice; who leads reads its store with what
waits above it.
"""

from collections import deque
from collections.abc import Iterator
from threading import Thread

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shards.changes import Recorded, decode_changes
from shards.errors import Corrupt, StoreFailed, UnreleasedFormat
from shards.log.chained import open_engine
from shards.log.errors import Fenced, LogError, OtherClusterKey, OtherLog, Trimmed, UnknownVersion
from shards.log.record import EXTRA_BYTES, ORIGIN, Claim, claim_of, opened
from shards.replicated import ReplicatedStore, applied_of
from shards.store import Table
from shards.tables import FORMAT, FORMAT_FIRST, META_FORMAT
from tests.support.logs import Elapsing, Faulty, Lost
from tests.support.memory_store import MemoryStore
from tests.support.shelf import LARGEST, MemoryEngine, Shelf
from tests.support.soak import SOAK
from tests.support.stores import rewrite

KEYS = st.integers(0, 6)
LAST = b"\xff" * 8
NAME = b"batch"
"""With it begins the row of META that says which batch this was."""


class Node:
    def __init__(self, shelf: Shelf, largest: int = LARGEST) -> None:
        """`largest`: bytes that its engine takes; a larger group is in parts."""
        self.clock = Elapsing()
        self.engine = Faulty(MemoryEngine(shelf, largest))
        self.below = MemoryStore()
        self.start()

    def start(self) -> None:
        self.store = ReplicatedStore(self.below, open_engine(self.engine, self.clock, 2.0))
        self.written: list[bytes] = []
        """Names of batches that wait for a flush."""


def logged(shelf: Shelf) -> Iterator[tuple[int, bytes]]:
    """(seq, data) of every group."""
    for seq, epoch, data in open_engine(MemoryEngine(shelf), Elapsing(), 2.0).read(0):
        if epoch != seq:
            yield seq, data


def stray(shelf: Shelf) -> None:
    shelf.last += 1
    shelf.frames[shelf.last] = b"hello"


def rows_of(store: MemoryStore | ReplicatedStore) -> dict[bytes, bytes]:
    return dict(store.scan(Table.MESSAGES, b"", LAST))


def names_of(store: MemoryStore) -> set[bytes]:
    return {key for key, _ in store.scan(Table.META, NAME, LAST) if key.startswith(NAME)}


def name_in(data: bytes) -> bytes:
    (change,) = decode_changes(data).tables[Table.META]
    return change[0]


class Replication(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.nodes = [Node(self.shelf), Node(self.shelf, EXTRA_BYTES + 20)]
        self.count = 0
        self.acked: dict[bytes, int] = {}
        """By name, as which record."""

    @rule(
        n=st.integers(0, 1),
        puts=st.dictionaries(KEYS, st.binary(max_size=2), max_size=3),
        wiped=st.none() | KEYS,
    )
    def write(self, n: int, puts: dict[int, bytes], wiped: int | None) -> None:
        node = self.nodes[n]
        self.count += 1
        name = NAME + b"%d" % self.count
        batch = node.store.batch()
        batch.put(Table.META, name, b"")
        if wiped is not None:
            batch.delete_range(Table.MESSAGES, bytes([wiped]), bytes([wiped + 2]))
        for key, value in puts.items():
            batch.put_message(bytes([key]), value)
        before = rows_of(node.store)
        try:
            node.store.write(batch)
        except StoreFailed:
            assert rows_of(node.store) == before
            return
        node.written.append(name)
        for key in [
            key for key in before if wiped is not None and bytes([wiped]) <= key < bytes([wiped + 2])
        ]:
            del before[key]
        assert rows_of(node.store) == before | {bytes([key]): value for key, value in puts.items()}

    @rule(n=st.integers(0, 1), losses=st.lists(st.none() | st.sampled_from(Lost), max_size=5))
    def flush(self, n: int, losses: list[Lost | None]) -> None:
        node = self.nodes[n]
        node.engine.plan.extend(losses)
        rows = rows_of(node.store)
        try:
            node.store.flush()
        except StoreFailed:
            assert not node.store.is_leading or rows_of(node.store) == rows
        else:
            for name in node.written:
                self.acked[name] = next(seq for seq, data in logged(self.shelf) if name_in(data) == name)
            node.written.clear()
            assert rows_of(node.store) == rows_of(node.below) == rows
        node.engine.plan.clear()

    @rule(n=st.integers(0, 1), are_slow=st.booleans())
    def late(self, n: int, are_slow: bool) -> None:
        """What is under way of a node arrives; or stays there until then, whatever else is asked."""
        engine = self.nodes[n].engine
        engine.is_slow = are_slow
        engine.arrive()

    @rule(n=st.integers(0, 1))
    def reopen(self, n: int) -> None:
        node = self.nodes[n]
        node.written.clear()
        try:
            node.store.reopen()
        except StoreFailed:
            return
        assert node.store.is_leading or node.store.applied == ORIGIN
        assert rows_of(node.store) == rows_of(node.below)

    @rule(n=st.integers(0, 1), is_told=st.booleans())
    def lead(self, n: int, is_told: bool) -> None:
        """`is_told`: it reads the log before it claims it."""
        node = self.nodes[n]
        if node.store.is_leading:
            return
        try:
            if is_told:
                node.store.follow()
            node.store.lead(f"node-{n}", "http://127.0.0.1:1")
        except LogError:
            assert not node.store.is_leading
        else:
            assert node.store.applied.seq == node.store.applied.epoch

    @rule(n=st.integers(0, 1))
    def follow(self, n: int) -> None:
        node = self.nodes[n]
        if not node.store.is_leading and not node.engine.is_cut:
            node.store.follow()
            assert node.store.follow() == 0
            assert node.store.applied.seq == max((seq for seq, _, _ in self.read()), default=0)

    @rule()
    def stray(self) -> None:
        """Somebody else publishes into the log."""
        stray(self.shelf)

    def read(self) -> Iterator[tuple[int, int, bytes]]:
        return open_engine(MemoryEngine(self.shelf), Elapsing(), 2.0).read(0)

    @rule(n=st.integers(0, 1), survivors=st.integers(0, 4))
    def kill(self, n: int, survivors: int) -> None:
        node = self.nodes[n]
        node.below.crash(survivors)
        if not node.engine.is_cut:
            node.start()
        else:
            node.engine.is_cut = False
            node.start()
            node.engine.is_cut = True

    @precondition(lambda self: not any(node.engine.is_cut for node in self.nodes))
    @rule(n=st.integers(0, 1))
    def cut(self, n: int) -> None:
        self.nodes[n].engine.is_cut = True

    @rule()
    def join(self) -> None:
        for node in self.nodes:
            node.engine.is_cut = False

    @invariant()
    def every_store_is_a_prefix_of_the_log(self) -> None:
        records = dict(logged(self.shelf))
        for node in self.nodes:
            whole, place = MemoryStore(), node.store.applied
            for seq, data in records.items():
                if seq <= place.seq:
                    batch = whole.batch()
                    decode_changes(data).into(batch)
                    whole.write(batch)
            assert rows_of(node.below) == rows_of(whole)
            assert names_of(node.below) == names_of(whole)
            assert applied_of(node.below) == place

    @invariant()
    def what_was_acked_is_where_it_was_and_nothing_twice(self) -> None:
        names = {seq: name_in(data) for seq, data in logged(self.shelf)}
        assert len(set(names.values())) == len(names)
        assert self.acked.items() <= {name: seq for seq, name in names.items()}.items()

    @invariant()
    def at_most_one_of_those_who_think_they_lead_can_ack(self) -> None:
        epochs = [node.store._epoch for node in self.nodes if node.store.is_leading]
        assert len(set(epochs)) == len(epochs)


TestReplication = pytest.mark.long(Replication.TestCase)
TestReplication.settings = settings(max_examples=600 if SOAK else 30, stateful_step_count=40, deadline=None)


@pytest.fixture
def pair() -> tuple[Shelf, Node, Node]:
    shelf = Shelf()
    return shelf, Node(shelf), Node(shelf)


def put(node: Node, key: bytes) -> None:
    batch = node.store.batch()
    batch.put_message(key, b"v")
    node.store.write(batch)


def stored(node: Node, key: bytes) -> None:
    put(node, key)
    node.store.flush()


def test_who_does_not_lead_takes_nothing(pair: tuple[Shelf, Node, Node]) -> None:
    _, one, _ = pair
    with pytest.raises(StoreFailed, match="does not lead"):
        put(one, b"k")


def given_up(node: Node, lost: Lost) -> None:
    """Its append of the row `a` ends without an answer."""
    node.store.lead("one", "http://127.0.0.1:1")
    put(node, b"a")
    node.engine.is_slow = True
    node.engine.plan.extend([lost] + [Lost.REQUEST] * 50)
    with pytest.raises(StoreFailed, match="not in the log"):
        node.store.flush()
    with pytest.raises(StoreFailed, match="earlier batch"):
        put(node, b"b")
    node.engine.plan.clear()


@pytest.mark.parametrize("lost", [Lost.LATE, Lost.ANSWER])
def test_what_came_before_the_reopening_is_found(pair: tuple[Shelf, Node, Node], lost: Lost) -> None:
    """The append was given up, and is a record nevertheless: it is the epoch's own, and is written."""
    _, one, _ = pair
    given_up(one, lost)
    one.engine.arrive()
    one.store.reopen()
    assert rows_of(one.store) == {b"a": b"v"}
    stored(one, b"d")
    assert rows_of(one.below) == {b"a": b"v", b"d": b"v"}


def test_what_comes_after_the_reopening_never_does(pair: tuple[Shelf, Node, Node]) -> None:
    """What has been decided without it stays true: its place is taken by a claim of the same node's."""
    shelf, one, _ = pair
    given_up(one, Lost.LATE)
    one.store.reopen()
    assert rows_of(one.store) == {}
    assert one.store.is_leading
    assert one.store.leader is not None
    assert one.store.leader.url == "http://127.0.0.1:1"
    put(one, b"c")
    one.engine.arrive()
    one.store.flush()
    assert rows_of(one.below) == {b"c": b"v"}
    assert [seq for seq, _ in logged(shelf)] == [3]


def test_who_was_cut_off_leads_no_longer(pair: tuple[Shelf, Node, Node]) -> None:
    _, one, other = pair
    one.store.lead("one", "")
    one.engine.is_cut = True
    put(one, b"a")
    with pytest.raises(StoreFailed):
        one.store.flush()
    other.store.follow()
    other.store.lead("other", "")
    stored(other, b"b")
    with pytest.raises(StoreFailed, match="not known"):
        one.store.reopen()
    one.engine.is_cut = False
    with pytest.raises(StoreFailed, match="another node leads"):
        one.store.reopen()
    assert not one.store.is_leading
    assert rows_of(one.store) == {b"b": b"v"}
    with pytest.raises(Fenced):
        one.store._log.append(one.store.applied.seq + 1, 1, b"")


def test_rows_of_a_later_version_stop_who_follows(pair: tuple[Shelf, Node, Node]) -> None:
    _, one, other = pair
    one.store.lead("one", "")
    one.store._log.append(2, 1, msgspec.msgpack.encode({"newer": []}))
    with pytest.raises(UnknownVersion, match="another version"):
        other.store.follow()
    assert other.store.applied[:2] == (1, 1), "up to there it has come"


@pytest.mark.parametrize("number", range(FORMAT_FIRST + 1, FORMAT))
def test_rows_of_a_version_between_two_releases_stop_who_follows(
    pair: tuple[Shelf, Node, Node], number: int
) -> None:
    _, one, other = pair
    one.store.lead("one", "")
    rewrite(one.store, (Table.META, META_FORMAT, b"%d" % number))
    one.store.flush()
    with pytest.raises(UnreleasedFormat, match=f"format {number}, which no release wrote"):
        other.store.follow()
    assert other.store.applied[:2] == (1, 1)
    assert not other.store.has_rows


@pytest.mark.parametrize("number", [FORMAT_FIRST, FORMAT, FORMAT + 1])
def test_rows_of_other_formats_are_followed(pair: tuple[Shelf, Node, Node], number: int) -> None:
    """Also of a later one: nodes are upgraded one after the other. Who leads looks whether it can."""
    _, one, other = pair
    one.store.lead("one", "")
    rewrite(one.store, (Table.META, META_FORMAT, b"%d" % number))
    one.store.flush()
    assert other.store.follow() == 2
    assert other.store.get(Table.META, META_FORMAT) == b"%d" % number


def last_claim(shelf: Shelf) -> Claim | None:
    """None: the last record is no claim."""
    record = opened(shelf.frames[shelf.last], shelf.last)
    return claim_of(record.data) if record.seal.epoch == shelf.last else None


def test_who_leads_and_closes_says_that_nobody_does(pair: tuple[Shelf, Node, Node]) -> None:
    shelf, one, other = pair
    one.store.lead("one", "http://127.0.0.1:1")
    stored(one, b"a")
    one.store.close()
    assert last_claim(shelf) is not None
    assert last_claim(shelf).node == ""  # type: ignore[union-attr]
    assert applied_of(one.below).seq == shelf.last, "it has all that the log has"
    other.store.follow()
    other.store.close()
    assert shelf.last == 3, "who does not lead has nothing to say"


def test_who_cannot_say_for_certain_that_nobody_leads_does_not(pair: tuple[Shelf, Node, Node]) -> None:
    """A batch waits, or the last one may still come: its place is not to be another's by its own hand."""
    shelf, one, other = pair
    one.store.lead("one", "http://127.0.0.1:1")
    put(one, b"a")
    one.store.close()
    assert shelf.last == 1
    other.store.follow()
    given_up(other, Lost.REQUEST)
    other.store.close()
    assert last_claim(shelf) is not None
    assert last_claim(shelf).node == "one"  # type: ignore[union-attr]


def test_as_many_bytes_pass_whoever_writes_them(pair: tuple[Shelf, Node, Node]) -> None:
    shelf, one, other = pair
    one.store.lead("one", "http://127.0.0.1:1")
    for key in (b"a", b"b"):
        put(one, key)
    one.store.flush()
    other.store.follow()
    frames = [opened(shelf.frames[seq], seq).data for seq in range(1, shelf.last + 1)]
    assert one.store.passed_bytes == other.store.passed_bytes == sum(map(len, frames))


def test_a_store_of_another_log_is_told_by_its_claim(pair: tuple[Shelf, Node, Node]) -> None:
    """Each has a record 1 of epoch 1; it is not the same one."""
    shelf, one, _ = pair
    elsewhere = Node(Shelf())
    elsewhere.store.lead("one", "http://127.0.0.1:1")
    one.store.lead("one", "http://127.0.0.1:1")
    stranger = ReplicatedStore(one.below, open_engine(elsewhere.engine, elsewhere.clock, 2.0))
    with pytest.raises(OtherLog, match="differs"):
        stranger.follow()
    assert shelf.last == 1


def renewed(node: Node, count: int, first: int, trimmed: int) -> None:
    """Records up to `count` on the node's log, of which only those after `trimmed` are left."""
    node.store.lead("one", "http://127.0.0.1:1")
    for number in range(first, first + count - 1):
        put(node, b"%d" % number)
        node.store.flush()
    node.store._log.trim(trimmed)


def moved(node: Node, shelf: Shelf) -> ReplicatedStore:
    """The node's rows, on another log."""
    elsewhere = Node(shelf)
    return ReplicatedStore(node.below, open_engine(elsewhere.engine, elsewhere.clock, 2.0))


@pytest.mark.parametrize("trimmed", [0, 2, 4, 5])
def test_a_log_that_was_begun_anew_is_not_joined(pair: tuple[Shelf, Node, Node], trimmed: int) -> None:
    """Sequence and epoch fit; what the two have in record 4 does not."""
    _, one, _ = pair
    renewed(one, count=4, first=0, trimmed=0)
    again = Node(Shelf())
    renewed(again, count=6, first=100, trimmed=trimmed)
    stranger = moved(one, again.engine._engine._shelf)
    before = rows_of(one.below)
    for _ in range(2):
        with pytest.raises((OtherLog, Trimmed)) as told:
            stranger.follow()
        assert told.type is (Trimmed if trimmed == 5 else OtherLog)
    assert rows_of(one.below) == before
    assert not stranger.is_leading


def test_a_log_that_was_purged_goes_on(pair: tuple[Shelf, Node, Node]) -> None:
    """Both have its last record, and who has its seal can be followed by the next."""
    shelf, one, other = pair
    renewed(one, count=4, first=0, trimmed=0)
    other.store.follow()
    shelf.frames.clear()
    shelf.first = 5
    for node in (one, other):
        node.start()
        assert node.store.follow() == 0
    other.store.lead("other", "http://127.0.0.1:2")
    stored(other, b"after")
    assert one.store.follow() == 2
    assert rows_of(one.below) == rows_of(other.below)


def test_two_that_cannot_read_where_they_stand_are_not_of_one_epoch(pair: tuple[Shelf, Node, Node]) -> None:
    """Each has led, lost its rows in a crash, and reaches no log: neither takes anything."""
    _, one, other = pair
    for node in (one, other):
        node.store.follow()
        node.store.lead("node", "http://127.0.0.1:1")
        node.below.crash(0)
        node.engine.is_cut = True
        with pytest.raises(StoreFailed):
            node.store.reopen()
        with pytest.raises(StoreFailed):
            put(node, b"k")
        node.engine.is_cut = False
    assert one.store.applied == other.store.applied == ORIGIN
    assert one.store._epoch != other.store._epoch


def test_a_leader_goes_on_behind_a_stray(pair: tuple[Shelf, Node, Node]) -> None:
    shelf, one, other = pair
    one.store.lead("one", "http://127.0.0.1:1")
    stray(shelf)
    stored(one, b"a")
    stray(shelf)
    assert other.store.follow()
    assert rows_of(other.below) == {b"a": b"v"}
    other.store.lead("other", "http://127.0.0.1:2")
    put(one, b"b")
    with pytest.raises(StoreFailed, match="not in the log"):
        one.store.flush()
    stored(other, b"c")
    with pytest.raises(StoreFailed, match="another node leads"):
        one.store.reopen()
    assert rows_of(one.below) == rows_of(other.below) == {b"a": b"v", b"c": b"v"}
    assert one.store.strays == other.store.strays == (2, 2, 4)


def test_a_node_whose_key_was_changed_does_not_go_on(pair: tuple[Shelf, Node, Node]) -> None:
    """By mistake, or it is another team's: it reads nothing, and does not claim. With both keys it does."""
    shelf, one, _ = pair
    one.store.lead("one", "http://127.0.0.1:1")
    stored(one, b"a")
    for keys, below in ((("new",), one.below), (("new",), MemoryStore())):
        store = ReplicatedStore(below, open_engine(one.engine, one.clock, 2.0, keys))
        for _ in range(2):
            with pytest.raises(OtherClusterKey):
                store.follow()
    both = ReplicatedStore(one.below, open_engine(one.engine, one.clock, 2.0, ("new", "")))
    assert both.follow() == 0
    both.lead("one", "http://127.0.0.1:1")
    new = ReplicatedStore(one.below, open_engine(one.engine, one.clock, 2.0, ("new",)))
    assert new.follow() == 0
    assert shelf.last == 3


def test_a_large_group_is_one(pair: tuple[Shelf, Node, Node]) -> None:
    """Its parts say that somebody leads; its rows come together, or not at all."""
    shelf, one, other = pair
    one.store.lead("one", "http://127.0.0.1:1")
    assert other.store.follow() == 1
    batch = one.store.batch()
    for number in range(4):
        batch.put_message(b"%d" % number, bytes(1 << 20))
    one.store.write(batch)
    one.engine.plan.extend([None, None, *[Lost.REQUEST] * 50])
    with pytest.raises(StoreFailed):
        one.store.flush()
    one.engine.plan.clear()
    assert other.store.follow() == 2
    assert other.store.follow() == 0
    assert (rows_of(other.below), other.store.applied.seq) == ({}, 1)
    one.store.reopen()
    assert one.store.applied == (4, 4, *one.store.applied[2:]), "its claim ends the half group"
    one.store.write(batch)
    one.store.flush()
    assert other.store.follow() == shelf.last - 3 == 6
    assert rows_of(other.below) == rows_of(one.below)
    assert len(rows_of(other.below)) == 4
    other.start()
    assert other.store.follow() == 0


def test_a_timeline_has_an_id_that_stays(pair: tuple[Shelf, Node, Node]) -> None:
    """Its first leader makes it; later ones name it too, also after a claim of an earlier version."""
    _, one, other = pair
    one.store.lead("one", "http://127.0.0.1:1")
    id_ = one.store.timeline
    assert len(bytes.fromhex(id_)) == 16
    other.store.follow()
    other.store.lead("other", "http://127.0.0.1:2")
    one.store.follow()
    assert (one.store.timeline, other.store.timeline) == (id_, id_)
    log = open_engine(other.engine, other.clock, 2.0)
    log.claim(3, "old", "http://127.0.0.1:3")
    one.store.follow()
    one.start()
    assert one.store.timeline == id_
    one.store.lead("one", "http://127.0.0.1:1")
    other.store.follow()
    assert other.store.leader is not None
    assert other.store.leader.timeline == id_


class Interrupted(deque[Recorded]):
    """Another thread asks how much is written, when the oldest batch has just been taken out."""

    def __init__(self, store: ReplicatedStore) -> None:
        super().__init__()
        self.said: list[int] = []
        self.thread = Thread(target=lambda: self.said.append(store.written()))

    def popleft(self) -> Recorded:
        first = super().popleft()
        if self.thread.ident is None:
            self.thread.start()
            self.thread.join(0.1)
        return first


def test_what_is_written_is_counted_while_another_thread_settles(pair: tuple[Shelf, Node, Node]) -> None:
    """One too few, and the newest group would be answered without being in the log."""
    store = pair[1].store
    store.lead("b", "")
    waiting = store._waiting = Interrupted(store)
    for key in (b"1", b"2"):
        put(pair[1], key)
    store.flush_to(1)
    waiting.thread.join()
    assert waiting.said == [2]


class Rotten(MemoryStore):
    """Of one key nothing can be read."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        if key == b"bad":
            raise Corrupt("a rotten block")
        return super().get(table, key)

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in super().scan(table, start, end):
            self.get(table, key)
            yield key, value


def test_damage_that_another_node_does_not_have_is_no_answer() -> None:
    """A leader with an heir fails the read, now and for the rest of its term; and it resigns as ever."""
    node = Node(Shelf())
    node.below = Rotten()
    node.start()
    store = node.store

    def refused(kind: type[Exception]) -> None:
        with pytest.raises(kind, match="a rotten block") as one:
            store.get(Table.MESSAGES, b"bad")
        with pytest.raises(kind, match="a rotten block") as two:
            list(store.scan(Table.MESSAGES, b"", LAST))
        assert kind is Corrupt or (one.value.__context__, two.value.__context__) == (None, None)

    store.lead("a", "http://a")
    batch = store.batch()
    for key in (b"aaa", b"bad"):
        batch.put(Table.MESSAGES, key, b"v")
    store.write(batch)
    assert store.get(Table.MESSAGES, b"bad") == b"v"  # from RAM, until it is written below
    store.flush()
    refused(Corrupt)
    store.has_heir = True
    refused(StoreFailed)
    store.has_heir = False
    refused(StoreFailed)
    assert store.get(Table.MESSAGES, b"aaa") == b"v"
    store.close()
    node.start()
    while node.store.follow():
        pass
    assert node.store.leader is not None
    assert node.store.leader.node == "", "it has resigned"
    node.store.has_heir = True
    store = node.store
    refused(Corrupt)  # who follows hands nothing over
