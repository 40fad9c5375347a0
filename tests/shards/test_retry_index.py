"""Retries by message: found and ended, wherever they stand; against what the rows say."""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shards import keys
from shards.dead import bury, letters, letters_of_message, remove_of, stored_totals
from shards.expiry import expire
from shards.fields import Record, Retry
from shards.group_commit import GroupCommit
from shards.leavings import forget, left, look, look_through
from shards.memory import MemoryStore
from shards.pointers import pointers, repair_pointers
from shards.record import decode, encode, is_stub
from shards.recover import Opened, read_directory, undo_group
from shards.retries import Standing, end_retries, put_retry, retries_of_message, retry_of
from shards.retry_index import SPOTS_MAX
from shards.store import Table
from shards.tables import DeadRow, spots_value
from shards.verify import verify_counts, verify_owners
from timeline.position import END, HELD_SHARD, START, MessageId, Position, position

from .splits import FAR, Split
from .timelines import NOW, QUARTER, group, open_at, sync
from .timelines import texts as payloads

A, B = b"session a", b"\0share/$share/b/t"
ONE, TWO = MessageId(1 << 80 | 1), MessageId(1 << 80 | 2)
OWNER = b"meter"


def retry(message: MessageId, due_ms: int, addressee: bytes, owner: bytes = OWNER) -> Record:
    record = Record(b"t", b"x", owner=owner)
    return retry_of(record, message, due_ms, Retry(addressee, 1, 1, b"busy"))


def seal(opened: Opened) -> GroupCommit:
    return sync(opened, opened.open_group.seal())


def put(
    opened: Opened, due_ms: int, message: MessageId = ONE, addressee: bytes = A, wall_ms: int = NOW
) -> Position:
    place = put_retry(group(opened, wall_ms), retry(message, due_ms, addressee), is_owed=False)
    seal(opened)
    return place


def end(opened: Opened, message: MessageId = ONE, addressee: bytes = A) -> int:
    return end_retries(group(opened, opened.horizon.clock_ms), message, addressee)


def standing(opened: Opened, message: MessageId = ONE) -> list[Standing]:
    return list(retries_of_message(opened.reader, opened.horizon.position, message))


def rows(opened: Opened) -> list[bytes]:
    return [key for key, _ in opened.store.scan(Table.RETRIES, b"", b"\xff" * 40)]


def pass_to(opened: Opened, at_ms: int) -> None:
    """The horizon comes to what was placed up to that millisecond."""
    horizon = opened.horizon
    horizon.observe(at_ms)
    to = position(at_ms, horizon.seq)
    passed = list(opened.reader.read(Position(horizon.position + 1), Position(to + 1)))
    live = [value for _, _, value in passed if not is_stub(value)]
    opened.waiting.dispatched(len(live))
    for _ in live:
        opened.owned.passed(OWNER)
    horizon.advance(to)


def check(opened: Opened) -> None:
    """All that is derived from rows is as the rows say, once the horizon is written."""
    group(opened, opened.horizon.clock_ms)
    seal(opened)
    assert verify_counts(opened.store, opened.directory) == []
    assert verify_owners(opened.store, opened.directory, opened.horizon.position) == []
    assert list(pointers(opened.store, opened.directory)) == []
    pending = opened.pending
    opened.recount()
    assert opened.pending == pending


@pytest.fixture
def opened() -> Opened:
    return open_at(MemoryStore())


def test_one_that_waits_is_ended_by_a_stub(opened: Opened) -> None:
    place = put(opened, NOW + 5_000)
    assert standing(opened) == [Standing(place, 0, A.decode(), True, Retry(A, 1, 1, b"busy"))]
    assert opened.owned.pending(OWNER) == opened.pending == 1
    assert end(opened) == 1
    made = seal(opened)
    assert (made.gone, made.floor) == ([place], place)
    assert (standing(opened), rows(opened), payloads(opened)) == ([], [], ["-"])
    assert opened.owned.pending(OWNER) == opened.pending == 0
    assert opened.reader.next_retry(START, END) is None
    check(opened)
    assert end(opened) == 0


def test_only_what_is_the_addressees_and_the_messages_is_ended(opened: Opened) -> None:
    put(opened, NOW + 1_000)
    others = {put(opened, NOW + 1_000, ONE, B), put(opened, NOW + 1_000, TWO, A)}
    put(opened, NOW + 2_000)
    assert [one.addressee for one in standing(opened)].count(A.decode()) == 2
    assert end(opened) == 2
    seal(opened)
    assert {one.place for message in (ONE, TWO) for one in standing(opened, message)} == others
    assert opened.pending == 2
    check(opened)


def test_addressees_of_one_hash_are_told_apart(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "retries_of", lambda message, _: keys.retries_of_message(message) + bytes(8))
    put(opened, NOW + 1_000, ONE, A)
    other = put(opened, NOW + 1_000, ONE, B)
    assert end(opened) == 1
    seal(opened)
    assert [one.place for one in standing(opened)] == [other]
    check(opened)


def test_one_is_ended_in_the_group_that_has_placed_it(opened: Opened) -> None:
    commit = group(opened)
    places = [put_retry(commit, retry(ONE, NOW + n, A), is_owed=False) for n in (1, 2)]
    assert end_retries(commit, ONE, A) == 2
    made = seal(opened)
    assert sorted(made.gone) == places
    assert (payloads(opened), rows(opened), opened.pending) == (["-", "-"], [], 0)
    check(opened)


def test_one_that_the_horizon_has_passed_is_ended_for_who_reads_on(opened: Opened) -> None:
    place = put(opened, NOW + 1_000)
    pass_to(opened, NOW + 2_000)
    (one,) = standing(opened)
    assert (one.place, one.is_waiting) == (place, False)
    assert end(opened) == 1
    made = seal(opened)
    assert (made.gone, made.floor) == ([], None), "it holds dispatch back from nothing"
    assert (payloads(opened), rows(opened), opened.pending) == (["-"], [], 0)
    check(opened)


def test_one_that_is_due_but_not_passed_is_pending_until_it_is_ended(opened: Opened) -> None:
    put(opened, NOW + 1_000)
    opened.horizon.observe(NOW + 2_000)
    assert end(opened) == 1
    seal(opened)
    assert (opened.pending, opened.owned.pending(OWNER)) == (0, 0)
    check(opened)


def test_a_new_one_forgets_those_that_were_passed(opened: Opened) -> None:
    for n in range(3):
        put(opened, NOW + 1_000 + n)
    pass_to(opened, NOW + 2_000)
    assert len(standing(opened)) == 3
    place = put(opened, NOW + 5_000, wall_ms=NOW + 2_000)
    assert [one.place for one in standing(opened)] == [place]
    check(opened)


@pytest.mark.parametrize("order", [1, -1])
def test_of_many_that_wait_the_last_ones_are_known(opened: Opened, order: int) -> None:
    places = [put(opened, NOW + 1_000 + 10 * order * n) for n in range(SPOTS_MAX + 2)]
    assert [one.place for one in standing(opened)] == places[2:]
    check(opened)
    assert end(opened) == SPOTS_MAX
    seal(opened)
    assert opened.pending == 2


def held(opened: Opened) -> Position:
    """One that waits in `held`: the clock was at NOW + 60 s, and is set back to NOW."""
    opened.horizon.observe(NOW + 60_000)
    return put(opened, NOW + 5_000)


def test_one_in_held_is_ended_without_a_trace(opened: Opened) -> None:
    place = held(opened)
    ((found, shard, _, is_waiting, _),) = standing(opened)
    assert (found, shard, is_waiting, opened.held) == (place, HELD_SHARD, True, 1)
    check(opened)
    assert end(opened) == 1
    seal(opened)
    assert (opened.held, opened.pending, rows(opened), payloads(opened)) == (0, 0, [], [])
    assert opened.owned.pending(OWNER) == 0
    check(opened)


def test_one_that_was_held_is_found_where_it_is_put(opened: Opened) -> None:
    place = held(opened)
    group(opened, NOW + 5_000).release(place)
    seal(opened)
    (one,) = standing(opened)
    assert (one.shard, one.is_waiting) == (0, True)
    check(opened)
    assert end(opened) == 1
    seal(opened)
    assert (opened.pending, rows(opened), payloads(opened)) == (0, [], ["-"])
    check(opened)


def test_one_that_could_not_be_read_is_found_where_it_goes(opened: Opened) -> None:
    put(opened, NOW + 1_000)
    pass_to(opened, NOW + 2_000)
    commit = group(opened, NOW + 2_000)
    (one,) = standing(opened)
    found = commit.at(ONE, (one.place, one.shard))
    assert found is not None
    commit.revive(found)
    seal(opened)
    (again,) = standing(opened)
    assert again.place > one.place
    assert again.is_waiting
    assert list(pointers(opened.store, opened.directory)) == []
    assert verify_counts(opened.store, opened.directory) == []


def test_a_group_that_is_given_up_ends_nothing(opened: Opened) -> None:
    place = put(opened, NOW + 1_000)
    assert end(opened) == 1
    undo_group(opened)
    assert [one.place for one in standing(opened)] == [place]
    assert (opened.pending, opened.owned.pending(OWNER)) == (1, 1)
    check(opened)
    assert end(opened) == 1
    seal(opened)
    check(opened)


def test_what_cannot_be_read_stays(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    place = put(opened, NOW + 1_000)
    commit = group(opened)
    shard = next(iter(opened.directory)).shards[0]
    commit.row(Table.MESSAGES, shard.prefix + keys.place(place), b"\2" + bytes(30))
    assert end_retries(commit, ONE, A) == 0
    commit.row(Table.RETRIES, keys.retries_of(ONE, A), b"rotten")
    assert end_retries(commit, ONE, A) == 0
    assert "cannot be read" in caplog.text
    seal(opened)
    assert standing(opened) == []


def test_they_expire_with_their_slices(opened: Opened) -> None:
    put(opened, NOW + 500)
    put(opened, NOW + 500, TWO)
    later = put(opened, NOW + 5 * QUARTER, TWO, B)
    pass_to(opened, NOW + QUARTER)
    expire(group(opened, NOW + QUARTER), [next(iter(opened.directory))])
    seal(opened)
    walked = look_through(opened.store, Table.RETRIES, b"", 100, opened.directory.floor).names
    ((start, stop),) = left(opened.store)
    names = look(opened.store, start, stop, 100, 1 << 20).names
    gone = [(Table.RETRIES, keys.retries_of(message, A)) for message in (ONE, TWO)]
    assert [name for name in names if name[0] is Table.RETRIES] == walked == gone
    assert forget(group(opened, NOW + QUARTER), names) == 2
    seal(opened)
    assert rows(opened) == [keys.place(later), keys.retries_of(TWO, B)]
    check(opened)


def test_one_that_stands_elsewhere_keeps_the_row(opened: Opened) -> None:
    put(opened, NOW + 500)
    put(opened, NOW + 5 * QUARTER)
    pass_to(opened, NOW + QUARTER)
    expire(group(opened, NOW + QUARTER), [next(iter(opened.directory))])
    seal(opened)
    ((start, stop),) = left(opened.store)
    names = look(opened.store, start, stop, 100, 1 << 20).names
    assert forget(group(opened, NOW + QUARTER), names) == 0
    assert end(opened) == 1
    seal(opened)
    assert rows(opened) == []


def _wrong_spot(opened: Opened) -> bytes:
    return spots_value([(Position(NOW << 48), 0)])


@pytest.mark.parametrize("how", ["missing", "partly", "too many", "nobody's", "rotten"])
def test_what_is_wrong_is_found_and_repaired(opened: Opened, how: str) -> None:
    put(opened, NOW + 500)
    places = [put(opened, NOW + 1_000), put(opened, NOW + 2_000)]
    pass_to(opened, NOW + 600)
    key = keys.retries_of(ONE, A)
    value = opened.store.get(Table.RETRIES, key)
    assert value is not None
    commit = group(opened, NOW + 600)
    wrong = {
        "missing": None,
        "partly": value[:-14],
        "too many": value + _wrong_spot(opened),
        "nobody's": value,
        "rotten": b"rotten",
    }
    commit.row(Table.RETRIES, key, wrong[how])
    if how == "nobody's":
        commit.row(Table.RETRIES, keys.retries_of(ONE, b"nobody"), _wrong_spot(opened))
    seal(opened)
    found = list(pointers(opened.store, opened.directory))
    assert len(found) == 1
    repair_pointers(opened.store, found)
    assert list(pointers(opened.store, opened.directory)) == []
    assert [one.place for one in standing(opened) if one.is_waiting] == places


@pytest.mark.parametrize("is_passed", [False, True])
def test_a_retry_that_ends_in_a_borrowed_shard_is_counted(is_passed: bool) -> None:
    """Also behind the horizon, where nothing else changes."""
    split = Split()
    opened = split.opened
    put(opened, FAR + 500)
    put(opened, FAR + 30_000_000, TWO)
    split.split(FAR + 4_000, FAR + 8_000)
    if is_passed:
        pass_to(opened, FAR + 31_000_000)
    live = split.slices()[0].live
    assert end(opened, TWO) == 1
    seal(opened)
    assert split.slices()[0].live == live, "its slice has it alone"
    assert end(opened) == 1
    seal(opened)
    assert split.slices()[0].live == live - 1
    assert verify_counts(opened.store, opened.directory) == []
    assert verify_counts(opened.store, read_directory(opened.store, 50)) == []


# -- dead letters of a message


def dead_row(message: MessageId, addressee: str) -> DeadRow:
    record = encode(Record(b"t", b"x"))
    return DeadRow(addressee, addressee, keys.message(message), 1, "busy", "", 0, record)


def dig(opened: Opened, message: MessageId, addressee: str) -> None:
    bury(opened.commit, dead_row(message, addressee), max_messages=10, max_bytes=10_000)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_the_dead_letter_of_who_has_done_it_goes(opened: Opened, is_sealed: bool) -> None:
    """Also in the group in which it was buried."""
    group(opened)
    for message, addressee in ((ONE, "a"), (ONE, "b"), (TWO, "a")):
        dig(opened, message, addressee)
    if is_sealed:
        seal(opened)
        group(opened)
    assert remove_of(opened.commit, ONE, "a") == 1
    assert remove_of(opened.commit, ONE, "a") == 0
    seal(opened)
    assert [(row.id, row.addressee) for _, row in letters(opened.store)] == [
        (keys.message(ONE), "b"),
        (keys.message(TWO), "a"),
    ]
    assert [row.addressee for _, row in letters_of_message(opened.store, ONE)] == ["b"]
    assert stored_totals(opened.store).count == 2
    assert list(pointers(opened.store, opened.directory)) == []


# -- all of it, at random

MESSAGES, ADDRESSEES = (ONE, TWO), (A, B)


class Retries(RuleBasedStateMachine):
    """Retries that come, are passed and are ended, against a set."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = open_at(MemoryStore())
        self.now_ms = NOW
        self.waiting: set[tuple[Position, MessageId, bytes]] = set()
        self.passed: set[tuple[Position, MessageId, bytes]] = set()

    @rule(
        message=st.sampled_from(MESSAGES),
        addressee=st.sampled_from(ADDRESSEES),
        after_ms=st.sampled_from([0, 1, 500, QUARTER]),
        is_ended=st.booleans(),
    )
    def put(self, message: MessageId, addressee: bytes, after_ms: int, is_ended: bool) -> None:
        commit = group(self.opened, self.now_ms)
        record = retry(message, self.now_ms + after_ms, addressee)
        place = put_retry(commit, record, is_owed=True)
        self.waiting.add((place, message, addressee))
        # Of those that were passed none is known any more.
        self.passed = {one for one in self.passed if one[1:] != (message, addressee)}
        if is_ended:
            self._ended(message, addressee, end_retries(commit, message, addressee))
        seal(self.opened)

    @rule(message=st.sampled_from(MESSAGES), addressee=st.sampled_from(ADDRESSEES), is_undone=st.booleans())
    def end(self, message: MessageId, addressee: bytes, is_undone: bool) -> None:
        ended = end_retries(group(self.opened, self.now_ms), message, addressee)
        if is_undone:
            undo_group(self.opened)
            return
        self._ended(message, addressee, ended)
        seal(self.opened)

    def _ended(self, message: MessageId, addressee: bytes, ended: int) -> None:
        gone = {one for one in self.waiting | self.passed if one[1:] == (message, addressee)}
        assert ended == len(gone)
        self.waiting -= gone
        self.passed -= gone

    @rule(passed_ms=st.sampled_from([1, 500, QUARTER]))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        pass_to(self.opened, self.now_ms)
        gone = {one for one in self.waiting if one[0] <= self.opened.horizon.position}
        self.waiting -= gone
        self.passed |= gone

    @precondition(lambda self: self.now_ms > NOW)
    @rule()
    def start_again(self) -> None:
        group(self.opened, self.now_ms)
        seal(self.opened)
        self.opened = open_at(self.opened.store, self.now_ms)  # type: ignore[arg-type]

    def _told(self) -> Iterator[tuple[bool, Position, MessageId, bytes]]:
        for message in MESSAGES:
            for one in standing(self.opened, message):
                yield one.is_waiting, one.place, message, one.addressee.encode()

    @invariant()
    def is_told(self) -> None:
        told = set(self._told())
        assert {one[1:] for one in told if one[0]} == self.waiting
        assert {one[1:] for one in told if not one[0]} == self.passed
        assert self.opened.pending == len(self.waiting)
        ahead = self.opened.reader.read(Position(self.opened.horizon.position + 1), END)
        assert {place for place, _, value in ahead if not is_stub(value)} == {one[0] for one in self.waiting}
        for _, _, value in self.opened.reader.read(START, END):
            assert decode(value).retry is not None
        check(self.opened)


Retries.TestCase.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
TestRetries = pytest.mark.long(Retries.TestCase)
