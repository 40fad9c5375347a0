"""What is always true of structures of timeline/, in words of their own insides."""

from typing import TypeVar

from timeline.filters import Trie
from timeline.key_order import KNOWN_MAX, KeyOrder, _Key
from timeline.key_rows import NOWHERE, Address
from timeline.position import END
from timeline.wheel import SLOTS, Wheel

K = TypeVar("K")
V = TypeVar("V")
Item = TypeVar("Item")


def matched(trie: Trie[K, V], topic: str) -> list[tuple[K, V]]:
    """Every (key, value) whose filter matches the topic, in no promised order."""
    return [pair for pairs in trie.holders(topic) for pair in pairs.items()]


def give(order: KeyOrder, key: bytes) -> Address:
    """The first follower is in flight."""
    address = order.drop(key)
    order.launch(key)
    return address


def check_wheel(wheel: Wheel[Item]) -> None:
    """Assert what is true of its slots, their bits and its items."""
    places: list[int] = []
    for level, bits in ((wheel._fine, wheel._fine_bits), (wheel._coarse, wheel._coarse_bits)):
        filled = [index for index, slot in enumerate(level) if slot]
        assert bits == sum(1 << index for index in filled)
        for index in filled:
            places += level[index]
    assert wheel._items.keys() <= set(places)
    assert wheel._stale == len(places) - len(wheel._items) <= max(wheel.max_entries, SLOTS)
    assert wheel.bytes == sum(size for _, size in wheel._items.values())
    assert all(place <= wheel.loaded for place in wheel._items)


def check_keys(order: KeyOrder) -> None:
    """Assert what is true of each key."""
    waits = {found.wait: key for key, found in order._keys.items() if found.wait != NOWHERE}
    assert waits == order._waits, "each retry is known by its place"
    is_ordered = order.rule.is_ordered
    letters = {found.letter: key for key, found in order._keys.items() if found.letter != NOWHERE}
    assert letters == order.letters, "each dead letter is known by its place"
    for key, found in order._keys.items():
        assert found.next != NOWHERE or found.is_resting or found.is_held, "a key row says something"
        assert (found.root != NOWHERE) == found.is_resting, "what rests has a root"
        assert found.wait == NOWHERE or found.letter == NOWHERE, "a key has one head"
        assert not (is_ordered and found.is_resting and key in order.out), "a key has one head"
        assert not found.known or found.known[0][0] == found.next, "the first one stands at next"
        assert found.known == sorted(found.known), "followers are in order"
        assert len(found.known) <= KNOWN_MAX, "RAM is bounded"
        assert found.is_held == (key in order.held), "who is held is counted"
    for key in [*order._keys, *order._lines]:
        found = order._keys.get(key, _Key())
        is_free = (found.next != NOWHERE or key in order._lines) and not found.is_resting
        is_free = is_free and not found.is_held
        assert (is_free and order._may_go(key)) == (key in order.free), "who may go on is free"
    assert order.free.keys() <= order._keys.keys() | order._lines.keys(), "only who is behind is free"
    assert all([line.places for line in order._lines.values()]), "a line has somebody"  # noqa: C419
    assert order.held <= order._keys.keys(), "only who has a row is held"
    firsts = [found.next for found in order._keys.values() if found.next != NOWHERE]
    first = min(firsts, default=END)
    assert order.first_needed == first or order._past, "nothing before is to be given"
    assert order.first_needed <= first, "what is needed is kept"
    assert order._past.keys() <= order._keys.keys(), "only a key with a row is looked at"
    assert order._fresh_count == sum(map(len, order._fresh.values())), "what is not written is counted"
