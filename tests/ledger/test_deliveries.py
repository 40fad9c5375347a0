"""The accounts themselves: for each rule a story that keeps it and one that breaks it.

No server: so also what no server does can be held against them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.support.ledger.deliveries import Deliveries, Place, Stake
from tests.support.ledger.messages import Message
from tests.support.ledger.words import DEAD, DROPPED, FREE_RETURNS

pytestmark = pytest.mark.short

NOW, HOUR = 1_772_445_600_000, 3_600_000
LATER = 1e9
"""Later than any lease, mono."""


@dataclass
class Story:
    """Accounts with a group that tries three times, an endpoint, and a message that is due."""

    ledger: Deliveries
    group: Place
    endpoint: Place
    stake: Stake

    @property
    def id(self) -> str:
        return self.stake.message.id

    def lease(self, *, lapses: float = 1_000.0, attempt: int | None = None) -> int:
        """A worker is given the message. Returns which delivery that is."""
        self.ledger.given(self.group, self.id, lapses=lapses, attempt=attempt)
        return self.stake.number

    def nack(self, delay: int = 0) -> None:
        self.ledger.failed(self.group, self.stake, not_before=self.ledger.clock.low + delay, is_exact=True)

    def listed(self, *, at: int | None = None, times: int = 1) -> None:
        """GET /v1/retries shows it."""
        retry = self.group.name, self.id, at or self.stake.not_before
        self.ledger.retries([retry] * times, [])

    def letters(self, *, reason: str = "not now", times: int = 1) -> None:
        """GET /v1/dead shows it."""
        self.ledger.dead_letters([(self.group.name, self.id, reason)] * times)

    @property
    def found(self) -> list[str]:
        return [fault.kind for fault in self.ledger.faults]


def a_story() -> Story:
    ledger = Deliveries(NOW)
    group = ledger.opened("group", "g", "jobs/#", max_tries=3, expiry=None)
    endpoint = ledger.opened("endpoint", "e", "", max_tries=3, expiry=None)
    message = Message("m", "jobs/1", NOW + 1, NOW + 1)
    ledger.accepted(message)
    ledger.arrived(NOW + 2)
    return Story(ledger, group, endpoint, group.stakes["m"])


# -- retries


def shown_at_its_time(s: Story) -> None:
    s.lease()
    s.nack(HOUR)
    s.listed()


def tried_now(s: Story) -> None:
    shown_at_its_time(s)
    s.ledger.tried(s.stake, s.ledger.clock.low)
    s.listed(at=s.ledger.clock.low)
    s.lease(attempt=2)


def a_retry_at_another_time(s: Story) -> None:
    s.lease()
    s.nack(HOUR)
    s.listed(at=s.ledger.clock.low)


def a_try_that_does_nothing(s: Story) -> None:
    shown_at_its_time(s)
    s.ledger.tried(s.stake, s.ledger.clock.low)
    s.listed(at=s.ledger.clock.low + HOUR)


def a_retry_twice(s: Story) -> None:
    s.lease()
    s.nack(HOUR)
    s.listed(times=2)


def a_retry_that_is_leased(s: Story) -> None:
    s.lease()
    s.listed(at=s.ledger.clock.low)


def dropped_and_listed(s: Story) -> None:
    shown_at_its_time(s)
    s.ledger.dropped(s.stake)
    s.listed(at=s.ledger.clock.low)


def buried(s: Story) -> None:
    shown_at_its_time(s)
    s.ledger.buried(s.stake, reason="buried")
    s.letters(reason="buried: not now")


def buried_for_another_reason(s: Story) -> None:
    shown_at_its_time(s)
    s.ledger.buried(s.stake, reason="buried")
    s.letters()


def took(s: Story, *names: str) -> None:
    """A worker is given messages of the backlog, and not the retry that is due."""
    waited = s.ledger.due_there(s.group)
    s.ledger.took(s.group, set(names), waited)
    for name in names:
        s.ledger.given(s.group, name, lapses=1_000.0)


def with_a_backlog(s: Story) -> None:
    s.lease()
    s.nack(0)
    for number in range(12):
        s.ledger.accepted(Message(str(number), "jobs/2", s.ledger.clock.low, s.ledger.clock.low))
    s.ledger.arrived(s.ledger.clock.low + 2)


def in_turns(s: Story) -> None:
    with_a_backlog(s)
    took(s, "0", "1", "2", "3", "4", "5")
    took(s, "6", s.id)


def a_retry_behind_the_backlog(s: Story) -> None:
    with_a_backlog(s)
    took(s, "0", "1", "2", "3", "4", "5")
    took(s, "6", "7", "8", "9", "10", "11")


# -- places


def skipped(s: Story) -> None:
    s.ledger.skipped(s.group, DEAD, s.ledger.clock.low + 2, is_sure=True)
    s.letters(reason="skipped")


def skipped_without_a_word(s: Story) -> None:
    s.ledger.skipped(s.group, DEAD, s.ledger.clock.low + 2, is_sure=True)
    s.ledger.dead_letters([])


def a_skip_that_leaves_the_retry(s: Story) -> None:
    shown_at_its_time(s)
    s.ledger.skipped(s.group, DROPPED, s.ledger.clock.low + 2, is_sure=True)
    s.listed()


def a_skip_that_ends_the_retry(s: Story) -> None:
    shown_at_its_time(s)
    s.ledger.skipped(s.group, DROPPED, s.ledger.clock.low + 2, is_sure=True)
    s.ledger.shown(s.group, s.id, "dropped")


def ended_as_dead_letters(s: Story) -> None:
    s.ledger.closed(s.group, DEAD)
    s.letters(reason="group deleted")


def ended_for_another_reason(s: Story) -> None:
    s.ledger.closed(s.group, DEAD)
    s.letters(reason="kept too long")


def a_post(s: Story) -> Stake:
    stake = s.endpoint.stakes[s.id] = Stake(s.stake.message)
    s.ledger.given(s.endpoint, s.id)
    return stake


def answered_behind_the_end(s: Story) -> None:
    """The endpoint was deleted while the receiver thought about it."""
    stake = a_post(s)
    s.ledger.closed(s.endpoint, DEAD)
    s.ledger.answered(s.endpoint, stake, 500, 1.0)
    s.ledger.dead_letters([(s.endpoint.name, s.id, "endpoint deleted")])


def answered_behind_the_end_and_no_letter(s: Story) -> None:
    stake = a_post(s)
    s.ledger.closed(s.endpoint, DEAD)
    s.ledger.answered(s.endpoint, stake, 200, 1.0)
    s.ledger.dead_letters([])


def with_one_that_expires(s: Story) -> Place:
    """In a group that ends when nobody has been there for a day."""
    place = s.ledger.opened("group", "x", "jobs/#", max_tries=3, expiry=24 * HOUR)
    s.ledger.accepted(Message("n", "jobs/1", NOW + 3, NOW + 3, expires=5_000))
    s.ledger.walk(1)
    s.ledger.arrived(NOW + 3)
    return place


def ends_with(s: Story, place: Place) -> None:
    """The day is over, and there is no dead letter of it."""
    s.ledger.walk(30 * HOUR)
    s.ledger.arrived(s.ledger.clock.high)
    s.ledger.missing(place)
    s.ledger.dead_letters([])


def unread_and_expired_before_its_group(s: Story) -> None:
    ends_with(s, with_one_that_expires(s))


def tried_and_expired_before_its_group(s: Story) -> None:
    place = with_one_that_expires(s)
    s.ledger.given(place, "n", lapses=1_000.0)
    s.ledger.failed(place, place.stakes["n"])
    ends_with(s, place)


def unread_and_ended_with_its_group(s: Story) -> None:
    place = with_one_that_expires(s)
    place.stakes["n"].message.expires = None
    ends_with(s, place)


def a_retry_of_a_former_place(s: Story) -> None:
    shown_at_its_time(s)
    s.ledger.closed(s.group, DROPPED)
    s.ledger.opened("group", "g", "jobs/#", max_tries=3, expiry=None)
    s.listed(at=s.ledger.clock.low)


def what_a_cancel_names(s: Story) -> None:
    s.lease()
    s.ledger.not_cancelled(s.stake.message, [("g", "in_flight")])


def a_cancel_that_names_nothing(s: Story) -> None:
    s.lease()
    s.ledger.not_cancelled(s.stake.message, [])


def a_cancel_that_names_what_is_over(s: Story) -> None:
    s.ledger.finished(s.stake)
    s.ledger.not_cancelled(s.stake.message, [("g", "done")])


# -- requeue to another place


def send(s: Story) -> tuple[Stake, frozenset[str], int]:
    there, before = s.ledger.sending_to(s.endpoint, s.stake.message, s.stake.total.most)
    return there, before, there.number


def requeued_to_another(s: Story) -> None:
    s.lease()
    s.ledger.buried(s.stake)
    there, before, number = send(s)
    s.ledger.sent_to(there, before, number, s.stake.total.most, is_changed=True)
    s.ledger.dropped(s.stake)
    s.ledger.given(s.endpoint, s.id, attempt=2)
    s.ledger.finished(there)
    s.ledger.at_the_end()


def requeued_and_lost(s: Story) -> None:
    s.lease()
    s.ledger.buried(s.stake)
    there, before, number = send(s)
    s.ledger.sent_to(there, before, number, s.stake.total.most, is_changed=True)
    s.ledger.dropped(s.stake)
    s.ledger.at_the_end()


def requeued_to_what_has_it(s: Story) -> None:
    """The endpoint has it in hand, and gets it a second time."""
    s.endpoint.stakes[s.id] = Stake(s.stake.message)
    s.ledger.given(s.endpoint, s.id)
    there, before, number = send(s)
    s.ledger.sent_to(there, before, number, 1, is_changed=True)
    s.ledger.given(s.endpoint, s.id)


def requeued_to_what_has_not_read_it(s: Story) -> None:
    """It comes once as unread, and once as requeued."""
    s.endpoint.stakes[s.id] = Stake(s.stake.message)
    there, before, number = send(s)
    s.ledger.sent_to(there, before, number, 1, is_changed=True)
    s.ledger.given(s.endpoint, s.id)
    s.ledger.finished(there)
    s.ledger.given(s.endpoint, s.id)


# -- tries and leases


def a_lease_outlives_the_server(s: Story) -> None:
    number = s.lease()
    s.ledger.restarted(1.0, was_killed=True)
    s.ledger.lapse(2.0)
    assert s.ledger.has(s.stake, number)
    s.ledger.lapse(LATER)
    s.lease(attempt=2)


def a_lease_ends_with_the_server(s: Story) -> None:
    s.lease()
    s.ledger.restarted(1.0, was_killed=True)
    s.ledger.lapse(2.0)
    s.lease()


def an_extend_is_lost(s: Story) -> None:
    s.lease(lapses=2.0)
    s.ledger.extended(s.stake, 1_000.0)
    s.ledger.restarted(1.0, was_killed=True)
    s.ledger.lapse(3.0)
    s.lease()


def releases(s: Story) -> None:
    """No try, so it is not dead after three of them."""
    for _ in range(5):
        s.lease(attempt=1)
        s.ledger.returned(s.group, s.stake)
    s.lease(attempt=1)


def a_release_that_counts(s: Story) -> None:
    s.lease(attempt=1)
    s.ledger.returned(s.group, s.stake)
    s.lease(attempt=2)


def a_release_that_is_the_last_try(s: Story) -> None:
    for _ in range(3):
        s.lease()
        s.ledger.returned(s.group, s.stake)
    s.letters()


def returns_that_count_in_the_end(s: Story) -> None:
    for _ in range(FREE_RETURNS + 3):
        s.lease()
        s.ledger.returned(s.group, s.stake)
    s.letters(reason="given back too often")


def an_orderly_stop_that_counts(s: Story) -> None:
    for _ in range(3):
        s.ledger.given(s.group, s.id)  # over MQTT: no lease
        s.ledger.restarted(1.0, was_killed=False)
    s.letters()


def a_lost_connection_counts(s: Story) -> None:
    for _ in range(3):
        s.ledger.given(s.group, s.id)
        s.ledger.left(s.group, orderly=False)
    s.letters()


def an_earlier_try_touches_nothing(s: Story) -> None:
    first = s.lease(lapses=1.0)
    s.ledger.lapse(2.0)
    second = s.lease()
    s.ledger.held_no_more(s.group, s.stake, first, "nack")
    s.ledger.acked(s.group, s.stake, first)
    s.ledger.gone(s.group, s.stake)
    assert second == s.stake.number


def a_nack_of_an_earlier_try(s: Story) -> None:
    first = s.lease(lapses=1.0)
    s.ledger.lapse(2.0)
    s.lease()
    s.ledger.counts(s.group, s.stake, first, "nack")


def a_lease_that_is_denied(s: Story) -> None:
    number = s.lease()
    s.ledger.held_no_more(s.group, s.stake, number, "release")


def an_ack_that_counts_twice(s: Story) -> None:
    first = s.lease(lapses=1.0)
    s.ledger.lapse(2.0)
    second = s.lease()
    s.ledger.acked(s.group, s.stake, first)
    s.ledger.acked(s.group, s.stake, second)


def an_ack_that_ends_what_was_set_back(s: Story) -> None:
    number = s.lease()
    s.ledger.set_back(s.group, NOW)
    s.ledger.acked(s.group, s.stake, number)
    s.lease()


# -- the clock


def held_until_the_clock_is_there(s: Story) -> None:
    """Scheduled after a step back, so that its time has been shown, but not since."""
    s.ledger.arrived(NOW + HOUR)
    s.ledger.set_clock_back(NOW)
    s.ledger.accepted(Message("n", "jobs/1", NOW + 60_000, NOW + 60_000))
    s.ledger.arrived(NOW + 60_000)
    s.ledger.given(s.group, "n")


def early_after_a_step_back(s: Story) -> None:
    s.ledger.arrived(NOW + HOUR)
    s.ledger.set_clock_back(NOW)
    s.ledger.accepted(Message("n", "jobs/1", NOW + 60_000, NOW + 60_000))
    s.ledger.given(s.group, "n")


def a_small_step_back_is_waited_out(s: Story) -> None:
    """It goes behind what has been shown, and is not held until its due."""
    s.ledger.arrived(NOW + HOUR)
    s.ledger.set_clock_back(NOW + HOUR - 700)
    s.ledger.accepted(Message("n", "jobs/1", NOW + HOUR - 600, NOW + HOUR - 600))
    s.ledger.arrived(NOW + HOUR - 500)
    assert "n" not in s.group.stakes
    s.ledger.arrived(NOW + HOUR + 1)
    s.ledger.given(s.group, "n")


def what_was_out_stays_out(s: Story) -> None:
    """The clock was ahead when it went out."""
    s.ledger.accepted(Message("n", "jobs/1", NOW + HOUR, NOW + HOUR))
    s.ledger.arrived(NOW + HOUR)
    s.ledger.set_clock_back(NOW + 2)
    s.ledger.given(s.group, "n")


def a_retry_early_after_a_step_back(s: Story) -> None:
    """Its time has been shown, but not since the nack."""
    s.ledger.arrived(NOW + 2 * HOUR)
    s.ledger.set_clock_back(NOW + 2)
    s.lease()
    s.nack(HOUR)
    s.lease()


def a_retry_that_waits_for_the_clock(s: Story) -> None:
    s.ledger.arrived(NOW + 2 * HOUR)
    s.ledger.set_clock_back(NOW + 2)
    s.lease()
    s.nack(HOUR)
    s.ledger.arrived(NOW + 2 + HOUR)
    s.lease()


def a_lease_that_ends_with_a_step_ahead(s: Story) -> None:
    s.lease()
    s.ledger.advance(NOW + 1_000 * HOUR)
    s.ledger.arrived(NOW + 1_000 * HOUR)
    s.ledger.lapse(2.0)
    s.lease()


def a_lease_that_ends_in_running_time(s: Story) -> None:
    s.lease(lapses=3_600.0)
    s.ledger.walk(HOUR)
    s.ledger.arrived(NOW + 2 + HOUR)
    s.ledger.lapse(2.0)
    s.lease()


def a_session(s: Story) -> Place:
    return s.ledger.opened("session", "c", "jobs/#", max_tries=0, expiry=24 * HOUR)


def a_session_that_ends_with_a_step_ahead(s: Story) -> None:
    place = a_session(s)
    s.ledger.arrived(NOW + 30 * HOUR)
    s.ledger.missing(place)


def a_session_that_ends_in_running_time(s: Story) -> None:
    place = a_session(s)
    s.ledger.walk(30 * HOUR)
    s.ledger.set_clock_back(NOW)
    s.ledger.missing(place)


def a_dead_letter_that_ends_with_a_step_ahead(s: Story) -> None:
    s.ledger.buried(s.stake)
    s.ledger.arrived(NOW + 40 * 24 * HOUR)
    s.ledger.dead_letters([])


def fires(s: Story, *hours: int, name: str = "o") -> None:
    for hour in hours:
        due = NOW + hour * HOUR
        s.ledger.accepted_of_schedule(Message(f"{name}{hour}", "jobs/sched/s", due, due), "s")


def ahead_and_back(s: Story) -> None:
    """Every hour; the clock was five hours ahead, and what it missed on the way came as one message."""
    fires(s, 1)
    s.ledger.arrived(NOW + 5 * HOUR)
    fires(s, 5, 6)
    s.ledger.messages.not_fired("s", "o6")
    s.ledger.set_clock_back(NOW + 2)


def goes_on(s: Story, hour: int, *, is_told: bool = True) -> None:
    s.ledger.messages.goes_on("s", NOW + hour * HOUR, HOUR, is_told=is_told)


def with_the_first_that_was_not_sent(s: Story) -> None:
    ahead_and_back(s)
    fires(s, 2, name="p")
    goes_on(s, 2)
    s.ledger.arrived(NOW + 4 * HOUR)
    fires(s, 3, 4, 6, name="p")
    goes_on(s, 6)


def behind_the_latest_that_was_sent(s: Story) -> None:
    ahead_and_back(s)
    fires(s, 6, name="p")
    goes_on(s, 6)


def silent_without_a_word(s: Story) -> None:
    ahead_and_back(s)
    fires(s, 2, name="p")
    goes_on(s, 2, is_told=False)


def fired_twice(s: Story) -> None:
    for name in ("o1", "o2"):
        s.ledger.accepted_of_schedule(Message(name, "jobs/sched/s", NOW + 10, NOW + 10), "s")


def fired_again_in_its_time(s: Story) -> None:
    ahead_and_back(s)
    fires(s, 2, 3, 4, 5, name="p")


def late_and_given(s: Story) -> None:
    """Its schedule says that nobody gets what is late."""
    s.ledger.accepted_of_schedule(Message("l", "jobs/sched/s", NOW, NOW, is_late=True), "s")
    s.ledger.given(s.group, "l")


KEEPS: tuple[Callable[[Story], None], ...] = (
    shown_at_its_time,
    tried_now,
    buried,
    in_turns,
    skipped,
    a_skip_that_leaves_the_retry,
    ended_as_dead_letters,
    answered_behind_the_end,
    unread_and_expired_before_its_group,
    what_a_cancel_names,
    requeued_to_another,
    a_lease_outlives_the_server,
    releases,
    returns_that_count_in_the_end,
    a_lost_connection_counts,
    an_earlier_try_touches_nothing,
    held_until_the_clock_is_there,
    a_small_step_back_is_waited_out,
    what_was_out_stays_out,
    a_retry_that_waits_for_the_clock,
    a_lease_that_ends_in_running_time,
    a_session_that_ends_in_running_time,
    with_the_first_that_was_not_sent,
)
BREAKS: dict[Callable[[Story], None], str] = {
    a_retry_at_another_time: "retry at another time",
    a_try_that_does_nothing: "retry at another time",
    a_retry_twice: "two retries",
    a_retry_that_is_leased: "a retry in flight",
    dropped_and_listed: "not finished any more",
    buried_for_another_reason: "another reason",
    a_retry_behind_the_backlog: "a retry starves",
    skipped_without_a_word: "a dead letter is gone",
    a_skip_that_ends_the_retry: "dropped by nobody",
    ended_for_another_reason: "another reason",
    answered_behind_the_end_and_no_letter: "ended without a word",
    tried_and_expired_before_its_group: "ended without a word",
    unread_and_ended_with_its_group: "ended without a word",
    a_retry_of_a_former_place: "a retry of a former place",
    a_cancel_that_names_nothing: "409 does not name it",
    a_cancel_that_names_what_is_over: "409 names what is over",
    requeued_and_lost: "lost",
    requeued_to_what_has_it: "given twice at a time",
    requeued_to_what_has_not_read_it: "given again after its ack",
    a_lease_ends_with_the_server: "given twice at a time",
    an_extend_is_lost: "given twice at a time",
    a_release_that_counts: "counted too often",
    a_release_that_is_the_last_try: "dead for no cause",
    an_orderly_stop_that_counts: "dead for no cause",
    a_nack_of_an_earlier_try: "an earlier try counts",
    a_lease_that_is_denied: "a lease is gone",
    an_ack_that_counts_twice: "an ack counts twice",
    an_ack_that_ends_what_was_set_back: "given again after its ack",
    early_after_a_step_back: "early",
    a_retry_early_after_a_step_back: "retry early",
    a_lease_that_ends_with_a_step_ahead: "given twice at a time",
    a_session_that_ends_with_a_step_ahead: "a place is gone",
    a_dead_letter_that_ends_with_a_step_ahead: "a dead letter is gone",
    behind_the_latest_that_was_sent: "an instant is left out",
    silent_without_a_word: "silent without a word",
    fired_twice: "fired twice",
    fired_again_in_its_time: "fired twice",
    late_and_given: "late and given",
}


@pytest.mark.parametrize("tell", KEEPS, ids=lambda tell: tell.__name__)
def test_what_keeps_the_rules_is_no_fault(tell: Callable[[Story], None]) -> None:
    story = a_story()
    tell(story)
    assert not story.ledger.faults, story.ledger.faults


@pytest.mark.parametrize("tell", BREAKS, ids=lambda tell: tell.__name__)
def test_what_breaks_a_rule_is_found(tell: Callable[[Story], None]) -> None:
    story = a_story()
    tell(story)
    assert BREAKS[tell] in story.found, story.ledger.faults
