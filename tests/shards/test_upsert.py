"""Upserts and debounces under keys: in any order and repeated, against a dull oracle; planted faults are
found."""

from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from shards.commit import Commit
from shards.dedupe import Refused
from shards.draft import Terms
from shards.garbage import clear, forget, left, look_through
from shards.pointers import pointers
from shards.recover import Opened
from shards.store import Table
from shards.upsert import Effect, Upserted, Version, cancel_under, debounce, under, upsert
from shards.verify import verify_tables
from tests.support.memory_store import MemoryStore
from tests.support.planted import Fault, finds

from .test_by_key import (
    KEY,
    KEYS,
    MINUTE,
    MINUTES,
    OTHER,
    REQUESTS,
    TERMS,
    ByKey,
    Letter,
    Oracle,
    named,
    seal,
)
from .timelines import NOW, QUARTER, draft, group, open_at, texts

VERSIONS = st.none() | st.tuples(st.integers(-2, 2), st.integers(0, 1))
HOUR = 60 * MINUTE


def wish(
    commit: Commit, text: str, version: Version | None, *, key: bytes = KEY, due_ms: int = NOW + 5
) -> Upserted:
    """A message under a key; empty text: cancelled."""
    what = under(commit, key)
    if not text:
        return cancel_under(commit, what, version)
    return upsert(commit, what, draft(due_ms, text, key=key), version)


@pytest.mark.parametrize("is_one_group", [True, False])
def test_in_any_order_and_repeated_the_highest_version_counts(is_one_group: bool) -> None:
    chance = Random(7)
    wishes: list[tuple[str, Version]] = [("a", (1, 0)), ("", (1, 5)), ("b", (2, -1)), ("c", (2, 0))]
    for last in range(1, 5):
        for order in permutations(wishes[:last]):
            opened = open_at(MemoryStore())
            commit = group(opened)
            for text, version in [*order, *chance.choices(order, k=3)]:
                wish(commit, text, version)
                if not is_one_group:
                    seal(opened)
                    commit = group(opened)
            seal(opened)
            live = [text for text in texts(opened) if text != "-"]
            assert live == [text for text, _ in wishes[last - 1 : last] if text]
            assert opened.waiting.pending == len(live)
            assert not list(pointers(opened.store, opened.directory))


def test_all_of_it_changes_and_its_id_stays(opened: Opened) -> None:
    commit = group(opened)
    made = wish(commit, "one", None, due_ms=NOW + 5)
    changed = wish(commit, "two", None, due_ms=NOW + 3 * QUARTER)
    assert (made.effect, changed.effect, changed.id) == (Effect.MADE, Effect.CHANGED, made.id)
    seal(opened)
    assert texts(opened) == ["-", "two"]
    assert named(opened) == made.id
    assert opened.waiting.pending == 1


def test_a_version_outlives_its_message_and_whoever_takes_the_key(opened: Opened) -> None:
    """Cancelled, replaced by a POST, dispatched: the version is known all the time."""
    commit = group(opened)
    wish(commit, "one", (5, 0))
    assert wish(commit, "", None).effect is Effect.CANCELLED
    commit.put([draft(NOW + 9, "posted", key=KEY, fingerprint=b"2" * 16)], Terms(replace=True))
    seal(opened)
    for wall_ms in (NOW, NOW + 10):
        commit = group(opened, wall_ms)
        assert wish(commit, "late", (5, 0)).effect is Effect.NOTHING
        assert wish(commit, "", (4, 9)).effect is Effect.NOTHING
        seal(opened)
    assert [text for text in texts(opened) if text != "-"] == ["posted"]
    commit = group(opened, NOW + 10)
    assert wish(commit, "next", (5, 1), due_ms=NOW + HOUR).effect is Effect.MADE


def test_dispatched_it_is_too_late_unless_a_version_says_that_it_is_another_wish(opened: Opened) -> None:
    first = wish(group(opened), "one", (1, 0))
    seal(opened)
    commit = group(opened, NOW + 10)
    assert wish(commit, "two", None).effect is Effect.TOO_LATE
    assert wish(commit, "", (3, 0)).effect is Effect.TOO_LATE
    overtaken = wish(commit, "two", (2, 0))
    assert (overtaken.effect, overtaken.id) == (Effect.NOTHING, first.id)
    assert wish(commit, "four", (4, 0), due_ms=NOW + HOUR).effect is Effect.MADE


def test_an_unknown_key_is_cancelled_by_a_version_alone(opened: Opened) -> None:
    commit = group(opened)
    assert wish(commit, "", None).effect is Effect.UNKNOWN
    assert wish(commit, "", (2, 0)).effect is Effect.NOTED
    assert wish(commit, "one", (1, 0)).effect is Effect.NOTHING
    assert wish(commit, "", (2, 0)).id == 0
    seal(opened)
    assert opened.waiting.pending == 0
    assert not list(pointers(opened.store, opened.directory))
    assert not verify_tables(opened.store)
    assert wish(group(opened), "three", (3, 0)).effect is Effect.MADE


def test_a_debounce_never_goes_beyond_its_first_bound(opened: Opened) -> None:
    first = debounce(group(opened), under(opened.commit, KEY), draft(NOW + 30, "0", key=KEY), NOW + 100)
    seal(opened)
    for at in range(10, 100, 10):
        commit = group(opened, NOW + at)
        again = debounce(commit, under(commit, KEY), draft(NOW + at + 30, f"{at}", key=KEY), NOW + at + 100)
        assert (again.effect, again.id) == (Effect.CHANGED, first.id)
        assert again.due_ms == min(NOW + at + 30, NOW + 100)
        seal(opened)
    assert [text for text in texts(opened) if text != "-"] == ["90"]
    commit = group(opened, NOW + 100)
    anew = debounce(commit, under(commit, KEY), draft(NOW + 130, "new", key=KEY), NOW + 200)
    assert (anew.effect, anew.id != first.id) == (Effect.MADE, True)


def test_a_debounce_leaves_others_messages_alone(opened: Opened) -> None:
    commit = group(opened)
    commit.put([draft(NOW + 9, "posted", key=KEY)])
    with pytest.raises(Refused, match="without debounce"):
        debounce(commit, under(commit, KEY), draft(NOW + 30, "x", key=KEY), NOW + 100)
    seal(opened)
    assert texts(opened) == ["posted"]


@dataclass
class Wishes(Oracle):
    """What there is, with versions, the bounds of debounces, and keys that have a version alone."""

    versions: dict[bytes, Version] = field(default_factory=dict)
    bounds: dict[bytes, int] = field(default_factory=dict)
    noted: dict[bytes, int] = field(default_factory=dict)
    """When they were remembered, wall ms."""

    def is_known(self, key: bytes) -> bool:
        """Whether retention has not passed the key."""
        at_ms = self.noted[key] if key in self.noted else self.letters[self.keys[key]].at_ms
        return at_ms >= self.floor_ms

    def forget(self) -> None:
        """Keys that retention has passed."""
        for key in [key for key in self.keys if not self.is_known(key)]:
            del self.keys[key]
            self.made(key, None)

    def made(self, key: bytes, version: Version | None, bound_ms: int = 0) -> None:
        """A new message, or a version alone, is under the key from now on."""
        for rows in (self.versions, self.bounds, self.noted):
            rows.pop(key, None)
        if version is not None:
            self.versions[key] = version
        if bound_ms:
            self.bounds[key] = bound_ms


class Upserts(ByKey):
    """The same with upserts, cancels and debounces under the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.written = Wishes(), Wishes()

    def known(self, key: bytes) -> Version | None:
        """The version that counts."""
        return self.now.versions.get(key) if key in self.now.keys and self.now.is_known(key) else None

    @rule(key=KEYS, request=REQUESTS, terms=TERMS, minutes=MINUTES)
    def put(self, key: bytes, request: bytes, terms: Terms, minutes: int) -> None:
        before, version = self.now.keys.get(key), self.known(key)
        super().put(key, request, terms, minutes)
        if self.now.keys.get(key) != before:
            self.now.made(key, version)

    def placed(self, key: bytes, answer: Upserted, due_ms: int, is_pending: bool) -> None:
        """A message was made or changed."""
        now = self.now
        assert answer.effect is (Effect.CHANGED if is_pending else Effect.MADE)
        assert (answer.id == now.keys.get(key)) == is_pending
        if is_pending:
            now.letters[now.keys[key]].at_ms = max(due_ms, now.wall_ms)
        else:
            assert answer.id not in now.letters
            now.letters[answer.id] = Letter(key, key, due_ms, max(due_ms, now.wall_ms))
            now.keys[key] = answer.id

    @rule(key=KEYS, version=VERSIONS, minutes=MINUTES, while_undone=st.booleans())
    def upsert(self, key: bytes, version: Version | None, minutes: int, while_undone: bool) -> None:
        now, due_ms, known = self.now, self.now.wall_ms + minutes * MINUTE, self.known(key)
        wanted = replace(draft(due_ms, key=key), while_undone=while_undone)
        answer = upsert(self.commit, under(self.commit, key), wanted, version)
        letter = now.here(key)
        if version is not None and known is not None and version <= known:
            assert answer.effect is Effect.NOTHING
            return
        is_there = letter is not None and not letter.is_cancelled
        is_pending = letter is not None and is_there and letter.at_ms > now.wall_ms
        if is_there and not is_pending and (while_undone or version is None):
            assert answer.effect is Effect.TOO_LATE
            return
        bound_ms = now.bounds.get(key, 0) if is_pending else 0
        self.placed(key, answer, due_ms, is_pending)
        now.made(key, version or known, bound_ms)

    @rule(key=KEYS, version=VERSIONS)
    def cancel_under(self, key: bytes, version: Version | None) -> None:
        now, letter, known = self.now, self.now.here(key), self.known(key)
        answer = cancel_under(self.commit, under(self.commit, key), version)
        if version is not None and known is not None and version <= known:
            assert answer.effect is Effect.NOTHING
        elif letter is not None:
            if letter.is_cancelled:
                assert answer.effect is Effect.NOTED
            else:
                is_won = letter.at_ms > now.wall_ms
                assert answer.effect is (Effect.CANCELLED if is_won else Effect.TOO_LATE)
                letter.is_cancelled = is_won
            now.versions.update({} if version is None else {key: version})
        elif version is None:
            assert answer.effect is Effect.UNKNOWN
        else:
            assert answer.effect is Effect.NOTED
            now.made(key, version)
            now.keys[key], now.noted[key] = 0, now.wall_ms

    @rule(key=KEYS, wait=st.integers(1, 20), more=st.integers(0, 20))
    def debounce(self, key: bytes, wait: int, more: int) -> None:
        now, letter, version = self.now, self.now.here(key), self.known(key)
        due_ms, until_ms = now.wall_ms + wait * MINUTE, now.wall_ms + (wait + more) * MINUTE
        is_pending = letter is not None and not letter.is_cancelled and letter.at_ms > now.wall_ms
        asked = partial(debounce, self.commit, under(self.commit, key), draft(due_ms, key=key), until_ms)
        if is_pending and not now.bounds.get(key):
            with pytest.raises(Refused, match="without debounce"):
                asked()
            return
        until_ms = now.bounds[key] if is_pending else until_ms
        answer = asked()
        assert answer.due_ms <= max(until_ms, now.wall_ms), "a debounce goes beyond its bound"
        self.placed(key, answer, min(due_ms, until_ms), is_pending)
        now.made(key, version, until_ms)

    @precondition(lambda self: any(left(self.store)))
    @rule()
    def forget(self) -> None:
        for start, end in list(left(self.store)):
            clear(self.commit, start, end)
        floor = self.opened.directory.floor
        names = look_through(self.store, Table.DEDUPE, b"", 1_000, 1 << 20, floor).names
        forget(self.commit, names)
        self.now.forget()
        self.seal(0)

    @invariant()
    def versions_are_as_the_oracle_says(self) -> None:
        for key in (KEY, OTHER, b"t" * 16):
            row = self.commit.standing(key)
            is_known = key in self.now.keys and self.now.is_known(key)
            assert (row is not None) == is_known
            if row is not None:
                assert row.extra.version == self.now.versions.get(key)
                assert row.extra.until_ms == self.now.bounds.get(key, 0)


Upserts.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_upserts_against_an_oracle = pytest.mark.long(Upserts.TestCase)


@pytest.mark.long
@finds("upsert")
def test_a_planted_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    few = settings(
        max_examples=300, stateful_step_count=30, deadline=None, database=None, phases=[Phase.generate]
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Upserts, settings=few)  # type: ignore[no-untyped-call]
