"""Learned structures: a reader that skips shards by them must never skip a message that it wants."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timeline.structures as module
from timeline.filters import matches
from timeline.structures import ANYTHING, FANOUT, LEARN_TOPICS, LEVELS_MAX, Structures, overlap

level = st.sampled_from(("a", "b", "c", "", "$s"))
topics = st.lists(level, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.lists(st.one_of(level, st.just("+")), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(("/".join(levels), "/".join([*levels, "#"])))
)


def learned(maximum: int = 1_024) -> Structures:
    """Past the first topics, which all go to structure 0."""
    structures = Structures(max_structures=maximum)
    structures._seen = LEARN_TOPICS
    return structures


def pattern_of(structures: Structures, topic: str) -> str:
    return structures.pattern(structures.place(topic.encode())[0])


def test_the_example_of_the_module() -> None:
    structures = learned()
    for number in range(FANOUT + 1):
        structures.place(f"orders/{number}/paid".encode())
    assert pattern_of(structures, "orders/7/paid") == "orders/+/paid"
    assert pattern_of(structures, "orders/new/paid") == "orders/+/paid"
    assert pattern_of(structures, "lights/kitchen") == "lights/kitchen"
    assert pattern_of(structures, "lights/hall") == "lights/hall"


def test_the_first_topics_are_only_learned() -> None:
    structures = Structures(max_structures=10)
    for _ in range(LEARN_TOPICS - 1):
        assert structures.place(b"a/b") == (ANYTHING, None)
    assert structures.place(b"a/b") == (1, "a/b")
    assert structures.place(b"a/b") == (1, None)
    assert len(structures) == 1


def test_structures_are_bounded() -> None:
    structures = learned(2)
    assert structures.place(b"a") == (1, "a")
    assert structures.place(b"b") == (2, "b")
    assert structures.place(b"c") == (ANYTHING, None)
    assert structures.pattern(ANYTHING) == "#"
    assert structures.pattern(9) == "#"


def test_deep_topics_end_in_a_wildcard() -> None:
    structures = learned()
    deep = "/".join("abcdefghijkl")
    assert pattern_of(structures, deep) == "/".join("abcdefghijkl"[:LEVELS_MAX]) + "/#"
    assert structures.overlapping([deep]) == {ANYTHING, 1}


def test_children_with_many_children_are_merged_deeply() -> None:
    structures = learned()
    for first in range(FANOUT + 1):
        for second in range(3):
            structures.place(f"x/{first}/{first}-{second}".encode())
    assert pattern_of(structures, "x/1/1-1") == "x/+/+"
    structures.place(b"x/y")
    assert pattern_of(structures, "x/new") == "x/+"


def test_merged_children_are_still_known() -> None:
    structures = learned()
    for first in range(FANOUT + 1):
        structures.place(f"x/{first}/c{first % FANOUT}".encode())
    assert pattern_of(structures, "x/1/c1") == "x/+/c1"
    assert not structures._root.children["x"].children
    structures.place(f"x/1/c{FANOUT}".encode())
    assert pattern_of(structures, "x/1/c2") == "x/+/+"


def test_what_is_restored_is_known() -> None:
    structures = learned()
    for number in range(FANOUT + 1):
        structures.place(f"orders/{number}/paid".encode())
    patterns = {number: structures.pattern(number) for number in range(1, len(structures) + 1)}
    again = Structures(max_structures=1_024)
    again.restore(patterns)
    assert len(again) == len(structures)
    assert again.place(b"orders/99/paid") == structures.place(b"orders/99/paid")
    deep = "/".join("abcdefghijkl")
    number, pattern = again.place(deep.encode())
    assert pattern is not None
    third = Structures(max_structures=1_024)
    third.restore({number: pattern, number + 1: "orders/#"})
    assert third._nodes == LEVELS_MAX + 1
    third._seen = LEARN_TOPICS
    assert third.place(deep.encode()) == (number, None)


def test_caches_are_dropped_at_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", 3 * (module.CACHE_OVERHEAD + 2))
    structures = learned()
    for name in "abcdefgh":
        structures.place(name.encode())
        structures.overlapping([name])
        assert len(structures._by_topic) <= 3
    structures.overlapping(["c", "d"])
    assert {"c", "d"} <= structures._by_filter.keys()
    for name in "abcdefgh":
        structures.overlapping([name])
    assert len(structures._by_topic) <= 3
    assert len(structures._by_filter) <= 3
    assert b"h" in structures._by_topic
    assert "h" in structures._by_filter
    assert structures.overlapping(["a"]) == {ANYTHING, 1}


def test_long_topics_and_filters_fill_the_caches_sooner() -> None:
    structures = learned()
    for number in range(1_000):
        structures.place(b"%d/" % number + b"x" * 60_000)
        structures.overlapping([f"{number}/{'x' * 60_000}"])
    kept = [*structures._by_topic, *structures._by_filter]
    assert sum(map(len, kept)) <= 2 * module.CACHE_BYTES


def test_long_levels_are_many_nodes_and_patterns_are_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "NODES_MAX", 10)
    structures = learned()
    assert pattern_of(structures, "short/" + "x" * 2_000) == "short/+"
    monkeypatch.setattr(module, "PATTERN_BYTES", len("short/+") + 3)
    assert structures.place(b"abcd") == (ANYTHING, None)
    assert structures.place(b"abc") == (2, "abc")


@pytest.mark.long
@given(st.lists(topics, max_size=30), st.lists(filters, min_size=1, max_size=5), st.integers(1, 6))
def test_overlapping_equals_a_comparison_each(stream: list[str], wanted: list[str], fanout: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FANOUT", fanout)
        patch.setattr(module, "LEVELS_MAX", 3)
        patch.setattr(module, "MASKS_MAX", 2)
        structures = learned()
        for topic in ["", *stream]:
            if topic:
                structures.place(topic.encode())
            for topic_filter in [*wanted, *stream, "#"]:
                expected = {
                    number
                    for number in range(1, len(structures) + 1)
                    if overlap(structures.pattern(number).split("/"), topic_filter.split("/"))
                }
                assert structures.overlapping([topic_filter]) == {ANYTHING} | expected
                assert len(structures._masks) <= 2


def test_nodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NODES_MAX", 3)
    structures = learned()
    for name in ("a/b/c", "d/e/f", "g/h"):
        number, _ = structures.place(name.encode())
        assert overlap(structures.pattern(number).split("/"), name.split("/"))
    assert structures._nodes == 3


@pytest.mark.long
@given(filters, topics)
def test_overlap_is_true_when_a_topic_is_matched(topic_filter: str, topic: str) -> None:
    if matches(topic_filter, topic):
        assert overlap(topic.split("/"), topic_filter.split("/"))


@pytest.mark.parametrize(
    ("pattern", "topic_filter", "expected"),
    [
        *(("a/+", "a/b", True), ("a/+", "+/b", True), ("a/b", "a/c", False), ("a", "a/b", False)),
        *(("a", "a/#", True), ("a/b/#", "a/b", True), ("a/b/#", "a/+/c/d", True), ("a/b/#", "b/#", False)),
        ("#", "x", True),
    ],
)
def test_overlap(pattern: str, topic_filter: str, expected: bool) -> None:
    assert overlap(pattern.split("/"), topic_filter.split("/")) is expected


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.lists(topics, max_size=40), st.lists(filters, max_size=3), st.integers(1, 4), st.integers(1, 6))
def test_no_message_that_is_wanted_is_skipped(
    stream: list[str], wanted: list[str], fanout: int, maximum: int
) -> None:
    """Each topic is kept with the structure that it had when it came, as in a shard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FANOUT", fanout)
        structures = learned(maximum)
        kept: list[tuple[str, int]] = []
        for topic in stream:
            number, _ = structures.place(topic.encode())
            assert overlap(structures.pattern(number).split("/"), topic.split("/"))
            kept.append((topic, number))
            structures.overlapping(wanted)
        read = structures.overlapping(wanted)
        assert ANYTHING in read
        for topic, number in kept:
            if any(matches(topic_filter, topic) for topic_filter in wanted):
                assert number in read, f"{topic} lies in {structures.pattern(number)}"
        assert len(structures) <= maximum
