"""Topic structures, learned: `devices/17/temp` and `devices/18/temp` are both `devices/+/temp`.

A busy slice keeps each structure in shards of its own, so that a session that reads `devices/+/temp` does
not scan everything else. Which levels are names and which are many-valued nobody has to say: topics are
entered into a tree, level by level, and a node with more than `FANOUT` distinct children becomes `+`, its
children merged into one.

    orders/1/paid, orders/2/paid, ... orders/25/paid    ->  orders has 25 children: orders/+/paid
    lights/kitchen, lights/hall                         ->  lights/kitchen, lights/hall

What is learned only decides where a *new* message goes. A shard's structure is fixed when it opens and
every message in it matches it, so a reader may skip each shard whose structure cannot overlap its filter.
Structure 0 is "anything" and is always read: it takes messages while little has been learned
(`LEARN_TOPICS`), beyond `max_structures` structures, and in slices that are not busy.

Which structures a filter overlaps is found a level at a time: for each level and word, a number whose bits
are the structures that have it there. A filter of 128 levels is at its end after the nine that there are.

Bounded: `max_structures` patterns of PATTERN_BYTES in all, beyond which a topic goes to structure 0;
NODES_MAX nodes, where a long level counts as several, beyond which a level is `+`; CACHE_BYTES of remembered
topics and as many of remembered filters, each dropped whole, as are MASKS_MAX words as bits.
"""

from collections.abc import Iterable
from itertools import zip_longest

ANYTHING = 0
FANOUT = 24
LEVELS_MAX = 8
LEARN_TOPICS = 1_000
NODES_MAX = 50_000
NODE_BYTES = 64
"""Bytes of a level that count as one node; twice as many count as two."""
PATTERN_BYTES = 4 << 20
MASKS_MAX = 1_000
CACHE_BYTES = 8 << 20
CACHE_OVERHEAD = 150
"""Overhead of a cached topic, bytes."""


class _Node:
    """A level of the tree: named children, or `any` for all of them."""

    __slots__ = ("any", "children")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.any: _Node | None = None


class Structures:
    """Patterns by number, and the tree that finds a topic's pattern."""

    def __init__(self, *, max_structures: int) -> None:
        self.max_structures = max_structures
        self.restore({})

    def __len__(self) -> int:
        return len(self._patterns)

    def pattern(self, number: int) -> str:
        """The text of a structure; `#` for 0."""
        return self._patterns.get(number, "#")

    def restore(self, patterns: dict[int, str]) -> None:
        """Restart from stored patterns."""
        self._patterns: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._root = _Node()
        self._nodes = 0
        self._seen = LEARN_TOPICS if patterns else 0
        self._pattern_bytes = 0
        self._named: dict[tuple[int, str], list[int]] = {}
        """Level and word (also `+` and `#`) -> the structures that have it there."""
        self._masks: dict[tuple[int, str], int] = {}
        """The same as bits, for some."""
        self._deep: dict[int, int] = {}
        """Level -> structures with such a level, not counting a `#`."""
        self._ending: dict[int, int] = {}
        """Number of levels -> structures with exactly that many and no `#`."""
        self._by_topic: dict[bytes, int] = {}
        self._by_filter: dict[str, int] = {}
        self._topic_bytes = self._filter_bytes = 0
        for number, pattern in patterns.items():
            self._add(number, pattern)
            self._learn(pattern.split("/"))

    def place(self, topic: bytes) -> tuple[int, str | None]:
        """(structure of a topic, its pattern if the structure is new and has to be stored)."""
        known = self._by_topic.get(topic)
        if known is not None:
            return known, None
        pattern = "/".join(self._learn(topic.decode().split("/")))
        self._seen += 1
        if self._seen < LEARN_TOPICS:
            return ANYTHING, None
        number = self._numbers.get(pattern)
        is_new = (
            number is None
            and len(self._patterns) < self.max_structures
            and self._pattern_bytes + len(pattern) <= PATTERN_BYTES
        )
        if is_new:
            number = 1 + max(self._patterns, default=0)
            self._add(number, pattern)
        self._remember(topic, number or ANYTHING)
        return number or ANYTHING, pattern if is_new else None

    def overlapping(self, filters: Iterable[str]) -> set[int]:
        """The structures that can hold a topic that one of the filters matches, 0 among them."""
        bits = 1 << ANYTHING
        for topic_filter in filters:
            known = self._by_filter.get(topic_filter)
            bits |= self._overlapping(topic_filter) if known is None else known
        digits, found = f"{bits:b}"[::-1], {ANYTHING}
        at = digits.find("1", 1)
        while at > 0:
            found.add(at)
            at = digits.find("1", at + 1)
        return found

    def _overlapping(self, topic_filter: str) -> int:
        bits = self._find(topic_filter.split("/"))
        size = len(topic_filter) + bits.bit_length() // 8 + CACHE_OVERHEAD
        if self._filter_bytes + size > CACHE_BYTES:
            self._by_filter, self._filter_bytes = {}, 0
        self._by_filter[topic_filter] = bits
        self._filter_bytes += size
        return bits

    def _find(self, levels: list[str]) -> int:
        """The structures that `overlap` a filter, as bits: certain ones, and those still possible."""
        found, left = 0, -1
        for place, level in enumerate(levels):
            found |= left & self._mask(place, "#")
            if level == "#":
                left &= self._deep.get(place, 0) | self._ending.get(place, 0)
                return found | left
            if level == "+":
                left &= self._deep.get(place, 0)
            else:
                left &= self._mask(place, level) | self._mask(place, "+")
            if not left:
                return found
        count = len(levels)
        return found | left & (self._mask(count, "#") | self._ending.get(count, 0))

    def _mask(self, place: int, word: str) -> int:
        """The structures that have a word at a level, as bits."""
        key = place, word
        if key not in self._named:
            return 0
        bits = self._masks.get(key)
        if bits is None:
            digits = bytearray(1 + max(self._named[key]) // 8)
            for number in self._named[key]:
                digits[number // 8] |= 1 << number % 8
            bits = int.from_bytes(digits, "little")
            if len(self._masks) >= MASKS_MAX:
                self._masks = {}
            self._masks[key] = bits
        return bits

    def _add(self, number: int, pattern: str) -> None:
        """A structure is known from now on."""
        self._patterns[number] = pattern
        self._numbers[pattern] = number
        self._pattern_bytes += len(pattern)
        levels, bit = pattern.split("/"), 1 << number
        for place, level in enumerate(levels):
            self._named.setdefault((place, level), []).append(number)
            self._masks.pop((place, level), None)
            if level != "#":
                self._deep[place] = self._deep.get(place, 0) | bit
        if levels[-1] != "#":
            self._ending[len(levels)] = self._ending.get(len(levels), 0) | bit
        self._by_filter, self._filter_bytes = {}, 0

    def _remember(self, topic: bytes, number: int) -> None:
        size = len(topic) + CACHE_OVERHEAD
        if self._topic_bytes + size > CACHE_BYTES:
            self._by_topic, self._topic_bytes = {}, 0
        self._by_topic[topic] = number
        self._topic_bytes += size

    def _learn(self, levels: list[str]) -> list[str]:
        """Enter a topic (or a pattern) into the tree; its pattern, level by level."""
        node, pattern = self._root, []
        for level in levels[:LEVELS_MAX]:
            if level == "#":
                break
            pattern.append(self._enter(node, level))
            node = node.any if node.any is not None else node.children[level]
        if len(levels) > LEVELS_MAX or levels[-1] == "#":
            pattern.append("#")
        return pattern

    def _enter(self, node: _Node, level: str) -> str:
        """Make sure that `level` has a node below this one: by name, or `+`."""
        if node.any is not None:
            return "+"
        if level in node.children:
            return level
        cost = 1 + len(level) // NODE_BYTES
        if level != "+" and len(node.children) < FANOUT and self._nodes + cost <= NODES_MAX:
            node.children[level] = _Node()
            self._nodes += cost
            return level
        node.any = self._merged(list(node.children.values()))
        node.children = {}
        self._by_topic, self._topic_bytes = {}, 0
        return "+"

    def _merged(self, nodes: list[_Node]) -> _Node:
        """One node that merges all of these."""
        merged = _Node()
        below: dict[str, list[_Node]] = {}
        for node in nodes:
            for name, child in node.children.items():
                below.setdefault(name, []).append(child)
        wild = [node.any for node in nodes if node.any is not None]
        if wild or len(below) > FANOUT:
            every = wild + [child for children in below.values() for child in children]
            merged.any = self._merged(every)
        else:
            merged.children = {name: self._merged(children) for name, children in below.items()}
        return merged


def overlap(pattern: list[str], levels: list[str]) -> bool:
    """Whether some topic is matched by both: `+` is one level, a final `#` any number of them.

    What `overlapping` says of all structures, of one.
    """
    for mine, theirs in zip_longest(pattern, levels):
        if "#" in (mine, theirs):
            return True
        if None in (mine, theirs):
            return False
        if mine != theirs and "+" not in (mine, theirs):
            return False
    return True
