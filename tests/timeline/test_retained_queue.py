"""The line of subscriptions that wait for what is retained, beside a plain list, and over restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.position import Position
from timeline.retained_queue import RetainedQueue
from timeline.session import Subscription

NAMES = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), NAMES),
        st.tuples(st.just("gone"), NAMES),
        st.tuples(st.just("sent"), NAMES),
        st.tuples(st.just("finish"), NAMES),
        st.tuples(st.just("restart"), NAMES),
    )
)


@pytest.mark.long
@given(STEPS)
def test_it_is_a_list_without_doubles_and_survives(steps: list[tuple[str, str]]) -> None:
    asked, line, topic = RetainedQueue(), list[str](), b""
    subscriptions: dict[str, Subscription] = {}
    for step, name in steps:
        if step == "ask":
            topic = b"" if line[:1] == [name] else topic
            line = [other for other in line if other != name] + [name]
            subscriptions[name] = Subscription(name, 1, Position(0))
            asked.add(subscriptions[name])
        elif step == "gone":
            topic = b"" if line[:1] == [name] else topic
            line = [other for other in line if other != name]
            subscriptions.pop(name, None)
            asked.discard(name)
        elif step == "sent" and line:
            asked.topic = topic = name.encode()
        elif step == "finish" and line:
            del line[0]
            topic = b""
            asked.finish()
        elif step == "restart":
            again = RetainedQueue()
            again.restore(list(subscriptions.values()), asked.done, asked.topic)
            asked = again
        assert len(asked) == len(line)
        assert not line or asked.first == line[0]
        assert asked.topic == topic


def test_rows_of_before_ask_for_nothing() -> None:
    asked = RetainedQueue()
    assert asked.done == 0
    asked.restore([Subscription("a", 1, Position(0))], 0, b"")
    assert (len(asked), asked.done, asked.topic) == (0, 0, b"")


def test_who_asks_after_a_restart_is_behind_all_that_had() -> None:
    asked, subscriptions = RetainedQueue(), [Subscription(name, 1, Position(0)) for name in "abc"]
    for subscription in subscriptions:
        asked.add(subscription)
    for asks_again in (subscriptions[:1], []):
        done, asked = asked.done, RetainedQueue()
        asked.restore(subscriptions, done, b"")
        for subscription in asks_again:
            asked.add(subscription)
    line = []
    while asked:
        line.append(asked.first)
        asked.finish()
    assert line == ["b", "c", "a"]
