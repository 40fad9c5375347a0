"""Topics and filters: the checks, MQTT's examples of matching, the trie against one comparison per filter."""

import random
from itertools import product
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from timeline.filters import (
    TOPIC_BYTES_MAX,
    FilterError,
    TopicError,
    Trie,
    check_filter,
    check_topic,
    covers,
    is_reserved,
    levels_of,
    matcher,
    matches,
    parse_share,
    refused_character,
    sendable,
    share_text,
)

LEVELS = st.sampled_from(["", "a", "b", "$a", "é"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, tail: "/".join(levels + tail),
    st.lists(st.one_of(LEVELS, st.just("+")), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)


@pytest.mark.parametrize(
    "topic", [b"a", b"/", b"a//b", b" ", "ä/ö".encode(), b"$SYS/x", b"x" * TOPIC_BYTES_MAX]
)
def test_a_good_topic_passes(topic: bytes) -> None:
    check_topic(topic)


def test_levels_are_what_is_between_slashes() -> None:
    assert [levels_of(topic) for topic in (b"a", b"/", b"a/b", b"a//b/")] == [1, 2, 2, 4]


@pytest.mark.parametrize("first", [b"$SYS", b"$share", b"$delayed", b"$dead", b"$queue", b"$control"])
def test_what_is_reserved_is_a_whole_first_level(first: bytes) -> None:
    for topic in (first, first + b"/", first + b"/a/b"):
        assert is_reserved(topic)
    for topic in (
        *(first[:-1], first + b"x", first + b"x/a", b"a/" + first, b"/" + first, first[1:], first.swapcase()),
    ):
        assert not is_reserved(topic)


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (b"", "empty"),
        (b"x" * (TOPIC_BYTES_MAX + 1), "at most 65535 bytes, this one has 65536"),
        (b"a\0", "NUL, found at byte 1"),
        (b"a\x1fb", "the control character U\\+001F"),
        ("\x9f".encode(), "the control character U\\+009F"),
        ("a\ufdd0".encode(), "the non-character U\\+FDD0"),
        ("a\U0001ffff".encode(), "the non-character U\\+1FFFF"),
        (b"ab/+/c", "'\\+', found at byte 3"),
        (b"ab#", "'#', found at byte 2"),
        (b"ab\xff", "UTF-8, byte 2"),
        (b"\xed\xa0\x80", "UTF-8, byte 0"),
    ],
)
def test_a_bad_topic_is_named(topic: bytes, said: str) -> None:
    with pytest.raises(TopicError, match=said):
        check_topic(topic)


@pytest.mark.parametrize(
    "good", ["a", "#", "+", "/", "+/+/#", "a//b", "$SYS/#", "/+", "é/#", "$share", "x" * 65_535]
)
def test_a_good_filter_passes(good: str) -> None:
    check_filter(good)
    assert parse_share(good) == (None, good)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        *(("", "empty"), ("#/a", "level 1 of 2"), ("a/#/b", "level 2 of 3"), ("a/b+", "level 2 is 'b\\+'")),
        *(("a#", "level 1 is 'a#'"), ("++", "whole level"), ("a\0b", "NUL, found at character 1")),
        *(("a\ud800", "UTF-8, character 1"), ("é" * 32_768, "this one has 65536")),
    ],
)
def test_a_bad_filter_is_named(bad: str, said: str) -> None:
    with pytest.raises(FilterError, match=said):
        check_filter(bad)
    with pytest.raises(FilterError, match=said):
        parse_share(bad)


SAMPLES = ["/".join(levels) for depth in (1, 2, 3, 4) for levels in product("abz", repeat=depth)]
"""As deep as no filter below is, and with a level that none of them names."""


@given(*(st.lists(st.sampled_from("ab+"), max_size=3),) * 2, st.booleans(), st.booleans())
def test_a_filter_covers_another_if_it_matches_all_of_it(
    wide: list[str], narrow: list[str], wide_is_open: bool, narrow_is_open: bool
) -> None:
    first, second = wide + ["#"] * (wide_is_open or not wide), narrow + ["#"] * (narrow_is_open or not narrow)
    wider, narrower = "/".join(first), "/".join(second)
    matched = [topic for topic in SAMPLES if matches(narrower, topic)]
    assert covers(wider, narrower) <= all(matches(wider, topic) for topic in matched)
    if "#" not in second:
        assert covers(wider, narrower) == all(matches(wider, topic) for topic in matched)
    assert covers(wider, wider)
    assert covers("#", narrower)


def test_a_share_is_taken_apart() -> None:
    assert parse_share("$share/workers/orders/+/#") == ("workers", "orders/+/#")
    assert parse_share("$share/g//") == ("g", "/")
    assert parse_share("$shared/g/a") == (None, "$shared/g/a")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        *(("$share/", "group .* empty"), ("$share//a", "group .* empty")),
        *(("$share/g", "missing after the group 'g'"), ("$share/g/", "missing after the group 'g'")),
        *(("$share/g+/a", "wildcard"), ("$share/#/a", "wildcard"), ("$share/g/a#", "whole level")),
        *(("$share/\0/a", "NUL"), ("$share/g/" + "x" * TOPIC_BYTES_MAX, "at most")),
    ],
)
def test_a_bad_share_is_named(bad: str, said: str) -> None:
    with pytest.raises(FilterError, match=said):
        parse_share(bad)


def test_a_new_filter_has_no_character_that_ends_connections_and_an_old_one_may() -> None:
    for group, text, said in (
        ("g\x07", "a", "the group .* U\\+0007"),
        ("g", "a\x07", "a filter .* U\\+0007"),
    ):
        with pytest.raises(FilterError, match=said):
            share_text(group, text)
        assert parse_share(f"$share/{group}/{text}") == (group, text)


@pytest.mark.long
def test_what_is_sendable_is_what_is_not_refused() -> None:
    """MQTT 5.0, 1.5.4: U+0001..U+001F, U+007F..U+009F, and the non-characters of Unicode (and NUL)."""
    control = {*range(0x20), *range(0x7F, 0xA0)}
    nothing = {
        *range(0xFDD0, 0xFDF0),
        *(plane << 16 | last for plane in range(17) for last in (0xFFFE, 0xFFFF)),
    }
    every = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert {code for code in every if refused_character(chr(code))} == control | nothing
    assert {code for code in every if sendable(chr(code)) != chr(code)} == control | nothing


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "a/b", True),
        ("#", "/", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS", True),
        ("$SYS/+", "$SYS/x", True),
        ("a/+", "a/$x", True),
        ("a/b", "a/B", False),
    ],
)
def test_the_examples_of_the_standard(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected
    trie: Trie[int, str] = Trie()
    trie.add(pattern, 1, "x")
    assert trie.match(topic) == ([(1, "x")] if expected else [])


@given(FILTERS, TOPICS)
def test_a_matcher_equals_a_comparison(pattern: str, topic: str) -> None:
    assert matcher(pattern)(topic) is matches(pattern, topic)


@pytest.mark.long
@given(st.lists(st.tuples(FILTERS, st.integers(0, 3)), max_size=12), TOPICS)
def test_the_trie_equals_a_comparison_each(added: list[tuple[str, int]], topic: str) -> None:
    trie: Trie[int, str] = Trie()
    for pattern, key in added:
        check_filter(pattern)
        trie.add(pattern, key, pattern)
    assert sorted(trie.match(topic)) == sorted((k, p) for p, k in set(added) if matches(p, topic))


def test_a_very_deep_filter_needs_no_recursion() -> None:
    trie: Trie[int, int] = Trie()
    deep = "/" * (TOPIC_BYTES_MAX - 1)
    trie.add(deep, 1, 1)
    assert trie.match(deep) == [(1, 1)]
    trie.discard(deep, 1)
    assert not trie._root.children


def test_deep_filters_cost_by_their_number_not_by_their_levels() -> None:
    """1,000 filters of 126 levels that all fit but for the last one: 34 ms with a node a level."""
    chance = random.Random(1)
    trie: Trie[int, int] = Trie()
    beginnings = ["/".join(chance.choice("+a") for _ in range(126)) for _ in range(1_000)]
    for key, text in enumerate(beginnings):
        trie.add(f"{text}/b", key, key)
    nodes, count = [trie._root], 0
    while nodes:
        count += 1
        nodes.extend(nodes.pop().children.values())
    assert count <= 2 * len(beginnings)
    topic, took = "a/" * 126, []
    for _ in range(5):
        begun = process_time()
        assert trie.match(topic) == []
        took.append(process_time() - begun)
    assert min(took) < 0.01
    assert len(trie.match(topic + "b")) == 1_000
    for key, text in enumerate(beginnings):
        trie.discard(f"{text}/b", key)
    assert not trie._root.children


class TrieMachine(RuleBasedStateMachine):
    """A trie beside a plain dict, with things added, replaced and taken out."""

    def __init__(self) -> None:
        super().__init__()
        self.trie: Trie[int, int] = Trie()
        self.model: dict[tuple[str, int], int] = {}

    @rule(pattern=FILTERS, key=st.integers(0, 2), value=st.integers(0, 9))
    def add(self, pattern: str, key: int, value: int) -> None:
        self.trie.add(pattern, key, value)
        self.model[pattern, key] = value

    @rule(pattern=FILTERS, key=st.integers(0, 2))
    def discard(self, pattern: str, key: int) -> None:
        self.trie.discard(pattern, key)
        self.model.pop((pattern, key), None)

    @rule()
    def discard_all(self) -> None:
        for pattern, key in self.model:
            self.trie.discard(pattern, key)
        self.model.clear()
        assert not self.trie._root.children

    @rule(topic=TOPICS)
    def match(self, topic: str) -> None:
        wanted = [(key, value) for (pattern, key), value in self.model.items() if matches(pattern, topic)]
        assert sorted(self.trie.match(topic)) == sorted(wanted)

    @invariant()
    def counts_and_no_needless_node(self) -> None:
        assert len(self.trie) == len(self.model)
        nodes = [self.trie._root]
        while nodes:
            node = nodes.pop()
            for first, below in node.children.items():
                assert below.values or below.open or len(below.children) > 1
                assert below.levels[0] == first
                assert below.end == node.end + len(below.levels)
                nodes.append(below)


TestTrie = pytest.mark.long(TrieMachine.TestCase)
TestTrie.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
