"""The table of deliveries: its example, what it says of each pair, and single facts."""

import pytest

from timeline.deliveries import LIFE, NEVER, TRIES_MAX, CannotBe, decide, never
from timeline.delivery_rows import (
    Case,
    DeliveryRow,
    Effect,
    Event,
    Fate,
    Out,
    Seen,
    State,
    Terms,
    Try,
    state_of,
)
from timeline.position import at_of, position

NOW = 1_000_000
TWO = Terms(max_attempts=2)
HEAD = TWO._replace(is_ordered=True, is_head=True)
WAITS = DeliveryRow(State.WAITING, position(NOW, 1), attempts=1, counted=1, reason="late")
DEAD = WAITS._replace(state=State.DEAD, attempts=2, counted=2)
OUT = Seen(Out())
AHEAD = Seen(is_ahead=True)
STATES: dict[State, tuple[DeliveryRow | None, Seen]] = {
    State.UNREAD: (None, AHEAD),
    State.OUT: (None, OUT),
    State.LEASED: (None, Seen(Out(is_leased=True))),
    State.HANDED: (None, Seen(Out(is_handed=True))),
    State.WAITING: (WAITS, Seen()),
    State.WITHHELD: (WAITS._replace(state=State.WITHHELD), Seen()),
    State.DEAD: (DEAD, Seen()),
    State.DROPPED: (WAITS._replace(state=State.DROPPED), Seen()),
    State.DONE: (None, Seen()),
}


def case(**more: object) -> Case:
    return Case(position(NOW, 9), row=WAITS)._replace(**more)  # type: ignore[arg-type]


def at(row: DeliveryRow | None, seen: Seen, event: Event, terms: Terms = TWO, /, **more: object) -> Fate:
    return decide(row, seen, event, case(**more), terms)


def test_the_example() -> None:
    first = at(None, AHEAD, Event.GIVE)
    assert (first.row, first.out) == (None, Out(1, 1))
    failed = at(None, Seen(first.out), Event.NACK, delay_ms=500)
    assert failed.row is not None
    assert failed.row.state is State.WAITING
    assert at_of(failed.row.at) == NOW + 500
    assert Effect.CURSOR not in failed.effects, "a nack writes no cursor"
    again = at(failed.row, Seen(), Event.GIVE)
    assert (again.row, again.out) == (failed.row, Out(2, 2)), "and giving a retry writes no row"
    dead = at(failed.row, Seen(again.out), Event.NACK, delay_ms=500)
    assert dead.row is not None
    assert dead.row.state is State.DEAD
    assert {Effect.OBITUARY, Effect.COUNT_DEAD} <= dead.effects
    dropped = at(dead.row, Seen(), Event.DROP)
    assert dropped.row is not None
    assert dropped.row.state is State.DROPPED


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_each_pair_is_decided(event: Event, state: State) -> None:
    """No event leaves a delivery in no state; what cannot be says so, and names both."""
    row, seen = STATES[state]
    assert state_of(row, seen) is state
    if LIFE[event][state.value] is never:
        with pytest.raises(CannotBe, match=f"{event.name} .* {state.name}"):
            at(row, seen, event)
        return
    fate = at(row, seen, event)
    assert fate.row is None or fate.row.state in (*list(State)[State.WAITING.value : State.DONE.value],)
    if Effect.REFUSED in fate.effects:
        assert (fate.row, fate.out) == (row, seen.out)
    if row is not None and fate.row is None:
        assert fate.effects & {Effect.CURSOR, Effect.LATER}, "a row goes with the cursor"
    if fate.row is not None and row is None and fate.row.state is not State.DROPPED:
        assert Effect.RECORD in fate.effects, "a row has its message beside it"


def test_the_table_has_a_column_for_each_state() -> None:
    assert LIFE.keys() == set(Event)
    assert {len(rules) for rules in LIFE.values()} == {len(State)}


def test_of_a_flight_and_a_row_the_one_counts_that_was_given_more_often() -> None:
    assert state_of(WAITS, Seen(Out(1, 1))) is State.WAITING
    assert state_of(WAITS, Seen(Out(2, 2))) is State.OUT
    assert state_of(WAITS._replace(returns=1), Seen(Out(2, 2))) is State.WAITING


def test_a_row_from_before_a_replay_says_nothing_until_its_reader_has_passed() -> None:
    assert state_of(DEAD, Seen(is_ahead=True, replay=1)) is State.UNREAD
    assert state_of(DEAD._replace(replay=1), Seen(is_ahead=True, replay=1)) is State.DEAD
    assert state_of(DEAD, Seen(replay=1)) is State.DEAD
    assert state_of(None, Seen(is_ahead=True, replay=2, done=1)) is State.UNREAD
    assert state_of(None, Seen(is_ahead=True, replay=2, done=2)) is State.DONE


def test_what_people_do_with_a_row_from_before_a_replay_leaves_the_message_unread() -> None:
    seen = Seen(is_ahead=True, replay=1)
    for event, row in ((Event.TRY, WAITS), (Event.BURY, WAITS), (Event.DROP, DEAD), (Event.SEND_AWAY, DEAD)):
        fate = at(row, seen, event, delay_ms=1)
        assert Effect.REFUSED not in fate.effects
        assert state_of(fate.row, seen) is State.UNREAD
    assert Effect.REFUSED in at(DEAD, seen, Event.REQUEUE).effects, "it comes anyway"


def test_the_head_of_a_key_that_comes_again_is_read_again_and_others_wait() -> None:
    seen = Seen(Out(), is_ahead=True)
    assert at(None, seen, Event.NACK, HEAD).row is None
    row = at(None, seen, Event.NACK).row
    assert row is not None
    assert row.state is State.WAITING


def test_a_letter_holds_its_key_only_if_it_was_to_when_it_died() -> None:
    out = Seen(Out(2, 2))
    assert Effect.KEY_GOES_ON in at(WAITS, out, Event.NACK, HEAD).effects
    holding = HEAD._replace(dead_holds=True)
    assert Effect.KEY_HELD in at(WAITS, out, Event.NACK, holding).effects
    released = at(DEAD, Seen(), Event.RELEASE, holding)
    assert released.row == DEAD
    assert Effect.KEY_GOES_ON in released.effects


def test_a_requeue_begins_anew_and_its_expiry_with_it() -> None:
    fate = at(DEAD, Seen(), Event.REQUEUE, delay_ms=400, due_ms=1, expires_ms=500, row=None)
    assert fate.row is not None
    assert (fate.row.state, fate.row.counted, fate.row.attempts) == (State.WAITING, 0, 2)
    assert fate.row.due_ms == NOW + 400
    over = at(fate.row, Seen(Out(3, 1)), Event.NACK, delay_ms=900, due_ms=1, expires_ms=500)
    assert over.row is not None
    assert (over.row.state, over.row.reason) == (State.DEAD, "expired")


def test_ten_returns_are_free_and_the_eleventh_is_a_try() -> None:
    out = Out()
    for number in range(10):
        fate = at(None, Seen(out), Event.RETURN)
        assert fate.out == Out(0, 0, number + 1, is_held=False)
        out = fate.out._replace(attempts=1, counted=1)
    fate = at(None, Seen(out), Event.RETURN)
    assert fate.row is not None
    assert (fate.row.attempts, fate.row.returns) == (1, 10)


def test_a_return_without_room_waits_and_is_no_try() -> None:
    fate = at(None, OUT, Event.RETURN, TWO._replace(has_room=False))
    assert fate.row is not None
    assert (fate.row.counted, fate.row.returns, at_of(fate.row.at)) == (0, 1, NOW)


def test_a_session_keeps_its_flights_when_its_connection_is_lost() -> None:
    fate = at(None, OUT, Event.LOST, Terms(is_session=True))
    assert (fate.row, fate.out) == (None, Out(is_held=False))


def test_a_pause_grows_and_an_endless_one_is_a_second_at_least() -> None:
    def waits(failed: int, **terms: object) -> int:
        steps = Terms(backoff_ms=(10, 300))._replace(**terms)  # type: ignore[arg-type]
        row = at(None, Seen(Out(failed, failed)), Event.NACK, steps).row
        assert row is not None
        return at_of(row.at) - NOW

    assert [waits(1), waits(2), waits(9), waits(10)] == [10, 300, 300, 1_000]
    assert waits(10, max_attempts=20) == 300


def test_the_last_tries_are_kept() -> None:
    row = WAITS
    for number in range(2, TRIES_MAX + 5):
        fate = at(row, Seen(Out(number, number)), Event.NACK, Terms(), reason=str(number))
        assert fate.row is not None
        row = fate.row
    assert [one.reason for one in row.tries][-1] == str(TRIES_MAX + 4)
    assert len(row.tries) == TRIES_MAX


def test_a_nack_for_good_is_a_letter() -> None:
    fate = at(None, OUT, Event.NACK, delay_ms=NEVER, reason="no")
    assert fate.row is not None
    assert (fate.row.state, fate.row.reason) == (State.DEAD, "no")


def test_what_is_dropped_when_its_slice_is_gone_leaves_nothing() -> None:
    fate = at(WAITS, Seen(), Event.DROP, has_slice=False)
    assert fate.row is None
    assert Effect.COUNT_DROPPED in fate.effects


def dead(fate: Fate) -> DeliveryRow:
    assert fate.row is not None
    assert fate.row.state is State.DEAD
    return fate.row


def test_a_message_that_kills_its_server_is_dead_after_its_last_try() -> None:
    out = Out()
    for _ in range(2):
        fate = at(None, Seen(out), Event.KILL)
        assert fate.out is not None
        again = at(None, Seen(fate.out), Event.GIVE)
        out = again.out or fate.out
    row = dead(again)
    assert (row.attempts, row.counted) == (2, 2)
    assert (row.reason, row.tries[-1].outcome) == ("not acked after 2 deliveries", "lost")
    assert Effect.OBITUARY in again.effects
    assert at(None, Seen(fate.out), Event.GIVE, Terms()).out == Out(3, 3), "without an end it goes on"


def test_what_was_returned_untried_is_dead_if_it_has_no_more_tries() -> None:
    """`max_attempts` was lowered: no try is added."""
    fate = at(WAITS, Seen(Out(2, 2)), Event.RETURN)
    assert fate.out == Out(1, 1, 1, is_held=False)
    row = dead(at(WAITS, Seen(fate.out), Event.GIVE, Terms(max_attempts=1)))
    assert (row.attempts, row.tries) == (1, ())


def test_the_head_of_a_key_that_comes_again_is_dead_first_if_it_may_not_be_tried() -> None:
    last = Seen(Out(2, 2), is_ahead=True)
    assert dead(at(WAITS, last, Event.NACK, HEAD, reason="why")).reason == "why"
    first = Seen(Out(), is_ahead=True)
    assert dead(at(None, first, Event.NACK, HEAD, delay_ms=NEVER, reason="never")).reason == "never"
    over = at(None, first, Event.NACK, HEAD, delay_ms=900, due_ms=NOW, expires_ms=500)
    assert dead(over).reason == "expired"
    assert at(None, first, Event.NACK, HEAD, delay_ms=400, due_ms=NOW, expires_ms=500).row is None


@pytest.mark.parametrize("is_leased", [True, False])
def test_a_retry_that_is_out_when_its_slice_goes_has_its_own_record(*, is_leased: bool) -> None:
    seen = Seen(Out(2, 2, is_leased=is_leased))
    fate = at(WAITS, seen, Event.SLICE_GOES)
    assert (fate.row, fate.out, fate.effects) == (WAITS, seen.out, frozenset())
    assert Effect.OBITUARY not in at(None, seen, Event.SLICE_GOES).effects
    dead(at(None, seen, Event.SLICE_GOES))


def test_a_skip_leaves_a_retry_that_no_key_waits_for() -> None:
    ordered = HEAD._replace(is_head=False)
    assert at(WAITS, Seen(), Event.SKIP, ordered) == Fate(WAITS)
    assert {Effect.KEY_GOES_ON, Effect.OBITUARY} <= at(WAITS, Seen(), Event.SKIP, HEAD).effects
    assert Effect.OBITUARY not in at(None, AHEAD, Event.SKIP).effects, "of thousands there are no copies"
    dead(at(WAITS, Seen(is_ahead=True, replay=1), Event.SKIP, ordered))  # its key would have read it again


def test_what_comes_from_another_filter_voids_an_older_flight() -> None:
    fate = at(None, Seen(), Event.JOIN)
    assert fate.row is not None
    assert state_of(fate.row, Seen(Out(3, 3))) is State.OUT
    assert Effect.CURSOR in fate.effects, "without that flight"


def test_a_kill_makes_a_try_of_what_has_no_room() -> None:
    full = TWO._replace(has_room=False)
    assert at(None, OUT, Event.KILL).out == Out(is_held=False)
    fate = at(None, OUT, Event.KILL, full)
    assert fate.row is not None
    assert (fate.row.state, fate.row.counted, at_of(fate.row.at)) == (State.WAITING, 1, NOW)
    assert fate.out is None
    returned = Seen(Out(0, 0, 1, is_held=False))
    assert at(None, returned, Event.KILL, full).out == returned.out, "it has its room"
    assert at(None, OUT, Event.KILL, full._replace(is_session=True)).row is None, "a session's is its own"


def test_what_is_dropped_at_the_end_of_a_place_is_known_as_long_as_the_message() -> None:
    for row, seen in ((None, AHEAD), (None, OUT), (WAITS, Seen())):
        fate = at(row, seen, Event.END_OF_PLACE, is_dead=False)
        assert fate.row is not None
        assert (fate.row.state, fate.out) == (State.DROPPED, None)
        assert Effect.COUNT_DROPPED in fate.effects
        fate = at(row, seen, Event.END_OF_PLACE, is_dead=False, has_slice=False)
        assert (fate.row, fate.out) == (None, None)


def test_a_pause_of_what_has_no_try_is_the_first_one() -> None:
    row = at(None, Seen(Out(0, 0, 10)), Event.NACK, Terms(backoff_ms=(10, 300))).row
    assert row is not None
    assert at_of(row.at) == NOW + 10


def test_an_ack_ends_what_its_nack_has_stored_though_the_batch_failed() -> None:
    for row in (WAITS, DEAD):
        fate = at(row, OUT, Event.ACK)
        assert (fate.row, fate.out) == (None, None)
        assert Effect.CURSOR in fate.effects
        for event in (Event.NACK, Event.LAPSE, Event.LOST, Event.RETURN):
            fate = at(row, OUT, event)
            assert (fate.row, fate.out) == (row, None), "its flight has ended"
            assert Effect.RECORD not in fate.effects
    holding = HEAD._replace(dead_holds=True)
    assert Effect.KEY_WAITS in at(WAITS, OUT, Event.NACK, holding).effects
    assert Effect.KEY_HELD in at(DEAD, OUT, Event.NACK, holding).effects
    assert Effect.KEY_GOES_ON in at(DEAD, OUT, Event.NACK, HEAD).effects


def test_what_is_put_back_is_neither_tried_nor_returned() -> None:
    out = Out(1, 1, 10)
    assert at(None, Seen(out), Event.PUT_BACK).out == Out(0, 0, 10, is_held=False)
    fate = at(None, Seen(out), Event.PUT_BACK, TWO._replace(has_room=False))
    assert fate.row is not None
    assert (fate.row.attempts, fate.row.returns, fate.row.tries, at_of(fate.row.at)) == (0, 10, (), NOW)


def test_an_older_flight_of_what_was_put_back_voids_no_row() -> None:
    """An older cursor has it in flight, given once more than its row says: it may not be read again."""
    older = Seen(Out(2, 2))
    fate = at(WAITS, older, Event.PUT_BACK)
    assert fate.row is not None
    assert state_of(fate.row, older) is State.OUT
    assert Effect.CURSOR in fate.effects
    put_back = at(None, OUT, Event.PUT_BACK)
    assert put_back.row is None
    for event in (Event.BAR, Event.EXPIRE, Event.WITHHOLD, Event.PUT_OFF, Event.END_OF_PLACE):
        fate = at(None, Seen(put_back.out), event)
        assert state_of(fate.row, OUT) is State.OUT
        assert Effect.CURSOR in fate.effects, event


def test_what_is_put_off_waits_and_is_no_try() -> None:
    one = Terms(max_attempts=1)
    fate = at(WAITS, Seen(), Event.PUT_OFF, one, delay_ms=60_000, reason="no owner")
    assert fate.row == WAITS._replace(at=position(NOW + 60_000, 9))
    fate = at(None, Seen(Out(1, 1, is_held=False)), Event.PUT_OFF, one)
    assert fate.row is not None
    assert (fate.row.state, fate.row.counted, at_of(fate.row.at)) == (State.WAITING, 1, NOW)
    late = dead(at(WAITS, Seen(), Event.PUT_OFF, delay_ms=900, due_ms=NOW, expires_ms=500))
    assert late.reason == "expired"
    assert at(None, AHEAD, Event.PUT_OFF) == Fate(None), "its reader stands before it"
    assert Effect.KEY_WAITS in at(None, AHEAD, Event.PUT_OFF, HEAD, delay_ms=1).effects


def test_the_reason_of_what_is_withheld_is_that_of_its_last_try() -> None:
    row = at(WAITS, Seen(), Event.WITHHOLD, reason="no owner").row
    assert row is not None
    assert (row.state, row.reason) == (State.WITHHELD, "late")


def test_what_is_withheld_is_looked_at_when_it_is_given_up_or_has_expired() -> None:
    """It does not die by being withheld: its sender may be allowed before."""
    for expires_ms, left_ms in ((0, 60_000), (90_000, 60_000), (5_000, 5_000), (1, 1)):
        row = at(WAITS, Seen(), Event.WITHHOLD, delay_ms=60_000, due_ms=NOW, expires_ms=expires_ms).row
        assert row is not None
        assert (row.state, at_of(row.at)) == (State.WITHHELD, NOW + left_ms)
    row = at(WAITS, Seen(), Event.WITHHOLD, delay_ms=60_000, due_ms=NOW - 9, expires_ms=5).row
    assert row is not None
    assert at_of(row.at) == NOW, "over already"
    assert dead(at(row, Seen(), Event.OWNER_BACK, due_ms=NOW - 9, expires_ms=5)).reason == "expired"
    back = at(row, Seen(), Event.OWNER_BACK, due_ms=NOW).row
    assert back is not None
    assert (back.state, at_of(back.at), back.attempts) == (State.WAITING, NOW, row.attempts)


def test_a_letter_says_who_lost_its_last_try_and_when() -> None:
    before = (Try(5, "c", "lost", "no answer"),)
    fate = at(None, Seen(Out(2, 2, is_held=False)), Event.GIVE, by="c", ended_ms=7, held_ms=3, lost=before)
    why = "not acked after 2 deliveries"
    assert dead(fate).tries == (*before, Try(7, "c", "lost", why, 3))
    fate = at(None, Seen(Out(2, 2, is_held=False)), Event.EXPIRE, by="c", ended_ms=7, lost=before)
    assert dead(fate).tries == (*before, Try(7, "c", "lost", "expired"))
    assert dead(at(WAITS, Seen(), Event.EXPIRE)).tries == (), "it was in nobody's hands"


def test_a_member_that_stays_inherits_what_has_no_row() -> None:
    for out in (Out(2, 2), Out(2, 2, is_leased=True), Out(2, 2, is_handed=True)):
        fate = at(None, Seen(out), Event.INHERIT)
        assert (fate.row, fate.out) == (None, None)
        assert Effect.CURSOR in fate.effects, "the member's is in the same batch"
        assert Effect.NOTE in at(None, Seen(out, is_ahead=True), Event.INHERIT).effects
        assert at(WAITS, Seen(out), Event.INHERIT) == Fate(WAITS, Out(2, 2, is_held=False))


def test_what_is_handed_over_is_out_until_its_member_has_done_or_refused_it() -> None:
    out = at(WAITS, Seen(), Event.GIVE, is_handed=True).out
    assert out == Out(2, 2, is_handed=True)
    seen = Seen(out)
    for event in (Event.LOST, Event.KILL, Event.SKIP, Event.EXPIRE, Event.SLICE_GOES):
        assert at(WAITS, seen, event) == Fate(WAITS, out)
    assert at(WAITS, seen, Event.ACK) == Fate(None, None, frozenset({Effect.LATER}))
    fate = at(WAITS, seen, Event.NACK, Terms())
    assert fate.row is not None
    assert fate.row.state is State.WAITING
    assert Effect.CURSOR in fate.effects, "the member's, without it, is in the same batch"
    spent = at(None, Seen(Out(2, 2, is_held=False)), Event.GIVE, is_handed=True)
    assert dead(spent).reason == "not acked after 2 deliveries"


def test_what_expires_ahead_of_its_reader_is_noted() -> None:
    seen = Seen(Out(is_held=False), is_ahead=True)
    assert Effect.NOTE in at(None, seen, Event.EXPIRE, Terms(is_session=True)).effects


def test_a_retry_that_cannot_be_read_is_dead_and_its_key_goes_on() -> None:
    fate = at(WAITS, Seen(), Event.UNREADABLE, HEAD, reason="unreadable")
    assert dead(fate).reason == "unreadable"
    assert Effect.KEY_GOES_ON in fate.effects


def test_a_letter_that_is_evicted_goes_with_the_cursor() -> None:
    """An older one may have its flight, or have still to read it: the letter voids both."""
    assert Effect.CURSOR in at(DEAD, Seen(), Event.EVICT).effects
    assert state_of(DEAD, Seen(Out(2, 2), is_ahead=True)) is State.DEAD
    assert state_of(None, Seen(Out(2, 2))) is State.OUT


def test_what_is_unread_is_not_requeued_or_moved() -> None:
    """It comes anyway, and a message is at a place once."""
    seen = Seen(is_ahead=True, replay=1)
    for event, row in ((Event.REQUEUE, DEAD), (Event.MOVE, WAITS), (Event.COME, None), (Event.JOIN, None)):
        assert at(row, seen, event).effects == {Effect.REFUSED}
