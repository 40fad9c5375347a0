"""Whose turn it is, against the dullest thing that can say so."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from server.delivery.picker import CAPACITY_FIRST, STALE_MAX, Picker
from server.delivery.subscriber import Subscriber
from server.delivery.write_barrier import Persisted
from tests.support.link import FakeLink
from tests.support.soak import SOAK
from timeline.position import Position
from timeline.session import Flight, Session, Subscription

TEXT = "$share/g/t"
MEMBERS = 5
ONE = st.integers(0, MEMBERS - 1)


def member(name: str, window: int = 1_000) -> Subscriber:
    made = Subscriber(Session(name, read=Position(0), expiry_s=0, window=window), set(), _persist)
    made.link = FakeLink()
    return made


def _persist(_: Subscriber, __: Persisted) -> None:
    raise AssertionError("nothing here is QoS 2")


class Group:
    """Members, what they have, and their picker."""

    def __init__(self) -> None:
        self.members: dict[Subscriber, Subscription] = {}
        self.lent: dict[Subscriber, dict[int, Flight]] = {}
        self.picker = Picker(self.members, self.lent)

    def join(self, one: Subscriber) -> None:
        self.members[one] = Subscription(TEXT, 1, Position(0))
        self.picker.meet(one)

    def give(self, count: int = 1) -> Subscriber | None:
        chosen = self.picker.next(None)
        if chosen is not None:
            flights = chosen.session.launch_run([(Position(1), 0)] * count, 1)
            self.lent.setdefault(chosen, {}).update({flight.packet_id: flight for flight in flights})
            self.picker.gave(chosen)
        return chosen

    def give_run(self, count: int) -> Counter[Subscriber]:
        """As a group does it: how many each was given."""
        given: Counter[Subscriber] = Counter()
        level = 0.0
        while (left := count - given.total()) and (chosen := self.picker.next(None)) is not None:
            part = self.picker.portion(chosen, level)
            if not part:
                level = self.picker.level(left, 1)
                part = self.picker.portion(chosen, level) or 1
            given[chosen] += min(part, left)
            self.give(min(part, left))
        return given

    def ack(self, one: Subscriber, count: int) -> int:
        theirs = self.lent.get(one, {})
        ended = list(theirs)[:count]
        for packet_id in ended:
            del theirs[packet_id], one.session.flights[packet_id]
        if not theirs:
            self.lent.pop(one, None)
        if ended:
            self.picker.acked(one, len(ended))
        return len(ended)


class Turns(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group = Group()
        self.all = [member(str(n), window=30 + 10 * n) for n in range(MEMBERS)]
        self.capacity: dict[Subscriber, int] = {}
        self.waits: list[Subscriber] = []
        """Those who are here, the one that waited longest first."""
        for one in self.all:
            self.meet(one)

    def meet(self, one: Subscriber) -> None:
        self.group.join(one)
        self.waits.append(one)
        self.capacity[one] = CAPACITY_FIRST

    def share(self, one: Subscriber) -> float:
        return len(self.group.lent.get(one, ())) / self.capacity[one]

    def has_room(self, one: Subscriber) -> bool:
        return self.share(one) < 1 and one.link is not None and one.link.has_room

    @rule(count=st.integers(1, 40))
    def give(self, count: int) -> None:
        for _ in range(count):
            free = [one for one in self.waits if self.has_room(one)]
            wanted = min(free, key=self.share, default=None)
            least = [one for one in free if wanted is not None and self.share(one) == self.share(wanted)]
            chosen = self.group.give()
            assert (chosen is None) == (wanted is None)
            if chosen is not None:
                assert chosen in least
                self.waits.remove(chosen)
                self.waits.append(chosen)

    @rule(count=st.integers(1, 200))
    def give_run(self, count: int) -> None:
        free = [one for one in self.waits if self.has_room(one)]
        lent = {one: len(self.group.lent.get(one, ())) for one in free}
        wanted: Counter[Subscriber] = Counter()
        for _ in range(count):
            able = [one for one in free if lent[one] + wanted[one] < self.capacity[one]]
            if able:
                wanted[min(able, key=lambda one: (lent[one] + wanted[one]) / self.capacity[one])] += 1
        found = self.group.give_run(count)
        assert found.total() == wanted.total()
        assert all(lent[one] + found[one] <= self.capacity[one] for one in found)
        assert all(abs(found[one] - wanted[one]) <= 1 for one in free)
        for one in found:
            self.waits.remove(one)
        self.waits += found

    @rule(which=ONE, count=st.integers(1, 40))
    def ack(self, which: int, count: int) -> None:
        one = self.all[which]
        ended = self.group.ack(one, count)
        if one in self.waits:
            self.capacity[one] = min(self.capacity[one] + ended, one.session.window)

    @rule(which=ONE, has_room=st.booleans())
    def block(self, which: int, has_room: bool) -> None:
        one = self.all[which]
        assert isinstance(one.link, FakeLink)
        one.link.room = None if has_room else 0
        if has_room and one in self.waits:
            self.group.picker.meet(one)

    @rule(which=ONE)
    def leave_or_come(self, which: int) -> None:
        one = self.all[which]
        if one in self.waits:
            self.waits.remove(one)
            self.group.picker.remove(one)
        else:
            self.meet(one)

    @invariant()
    def places_are_bounded(self) -> None:
        for line in (self.group.picker._usual, self.group.picker._picky):
            assert len(line._heap) <= 2 * MEMBERS + STALE_MAX + 1


Turns.TestCase.settings = settings(max_examples=500 if SOAK else 30, stateful_step_count=40, deadline=None)
TestTurns = pytest.mark.long(Turns.TestCase)


def test_equals_have_their_turns_one_after_the_other() -> None:
    group = Group()
    members = [member(str(n)) for n in range(3)]
    for one in members:
        group.join(one)
    assert [group.give() for _ in range(9)] == members * 3


def test_it_stays_the_same_one_s_turn_until_it_has_been_given_something() -> None:
    group = Group()
    for n in range(3):
        group.join(member(str(n)))
    first = group.picker.next(None)
    assert group.picker.next(None) is first
    assert group.give() is first
    assert group.picker.next(None) is not first


def test_members_without_room_are_looked_at_once() -> None:
    group, members = Group(), [member(str(n)) for n in range(3)]
    for one in members:
        group.join(one)
    assert group.picker.find_room(100) == 3 * CAPACITY_FIRST
    for one in members:
        assert isinstance(one.link, FakeLink)
        one.link.room = 0
    assert group.picker.find_room(100) == 0
    for one in members:
        assert isinstance(one.link, FakeLink)
        one.link.room = None
    assert group.picker.find_room(100) == 0
    assert group.picker.next(None) is None
    group.picker.meet(members[1])
    assert group.picker.find_room(100) == CAPACITY_FIRST
    assert group.picker.next(None) is members[1]
