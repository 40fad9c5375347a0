"""Order by key: the worked example, and walks against an oracle that find each rule left out."""

import pytest

from tests.model.order import RULES, check, give, rows_of, walk
from tests.support.planted import Fault, finds
from tests.support.soak import SOAK
from timeline.finished import Finished
from timeline.key_order import KeyOrder, Meeting
from timeline.key_rows import NO_SHARD, NOWHERE, ORDERED, KeyBound, KeyRow, Rule
from timeline.position import END, Position, position

A = b"a"


def at(n: int) -> Position:
    return position(n, n)


def rest(order: KeyOrder, key: bytes, root: Position) -> None:
    """The message that is in flight has failed, and waits for its next try."""
    order.set_head(key, root)
    order.land(key)


def test_the_example() -> None:
    order = KeyOrder(KeyBound(20))
    assert order.meet(A, at(1), 0) is Meeting.GIVE
    order.launch(A)
    for n in (4, 7, 9):
        assert order.meet(A, at(n), 0) is Meeting.PASS
    assert order.row(A) == KeyRow(at(4), 0)
    assert {key: [one[0] for one in places] for key, places in order.take().index.items()} == {
        A: [at(7), at(9)]
    }
    order.unwritten.wrote()
    assert not order.free
    order.land(A)
    assert list(order.free) == [A]
    assert give(order, A) == (at(4), 0)
    rest(order, A, at(4))
    assert order.row(A) == KeyRow(at(7), 0, at(4))
    assert not order.free
    assert order.head_of(at(4)) == A
    order.launch(A)
    order.end_head(A)
    assert order.row(A) == KeyRow(at(7), 0)
    for n in (7, 9):
        order.land(A)
        assert give(order, A) == (at(n), 0)
    assert order.row(A) == KeyRow()
    assert order.take().keys == {A: None}


def test_a_round_of_turns_begins_anew_with_another_rule() -> None:
    """Else nobody had a turn: a group that was fair has more of them in a round."""
    order = KeyOrder(KeyBound(20), Rule(is_fair=True))
    while order.turns.is_reader:
        order.turns.gave(1, is_reader=True)
    order.change_rule(ORDERED)
    assert order.turns.left > 0


def test_the_reader_stops_at_the_bound_and_is_told_when_it_may_go_on() -> None:
    order = KeyOrder(KeyBound(2))
    order.launch(A)
    rest(order, A, at(1))
    assert order.meet(b"b", at(2), 0) is Meeting.STOP
    assert order.meet(A, at(3), 0) is Meeting.PASS
    assert not order.room.may_read_on()
    order.end_head(A)
    assert not order.room.may_read_on()
    give(order, A)
    assert order.room.may_read_on()
    assert not order.room.may_read_on()
    assert order.meet(b"b", at(2), 0) is Meeting.GIVE


def resting(order: KeyOrder, count: int) -> None:
    """Of keys 1, 2, ... each one message waits for its retry and one follows, behind all that wait."""
    for n in range(1, count + 1):
        key = b"%d" % n
        order.launch(key)
        rest(order, key, at(n))
        order.meet(key, at(5_000 + n), 0)
    order.take()
    order.unwritten.wrote()


def test_a_replay_looks_at_some_keys_with_each_cursor() -> None:
    """However many are in trouble: else it took a turn of 240 to 560 ms with 50,000."""
    order = KeyOrder(KeyBound(10_000))
    resting(order, 1_250)
    order.rewind(at(2), Finished())
    assert order.has_upto(NOWHERE)
    check(order)
    for count in (500, 500, 250, 0):
        assert bool(order.past) == bool(count)
        assert order.firsts.needed == at(2) + 1 if count else END
        assert len(order.take().keys) == count
        check(order)
    assert rows_of(order) == [(b"%d" % n, KeyRow(NOWHERE, NO_SHARD, at(n))) for n in (1, 2)]
    assert not order.has_upto(NOWHERE)


def test_what_is_asked_of_a_key_is_as_the_replay_left_it() -> None:
    order = KeyOrder(KeyBound(10_000))
    resting(order, 9)
    order.hold(b"9", by_hand=True)
    order.rewind(at(2), Finished([at(5)]))
    assert order.row(b"1") == KeyRow(root=at(1))
    assert order.head_of(at(2)) == b"2"
    assert order.head_of(at(3)) is None
    assert order.find(b"3") is None
    assert order.meet(b"4", at(4), 0) is Meeting.GIVE
    assert order.head_of(at(5)) == b"5", "it does not come again"
    assert not order.is_behind(b"6", at(5_006))
    order.end_head(b"7")
    assert order.row(b"9") == KeyRow(by_hand=True)
    check(order)


def test_what_was_taken_and_lost_is_taken_again() -> None:
    order = KeyOrder(KeyBound(20))
    order.launch(A)
    for n in (1, 2):
        order.meet(A, at(n), 0)
    first = order.take()
    order.meet(A, at(3), 0)
    order.unwritten.lost()
    again = order.take()
    assert again.keys == first.keys
    assert again.index == {A: [(at(2), 0), (at(3), 0)]}


def test_a_group_has_half_of_what_others_leave() -> None:
    bound = KeyBound(10)
    one, other = KeyOrder(bound), KeyOrder(bound)
    for order, most in ((one, 5), (other, 2)):
        count = 0
        while order.meet(b"%d" % count, at(1), 0) is Meeting.GIVE:
            order.launch(b"%d" % count)
            rest(order, b"%d" % count, at(count + 1))
            count += 1
        assert (count, order.room.rows) == (most, most)
    one.leave()
    assert not other.room.is_full


def test_the_groups_of_one_owner_leave_some_keys_to_others() -> None:
    bound = KeyBound(80)
    for n in range(100):
        order = KeyOrder(bound)
        order.room.belong_to("greedy")
        while order.meet(b"%d" % n, at(1), 0) is Meeting.GIVE:
            order.launch(b"%d" % n)
            rest(order, b"%d" % n, at(1))
            n += 100
    assert bound.count == 70
    other = KeyOrder(bound)
    other.room.belong_to("another")
    assert not other.room.is_full
    order.room.belong_to("another")
    order.room.belong_to("greedy")
    assert order.room.is_full


def test_a_replay_gives_back_the_rows_of_keys_that_come_again() -> None:
    bound = KeyBound(20)
    order = KeyOrder(bound)
    for n, key in enumerate((A, b"b", b"c"), 1):
        order.launch(key)
        rest(order, key, at(n))
        order.meet(key, at(10 + n), 0)
    order.rewind(at(2), Finished())
    order.take()
    assert (bound.count, order.room.rows) == (2, 2)
    assert order.row(A) == KeyRow(root=at(1))
    assert order.row(b"b") == KeyRow(root=at(2))
    check(order)
    order.rewind(NOWHERE, Finished())
    order.take()
    assert (bound.count, order.room.rows) == (0, 0)


def test_after_a_start_followers_are_read_from_the_index() -> None:
    order = KeyOrder(KeyBound(20))
    order.restore([(A, KeyRow(at(4), NO_SHARD))])
    assert list(order.free) == [A]
    assert order.find(A).first is None
    assert order.row(A).next == at(4)
    order.learn(A, [(at(7), 1)], at(9), is_all=False)
    assert give(order, A) == (at(7), 1)
    order.land(A)
    assert order.find(A).first is None
    order.learn(A, [], at(9), is_all=True)
    assert order.row(A).next == NOWHERE
    assert not order.free


def test_a_message_is_in_flight_twice_if_the_group_began_to_order_meanwhile() -> None:
    order = KeyOrder(KeyBound(20))
    order.launch(A)
    order.launch(A)
    order.meet(A, at(3), 0)
    order.land(A)
    assert not order.free
    order.land(A)
    assert list(order.free) == [A]


def walks(first: int, count: int, rule: str) -> None:
    for seed in range(first, first + count):
        walk(seed, RULES[rule])


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_walks(rule: str) -> None:
    walks(0, (80 if rule == "order" else 30) * (50 if SOAK else 1), rule)


@finds("order")
def test_each_rule_left_out_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, first = fault.drivers["order"]
    fault.plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        walks(first, 3_000, rule)
