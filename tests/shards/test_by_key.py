"""A message by its key: found, cancelled, moved, replaced; in one group and in many; against a dull oracle.

The oracle is a list of messages and a dictionary of keys. It knows no rows, no positions, no groups: a group
that is not written is an older copy of it.
"""

import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shards.dedupe import Refused
from shards.draft import Control, Known, Outcome, Terms
from shards.expiry import expire
from shards.garbage import clear, forget, left, look
from shards.record import CANCELLED, decode
from shards.recover import Opened, undo_group
from tests.support.memory_store import MemoryStore
from timeline.position import MessageId, before, id_shard

from .timelines import NOW, QUARTER, draft, group, open_at, piece_at, put, sync
from .timelines import texts as payloads

KEY, OTHER = b"k" * 16, b"o" * 16
REPLACE, KEY_ONLY = Terms(replace=True), Terms(key_only=True)
MINUTE = 60_000


def seal(opened: Opened) -> None:
    sync(opened, opened.open_batch.seal())


def named(opened: Opened, key: bytes = KEY) -> MessageId | None:
    """The message under a key as the open group leaves it."""
    row = opened.commit.known_under(key)
    found = None if row is None else opened.commit.find_known(row)
    return None if found is None else found.id


# -- by its key in its own group


@pytest.mark.parametrize("terms", [Terms(), REPLACE])
def test_a_message_is_found_by_its_key_in_its_own_group(opened: Opened, terms: Terms) -> None:
    """Among others, so that it is not the last one that was placed."""
    commit = group(opened)
    others = [draft(NOW + n * QUARTER, f"{n}") for n in range(1, 4)]
    *_, mine, _ = commit.put([*others, draft(NOW + 5, "mine", key=KEY), draft(NOW + 6, "last")], terms)
    assert named(opened) == mine
    assert named(opened, OTHER) is None
    assert commit.put([draft(NOW + 5, "mine", key=KEY)], terms) == [Known(mine, NOW + 5)]  # type: ignore[arg-type]
    seal(opened)
    assert payloads(opened) == ["mine", "last", "1", "2", "3"]


def test_cancelled_and_replaced_in_its_own_group_nobody_gets_it(opened: Opened) -> None:
    commit = group(opened)
    (first,) = commit.put([draft(NOW + 5, "first", key=KEY)])
    wanted = named(opened)
    assert wanted == first
    for _ in range(2):
        assert commit.cancel(wanted).outcome is Outcome.DONE
        assert named(opened) == first, "it is told of until another has its key"
    (second,) = commit.put([draft(NOW + 9, "second", key=KEY, fingerprint=b"2" * 16)], REPLACE)
    assert named(opened) == second != first
    made = opened.open_batch.seal()
    assert [place for place, _, _ in made.placed if place not in made.gone] == [made.placed[1][0]]
    sync(opened, made)
    assert payloads(opened) == ["-", "second"]
    assert opened.waiting.pending == 1


def test_moved_in_its_own_group_it_keeps_its_key(opened: Opened) -> None:
    commit = group(opened)
    (first,) = commit.put([draft(NOW + 5, "first", key=KEY)])
    assert named(opened) == first
    commit.move(first, NOW + 2 * QUARTER)  # type: ignore[arg-type]
    assert named(opened) == first
    seal(opened)
    piece = piece_at(opened, NOW + 5)
    expire(group(opened), [piece])
    assert named(opened) == first, "its key goes with where it is, not with where it was"


# -- replaced


def test_who_is_replaced_does_not_take_the_key_along(opened: Opened) -> None:
    """It was cancelled while it was held: its stub is put on the timeline later than the message that has its
    key now, in another slice, and goes with that."""
    opened.directory.floor = before(NOW - QUARTER)
    early, due = NOW - 60_000, NOW - 30_000
    (first,) = put(opened, draft(due, "first", key=KEY), wall_ms=early)
    assert id_shard(first) == 0xFFFF
    commit = group(opened, early)
    commit.cancel(first)
    (second,) = commit.put([draft(NOW + 5 * QUARTER, "second", key=KEY)], REPLACE)
    seal(opened)
    commit = group(opened, due)
    (held,) = [place for place, _, _ in opened.reader.held()]
    commit.release(held)
    seal(opened)
    piece = piece_at(opened, NOW)
    expire(group(opened), [piece])
    assert named(opened) == second
    assert commit.taken(KEY) is not None


def test_only_what_was_cancelled_is_replaced(opened: Opened) -> None:
    (first,) = put(opened, draft(NOW + 5, "first", key=KEY))
    other = draft(NOW + 9, "other", key=KEY, fingerprint=b"2" * 16)
    for wall_ms in (NOW, NOW + 6):
        commit = group(opened, wall_ms)
        with pytest.raises(Refused):
            commit.put([other], REPLACE)
        assert commit.put([draft(NOW + 5, key=KEY)], REPLACE) == [Known(first, NOW + 5)]
        assert commit.put([other], KEY_ONLY) == [Known(first, NOW + 5)]
        assert commit.put([other], Terms(key_only=True, replace=True)) == [Known(first, NOW + 5)]


def test_twins_that_replace_are_one_message(opened: Opened) -> None:
    (first,) = put(opened, draft(NOW + 5, key=KEY))
    commit = group(opened)
    commit.cancel(first)
    one, twin = commit.put([draft(NOW + 7, key=KEY), draft(NOW + 7, key=KEY)], REPLACE)
    assert one == twin != first
    assert commit.put([draft(NOW + 7, key=KEY)], REPLACE) == [Known(one, NOW + 7)]  # type: ignore[arg-type]


def test_twins_of_one_key_only_need_not_be_alike(opened: Opened) -> None:
    one, twin = group(opened).put(
        [draft(NOW + 7, key=KEY), draft(NOW + 9, key=KEY, fingerprint=b"2" * 16)], KEY_ONLY
    )
    assert one == twin


# -- against the oracle


@dataclass
class Letter:
    """A message, dully."""

    key: bytes
    fingerprint: bytes
    first_due_ms: int
    at_ms: int
    is_cancelled: bool = False


@dataclass
class Oracle:
    """What there is."""

    wall_ms: int = NOW
    floor_ms: int = 0
    letters: dict[int, Letter] = field(default_factory=dict)
    keys: dict[bytes, int] = field(default_factory=dict)

    def here(self, key: bytes) -> Letter | None:
        letter = self.letters.get(self.keys.get(key, 0))
        return letter if letter is not None and letter.at_ms >= self.floor_ms else None

    def put(self, key: bytes, fingerprint: bytes, terms: Terms) -> str:
        letter = self.here(key)
        if letter is None or (letter.is_cancelled and terms.replace):
            return "new"
        return "known" if fingerprint == letter.fingerprint or terms.key_only else "refused"

    def winnable(self, key: bytes) -> Outcome | None:
        """None: nothing is known under the key."""
        if key not in self.keys:
            return None
        letter = self.here(key)
        if letter is None:
            return Outcome.NOT_FOUND
        if letter.is_cancelled:
            return Outcome.CANCELLED
        return Outcome.DONE if letter.at_ms > self.wall_ms else Outcome.ALREADY_DISPATCHED


KEYS = st.sampled_from((KEY, OTHER, b"t" * 16))
REQUESTS = st.sampled_from((b"1" * 16, b"2" * 16))
TERMS = st.builds(Terms, st.booleans(), st.booleans())
MINUTES = st.integers(0, 40)


class ByKey(RuleBasedStateMachine):
    """Keys put, cancelled, moved, replaced; groups sealed, given up; slices expired and their keys forgotten;
    the store opened again."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.opened = open_at(self.store)
        self.now, self.written = Oracle(), Oracle()
        self.commit = group(self.opened)

    def begin(self) -> None:
        self.commit = group(self.opened, self.now.wall_ms)

    @rule(key=KEYS, request=REQUESTS, terms=TERMS, minutes=MINUTES)
    def put(self, key: bytes, request: bytes, terms: Terms, minutes: int) -> None:
        now, due_ms = self.now, self.now.wall_ms + minutes * MINUTE
        expected, before_ms = now.put(key, request, terms), self.opened.waiting.pending
        drafts = [draft(due_ms, key=key, fingerprint=request)]
        if expected == "refused":
            with pytest.raises(Refused, match="another request"):
                self.commit.put(drafts, terms)
            return
        (answer,) = self.commit.put(drafts, terms)
        if expected == "known":
            name = now.keys[key]
            assert answer == Known(MessageId(name), now.letters[name].first_due_ms)
            return
        assert (expected, isinstance(answer, Known)) == ("new", False)
        assert isinstance(answer, int)
        assert answer not in now.letters
        now.letters[answer] = Letter(key, request, due_ms, due_ms)
        now.keys[key] = answer
        assert self.opened.waiting.pending == before_ms + 1

    def act(self, key: bytes, act: str, due_ms: int = 0) -> Control | None:
        wanted = named(self.opened, key)
        assert (wanted is None) == (self.now.here(key) is None)
        if wanted is None:
            return None
        assert wanted == self.now.keys[key]
        return self.commit.cancel(wanted) if act == "cancel" else self.commit.move(wanted, due_ms)

    @rule(key=KEYS)
    def cancel(self, key: bytes) -> None:
        control, expected = self.act(key, "cancel"), self.now.winnable(key)
        if control is None:
            assert expected in (None, Outcome.NOT_FOUND)
            return
        again = Outcome.DONE if expected is Outcome.CANCELLED else expected
        assert control.outcome is again
        if expected is Outcome.DONE:
            self.now.letters[self.now.keys[key]].is_cancelled = True

    @rule(key=KEYS, minutes=st.integers(1, 40))
    def move(self, key: bytes, minutes: int) -> None:
        due_ms = self.now.wall_ms + minutes * MINUTE
        control, expected = self.act(key, "move", due_ms), self.now.winnable(key)
        if control is not None:
            assert control.outcome is expected
            if expected is Outcome.DONE:
                self.now.letters[self.now.keys[key]].at_ms = due_ms

    @rule(minutes=st.sampled_from((0, 0, 1, 10, 20)))
    def seal(self, minutes: int) -> None:
        seal(self.opened)
        self.now.wall_ms += minutes * MINUTE
        self.written = copy.deepcopy(self.now)
        self.begin()

    @rule()
    def give_up(self) -> None:
        undo_group(self.opened)
        self.now = copy.deepcopy(self.written)
        self.begin()

    @rule()
    def open_again(self) -> None:
        self.opened = open_at(self.store, self.written.wall_ms)
        self.now = copy.deepcopy(self.written)
        self.begin()

    @precondition(lambda self: any(piece.end_ms <= self.now.wall_ms for piece in self.opened.directory))
    @rule()
    def expire(self) -> None:
        gone = expire(self.commit, [p for p in self.opened.directory if p.end_ms <= self.now.wall_ms])
        self.now.floor_ms = max(piece.end_ms for piece in gone)
        self.seal(0)

    @precondition(lambda self: any(left(self.store)))
    @rule()
    def forget(self) -> None:
        for start, end in list(left(self.store)):
            names = look(self.store, start, end, 1_000, 1 << 20).names
            forget(self.commit, names)
            clear(self.commit, start, end)
        now = self.now
        now.keys = {key: name for key, name in now.keys.items() if now.letters[name].at_ms >= now.floor_ms}
        self.seal(0)

    @invariant()
    def it_is_as_the_oracle_says(self) -> None:
        now = self.now
        waiting = [m for m in now.letters.values() if not m.is_cancelled and m.at_ms > now.wall_ms]
        live: list[bytes] = [m.key for m in waiting]
        assert len(live) == len(set(live)), "two messages wait under one key"
        for key in (KEY, OTHER, b"t" * 16):
            row = self.commit.known_under(key)
            assert (row is None) == (key not in now.keys)
            found = None if row is None else self.commit.find_known(row)
            letter = now.here(key)
            assert (found is None) == (letter is None)
            if found is not None and letter is not None:
                assert found.id == now.keys[key]
                assert (decode(found.value).stub == CANCELLED) == letter.is_cancelled
                assert found.position >> 48 == letter.at_ms


ByKey.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_keys_against_an_oracle = pytest.mark.long(ByKey.TestCase)
