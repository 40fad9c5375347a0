"""Who gets a topic: the cache says what the trie says, whatever changes, and keeps to its bound in bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.delivery.router import (
    ANSWER_OVERHEAD,
    ORIGIN_CHARS_MAX,
    PAIR_BYTES,
    TOPIC_OVERHEAD,
    Router,
    endpoint_names,
)
from server.delivery.subscriber import Subscriber
from timeline.filters import matches
from timeline.position import Position
from timeline.session import Session, Subscription

FILTERS = st.sampled_from(["a", "a/b", "a/+", "a/#", "#", "+/b", "+", "$x/#", "a/b/c"])
TOPICS = st.sampled_from([b"a", b"a/b", b"a/c", b"b/b", b"$x/a", b"a/b/c", b"c"])


def _subscriber(name: str) -> Subscriber:
    return Subscriber(Session(name, read=Position(0), expiry_s=0, window=1), set(), lambda _, __: None)


def _add(router: Router, subscriber: Subscriber, topic_filter: str) -> None:
    wanted = Subscription(topic_filter, 1, Position(0))
    subscriber.session.subscriptions[topic_filter] = wanted
    router.add(subscriber, wanted)


@pytest.mark.long
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["add", "discard", "route"]), FILTERS, TOPICS)),
    st.sampled_from([0, 2_000, 1 << 20]),
)
def test_it_says_what_a_comparison_each_says(steps: list[tuple[int, str, str, bytes]], room: int) -> None:
    router = Router(["c"], max_bytes=room)
    subscribers = [_subscriber(name) for name in "abc"]
    for index, step, topic_filter, topic in steps:
        subscriber = subscribers[index]
        if step == "add":
            _add(router, subscriber, topic_filter)
        elif step == "discard":
            subscriber.session.subscriptions.pop(topic_filter, None)
            router.discard(subscriber, topic_filter)
        for asked in (topic, b"c"):
            expected = {
                one: {f for f in one.session.subscriptions if matches(f, asked.decode())}
                for one in subscribers
            }
            found = {one: {s.filter for s in wanted} for one, wanted in router.route(asked).items()}
            assert found == {one: wanted for one, wanted in expected.items() if wanted and asked != b"c"}


def test_topics_that_the_same_filters_match_share_the_answer() -> None:
    router = Router()
    for number in range(1_000):
        _add(router, _subscriber(str(number)), "devices/#")
    first = router.route(b"devices/0/temp")
    before = router.cached_bytes
    assert all(router.route(b"devices/%d/temp" % number) is first for number in range(1_000))
    assert router.cached_bytes - before < 1_000 * (TOPIC_OVERHEAD + 20)


def test_the_cache_is_bounded_in_bytes() -> None:
    room = 1 << 20
    router = Router(max_bytes=room)
    for number in range(500):
        router.route(b"%d/" % number + b"t" * 60_000)
        assert router.cached_bytes <= room
    assert sum(map(len, router._cache)) <= room // 2
    for number in range(300):
        _add(router, _subscriber(str(number)), f"+/{number % 30}/+")
    for number in range(30 * 300):
        router.route(b"x/%d/%d" % (number % 30, number))
        assert router.cached_bytes <= room
    # An answer that is larger than its half is kept alone, so that it is not made for each topic.
    router = Router(max_bytes=4_000)
    for number in range(100):
        _add(router, _subscriber(str(number)), "big/#")
    big = router.route(b"big/1")
    assert router.route(b"big/2") is big
    assert router._answer_bytes == ANSWER_OVERHEAD + 8 + 100 * PAIR_BYTES
    router.route(b"small")
    assert router._answer_bytes == ANSWER_OVERHEAD


class Some:
    """Rights to topics that end so."""

    name, is_live, may_connect = "", True, True

    def __init__(self, end: bytes) -> None:
        self.end = end

    def may_publish(self, topic: bytes) -> bool:
        return False

    def may_receive(self, topic: bytes) -> bool:
        return topic.endswith(self.end)

    def may_subscribe(self, topic_filter: str) -> bool:
        return True

    def may_receive_all(self, topic_filter: str) -> bool:
        return False

    def may_receive_some(self, topic_filter: str) -> bool:
        return True


def test_who_may_not_have_a_topic_is_not_in_its_answer() -> None:
    router = Router()
    free, bound = _subscriber("free"), _subscriber("bound")
    bound.rights = Some(b"1")
    for one in (free, bound):
        _add(router, one, "a/#")
    for _ in range(2):
        assert set(router.route(b"a/1")) == {free, bound}
        assert set(router.route(b"a/2")) == {free}
    bound.rights.end = b"2"
    router.forget()
    assert set(router.route(b"a/2")) == {free, bound}


def test_answers_of_topics_that_not_all_may_have_keep_to_the_bound_too() -> None:
    room = 1 << 18
    router = Router(max_bytes=room)
    for number in range(100):
        bound = _subscriber(str(number))
        bound.rights = Some(b"%d" % (number % 10))
        _add(router, bound, "#")
    for number in range(3_000):
        assert len(router.route(b"%d" % number)) == 10
        assert router.cached_bytes <= room
    assert len(router._cache) > 20


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a?b=://c",
        "HTTPS://Example.COM",
        "https://example.com:443/",
        "https://example.com:0443?x",
        "https://ｅxample.com/a",
    ],
)
def test_an_origin_has_one_name_however_it_is_spelled(url: str) -> None:
    assert endpoint_names(url.encode(), b"") == ("https://example.com", "*")
    assert endpoint_names(url.encode(), b"ci") == ("ci@https://example.com", "ci@*", "*")


@pytest.mark.parametrize(
    "url", ["a/b://c", "://", "https://" + "a" * ORIGIN_CHARS_MAX, "https://[x/", "https://[1]@", "\xff://x"]
)
def test_what_is_no_origin_is_the_common_one_s(url: str) -> None:
    assert endpoint_names(url.encode("latin-1"), b"") == ("*",)


def test_a_message_belongs_to_the_first_endpoint_that_was_there_before_it() -> None:
    router = Router()
    groups = {name: _subscriber(name) for name in ("*", "ci@*", "ci@https://x", "x")}
    for since, (name, group) in enumerate(groups.items()):
        router.add_endpoint(name, group, Subscription(name, 2, Position(10 * since)))
    found = [
        [one.session.client_id for one in router.posted(b"https://x/a", b"ci", Position(place))]
        for place in (0, 5, 15, 20, 25)
    ]
    assert found == [[], ["*"], ["ci@*"], ["ci@*"], ["ci@https://x"]]
    assert list(router.posted(b"x", b"", Position(99))) == [groups["x"]]
    assert not router.posted(b"", b"", Position(99))
