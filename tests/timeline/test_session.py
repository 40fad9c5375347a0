"""Sessions: packet ids, windows, where subscriptions begin, what a replay brings again."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.soak import SOAK
from timeline.position import POSITION_BYTES, START, Position
from timeline.session import (
    LOSS,
    LOSSES_MAX,
    PACKET_ID_MAX,
    RETIRED_MAX,
    Flight,
    Loan,
    Resends,
    Session,
    Subscription,
)


def make(window: int = 3, read: int = 100) -> Session:
    return Session("c", read=Position(read), expiry_s=60, window=window)


def subscribe(session: Session, topic_filter: str, horizon: int, back: int | None = None) -> Subscription:
    wanted = Subscription(topic_filter, 1, Position(horizon))
    session.subscribe(wanted, Position(horizon), None if back is None else Position(back))
    return wanted


def since(session: Session) -> dict[str, int]:
    return {name: subscription.since for name, subscription in session.subscriptions.items()}


# -- in flight


def test_packet_ids_begin_at_one_and_grow() -> None:
    session = make()
    assert [session.launch(Position(n), 0, 1).packet_id for n in (101, 102, 103)] == [1, 2, 3]
    had_room = session.has_room
    assert session.ack(2) is not None
    assert (had_room, session.has_room) == (False, True)
    assert session.launch(Position(104), 0, 1).packet_id == 4
    assert list(session.flights) == [1, 3, 4]


def test_an_ack_of_nothing_is_nothing() -> None:
    session = make()
    assert session.ack(1) is None
    session.launch(Position(101), 0, 1)
    assert session.ack(1) == Flight(1, Position(101), 0, 1)
    assert session.ack(1) is None


def test_packet_ids_wrap_round_holes() -> None:
    """65,535 is followed by 1, and what is still in flight is passed over."""
    session = make(window=PACKET_ID_MAX)
    for place in range(PACKET_ID_MAX):
        assert session.launch(Position(place), 0, 1).packet_id == place + 1
    assert not session.has_room
    for packet_id in (3, 5, 65_535):
        session.ack(packet_id)
    assert [session.launch(Position(1), 0, 1).packet_id for _ in range(3)] == [3, 5, 65_535]
    assert not session.has_room
    session.ack(65_535)
    session.ack(1)
    assert session.launch(Position(1), 0, 1).packet_id == 1
    assert session.launch(Position(1), 0, 1).packet_id == 65_535
    assert len(session.flights) == PACKET_ID_MAX


def test_restored_flights_keep_their_ids_and_order() -> None:
    session = make()
    session.restore([Flight(9, Position(90), 0, 1, 3), Flight(4, Position(95), 1, 2, 1, 1)])
    assert (list(session.flights), session.flights[9].attempts) == ([9, 4], 3)
    assert session.launch(Position(101), 0, 1).packet_id == 5
    session.restore([])
    assert session.launch(Position(101), 0, 1).packet_id == 1


def test_the_packet_id_of_a_qos_2_message_that_is_given_up_stays_out_of_use() -> None:
    session = make()
    first, second = (session.launch(Position(101 + qos), 0, qos).packet_id for qos in (1, 2))
    session.give_up(session.flights[first])
    session.give_up(session.flights[second])
    assert not session.flights
    assert list(session.retired) == [second]
    session.restore([])
    assert [session.launch(Position(103), 0, 1).packet_id for _ in range(2)] == [1, 3]


def test_the_packet_ids_out_of_use_are_bounded() -> None:
    session = make()
    session.retire(range(1, RETIRED_MAX + 3))
    assert len(session.retired) == RETIRED_MAX
    assert session.launch(Position(101), 0, 1).packet_id == 1


def test_there_is_room_for_no_more_than_there_are_packet_ids_in_use() -> None:
    session = make(window=PACKET_ID_MAX)
    session.retire([7, 9])
    assert session.window == PACKET_ID_MAX - 2
    session.resize(PACKET_ID_MAX)
    while session.has_room:
        session.launch(Position(1), 0, 1)
    assert len(session.flights) == PACKET_ID_MAX - 2


def test_resends_come_by_rank_each_once() -> None:
    flights = [Flight(packet_id, Position(200 - packet_id), 0, 1) for packet_id in (7, 3, 5)]
    resends = Resends(flights)
    resends.add(flights[0], 99)
    assert (len(resends), 3 in resends, 4 in resends) == (3, True, False)
    order = []
    while resends:
        order.append(resends.first().packet_id)
        resends.discard(order[-1])
    assert order == [7, 3, 5]
    resends.discard(7)
    for flight in flights:
        resends.add(flight, flight.position)
    assert resends.first().packet_id == 7
    resends.clear()
    assert not resends
    assert 7 not in resends
    resends.add(flights[1], 5)
    resends.add(flights[0], 6)
    assert resends.first() is flights[1]


def test_an_acked_flight_is_not_sent_again() -> None:
    session = make()
    first = session.launch(Position(101), 0, 1).packet_id
    session.resends = Resends(session.flights.values())
    session.ack(first)
    assert not session.resends


def test_a_session_may_be_kept_for_longer_or_not_at_all() -> None:
    session = make()
    session.expiry_s = 0
    assert not session.is_persistent
    session.expiry_s = 7
    assert (session.expiry_s, session.received) == (7, {})


def test_it_is_said_whether_a_filter_is_new() -> None:
    session = make()
    assert session.subscribe(Subscription("a", 1, Position(0)), Position(100))
    assert not session.subscribe(Subscription("a", 2, Position(0)), Position(100))
    assert session.unsubscribe("a")
    assert session.subscribe(Subscription("a", 1, Position(0)), Position(100))


@pytest.mark.parametrize(("expiry_s", "is_persistent"), [(0, False), (1, True)])
def test_a_session_with_an_expiry_is_persistent(expiry_s: int, is_persistent: bool) -> None:
    session = Session("c", read=Position(0), expiry_s=expiry_s, window=1)
    assert session.is_persistent == is_persistent


def lost(flight: Flight) -> list[tuple[int, int]]:
    assert flight.losses is not None
    assert len(flight.losses.known) <= LOSS.size * LOSSES_MAX
    return flight.losses.each()


def test_a_flight_of_a_group() -> None:
    flight = Flight(1, Position(101), 0, 1)
    assert not flight.is_of_group
    flight.loan = Loan("$share/g/t")
    assert not flight.is_of_group
    flight.loan = Loan("$share/g/t", Flight(7, Position(101), 0, 1))
    assert flight.is_of_group


def test_a_flight_knows_when_its_last_tries_were_lost() -> None:
    flight = Flight(1, Position(101), 0, 1)
    flight.begin_again(1_000, 900)
    assert lost(flight) == [(900, 0)], "when it was first sent is not known"
    flight.begin_again(2_000)
    assert lost(flight) == [(900, 0)], "nor when the next try ended"
    flight.begin_again(2_500, 2_300)
    flight.begin_again(2_700, 2_400)
    assert lost(flight) == [(900, 0), (2_300, 300), (2_400, 0)], "the clock was set back meanwhile"
    for at_ms in range(3_000, 3_000 + LOSSES_MAX):
        flight.begin_again(at_ms, at_ms)
    assert [at_ms for at_ms, _ in lost(flight)] == list(range(3_000, 3_000 + LOSSES_MAX))
    assert flight.attempts == 5 + LOSSES_MAX
    flight.begin_again(1 << 47, 1 << 46)
    assert lost(flight)[-1] == (1 << 46, (1 << 32) - 1)


# -- reading


def test_a_session_tails_when_it_has_read_everything() -> None:
    session = make(read=100)
    assert not session.join(Position(101))
    assert session.read_at(Position(500)) == 100
    session.read = Position(101)
    assert session.join(Position(101))
    assert session.read_at(Position(500)) == 500
    session.fall_behind(Position(400))
    assert (session.tailing, session.read) == (False, 400)
    session.fall_behind(Position(900))
    assert session.read == 400


# -- subscriptions


def test_a_new_filter_begins_now_and_an_old_one_where_it_began() -> None:
    session = make()
    subscribe(session, "a", 100)
    subscribe(session, "b", 200)
    again = subscribe(session, "a", 300)
    assert since(session) == {"a": 100, "b": 200}
    assert session.subscriptions["a"] is again


def test_a_filter_that_was_given_up_begins_anew() -> None:
    session = make()
    subscribe(session, "a", 100)
    assert session.unsubscribe("a")
    assert not session.unsubscribe("a")
    subscribe(session, "a", 300)
    assert since(session) == {"a": 300}


def test_a_replay_brings_only_its_own_filter_again() -> None:
    session = make(read=100)
    session.tailing = True
    subscribe(session, "old", 100)
    subscribe(session, "new", 500, back=50)
    assert since(session) == {"old": 500, "new": 50}
    assert (session.read, session.tailing) == (50, False)


def test_a_replay_of_a_session_that_is_behind() -> None:
    """What it has not read yet of its other filters is still to come, once."""
    session = make(read=300)
    subscribe(session, "old", 100)
    subscribe(session, "new", 500, back=200)
    assert since(session) == {"old": 300, "new": 200}
    assert session.read == 200
    subscribe(session, "later", 500, back=400)
    assert since(session) == {"old": 300, "new": 200, "later": 400}
    assert session.read == 200


def test_a_replay_from_the_future_is_none() -> None:
    session = make(read=100)
    session.tailing = True
    subscribe(session, "a", 100, back=100)
    subscribe(session, "b", 100, back=700)
    assert since(session) == {"a": 100, "b": 100}
    assert session.tailing


def test_a_replay_of_a_filter_that_is_there_changes_nothing() -> None:
    """A client that sends its SUBSCRIBE on every connect does not replay on every connect."""
    session = make(read=100)
    subscribe(session, "a", 100, back=50)
    session.read = Position(90)
    subscribe(session, "a", 200, back=50)
    assert since(session) == {"a": 50}
    assert session.read == 90


def test_everything_can_be_read_again() -> None:
    session = make(read=300)
    session.tailing = True
    subscribe(session, "a", 100)
    subscribe(session, "b", 200)
    session.rewind(None, Position(150), Position(400))
    assert since(session) == {"a": 100, "b": 150}
    assert (session.read, session.tailing) == (150, False)


def test_changes_of_subscriptions_are_counted() -> None:
    """What is sent again as it was, and the end of what was not there, change nothing."""
    session = make()
    subscribe(session, "a", 100)
    after_first = session.changes
    subscribe(session, "a", 200)
    assert not session.unsubscribe("b")
    assert session.changes == after_first
    session.subscribe(Subscription("a", 2, Position(300)), Position(300))
    after_second = session.changes
    session.unsubscribe("a")
    after_third = session.changes
    session.rewind(None, Position(50), Position(300))
    assert 0 < after_first < after_second < after_third < session.changes


def test_the_bytes_of_filters_are_counted() -> None:
    session = make()
    sizes = [session.filter_bytes]
    for name in ("a/b", "\xe9", "a/b"):
        subscribe(session, name, 100)
        sizes.append(session.filter_bytes)
    session.unsubscribe("a/b")
    assert [*sizes, session.filter_bytes] == [0, 3, 5, 5, 2]


class SessionMachine(RuleBasedStateMachine):
    """A session reads a log of (position, topic); a dull model says which of it must have come, how often.

    The log is a list; the filter `x` matches the topic `x`. Model: each subscription owes every entry of
    its topic behind its own `since`, once, unless the entry came before for another reason.
    """

    TOPICS = ("a", "b", "c")

    def __init__(self) -> None:
        super().__init__()
        self.session = make(window=3, read=0)
        self.log: list[str] = []
        self.owed: dict[int, int] = {}
        self.got: dict[int, int] = {}
        self.taken: list[tuple[int, int]] = []

    @property
    def horizon(self) -> Position:
        return Position(len(self.log))

    @rule(topic=st.sampled_from(TOPICS))
    def append(self, topic: str) -> None:
        self.log.append(topic)
        if topic in self.session.subscriptions:
            self.owed[len(self.log)] = self.owed.get(len(self.log), 0) + 1
        if self.session.tailing and not self._offer(len(self.log)):
            self.session.fall_behind(Position(len(self.log) - 1))

    @rule()
    def read_on(self) -> None:
        session = self.session
        if session.tailing:
            return
        for place in range(session.read + 1, len(self.log) + 1):
            if not self._offer(place):
                session.read = Position(place - 1)
                return
            session.read = Position(place)
        assert session.join(self.horizon)

    @rule(topic=st.sampled_from(TOPICS))
    def subscribe(self, topic: str) -> None:
        subscribe(self.session, topic, self.horizon)

    @rule(topic=st.sampled_from(TOPICS), back=st.integers(0, 10))
    def subscribe_back(self, topic: str, back: int) -> None:
        start = max(0, len(self.log) - back)
        if topic not in self.session.subscriptions:
            for place in range(start + 1, len(self.log) + 1):
                if self.log[place - 1] == topic:
                    self.owed[place] = self.got.get(place, 0) + 1
        subscribe(self.session, topic, self.horizon, start)

    @rule(topic=st.sampled_from(TOPICS))
    def unsubscribe(self, topic: str) -> None:
        self.session.unsubscribe(topic)
        for place in list(self.owed):
            if self.log[place - 1] == topic:
                self.owed[place] = min(self.owed[place], self.got.get(place, 0))

    @precondition(lambda self: self.taken)
    @rule(index=st.integers(0, 5))
    def ack(self, index: int) -> None:
        packet_id, place = self.taken.pop(index % len(self.taken))
        flight = self.session.ack(packet_id)
        assert flight is not None
        assert flight.position == place

    def _offer(self, place: int) -> bool:
        found = self.session.subscriptions.get(self.log[place - 1])
        if found is None or found.since >= place:
            return True
        if not self.session.has_room:
            return False
        packet_id = self.session.launch(Position(place), 0, 1).packet_id
        assert packet_id not in [taken for taken, _ in self.taken]
        self.taken.append((packet_id, place))
        self.got[place] = self.got.get(place, 0) + 1
        return True

    @invariant()
    def nothing_comes_too_often(self) -> None:
        assert len(self.session.flights) == len(self.taken) <= self.session.window
        assert list(self.session.flights) == [packet_id for packet_id, _ in self.taken] or len(self.taken) > 1
        for place, count in self.got.items():
            assert count <= self.owed.get(place, 0), f"{place} came {count} times"

    def teardown(self) -> None:
        """Read to the end: all that is owed has come."""
        for _ in range(2 * len(self.log) + 2):
            while self.taken:
                self.ack(0)
            self.read_on()
        assert self.session.tailing
        assert self.got == {place: count for place, count in self.owed.items() if count}


TestSession = pytest.mark.long(SessionMachine.TestCase)
TestSession.settings = settings(max_examples=600 if SOAK else 30, stateful_step_count=40, deadline=None)


def test_what_is_passed_over_is_bounded_and_forgotten_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timeline.finished.FINISHED_MAX", 3)
    session = make(read=10)
    places = [Position(place) for place in (50, 20, 40, 20, 5, 30)]
    assert [session.finish_ahead(place, START) for place in places] == [True, True, True, False, False, True]
    assert sorted(session.finished) == [30, 40, 50]
    session.read = Position(30)
    session.forget_finished(START)
    assert sorted(session.finished) == [40, 50]
    session.rewind(None, Position(45), START)
    assert list(session.finished.values()) == [Position(40).to_bytes(POSITION_BYTES, "big")]
