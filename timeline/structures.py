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

Bounded: `max_structures` patterns, `NODES_MAX` nodes, `CACHE_TOPICS` remembered topics (dropped whole).
"""

from collections.abc import Iterable

ANYTHING = 0
FANOUT = 24
LEVELS_MAX = 8
LEARN_TOPICS = 1_000
NODES_MAX = 50_000
CACHE_TOPICS = 50_000


class _Node:
    """One level of the tree: named children, or `any` for all of them."""

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
        """Start again from stored patterns: what they say is known."""
        self._patterns: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._root = _Node()
        self._nodes = 0
        self._seen = LEARN_TOPICS if patterns else 0
        self._by_topic: dict[bytes, int] = {}
        self._by_filter: dict[str, frozenset[int]] = {}
        for number, pattern in patterns.items():
            self._patterns[number] = pattern
            self._numbers[pattern] = number
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
        is_new = number is None and len(self._patterns) < self.max_structures
        if is_new:
            number = 1 + max(self._patterns, default=0)
            self._patterns[number] = pattern
            self._numbers[pattern] = number
            self._by_filter.clear()
        self._remember(topic, number or ANYTHING)
        return number or ANYTHING, pattern if is_new else None

    def overlapping(self, filters: Iterable[str]) -> set[int]:
        """The structures that can hold a topic that one of the filters matches, 0 among them."""
        found = {ANYTHING}
        for topic_filter in filters:
            numbers = self._by_filter.get(topic_filter)
            if numbers is None:
                numbers = self._overlapping(topic_filter)
            found |= numbers
        return found

    def _overlapping(self, topic_filter: str) -> frozenset[int]:
        levels = topic_filter.split("/")
        numbers = frozenset(n for n, pattern in self._patterns.items() if overlap(pattern.split("/"), levels))
        if len(self._by_filter) >= CACHE_TOPICS:
            self._by_filter.clear()
        self._by_filter[topic_filter] = numbers
        return numbers

    def _remember(self, topic: bytes, number: int) -> None:
        if len(self._by_topic) >= CACHE_TOPICS:
            self._by_topic.clear()
        self._by_topic[topic] = number

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
        if level != "+" and len(node.children) < FANOUT and self._nodes < NODES_MAX:
            node.children[level] = _Node()
            self._nodes += 1
            return level
        node.any = self._merged(list(node.children.values()))
        node.children = {}
        self._by_topic.clear()
        return "+"

    def _merged(self, nodes: list[_Node]) -> _Node:
        """One node that stands for all of these."""
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
    """Whether some topic is matched by both: `+` is one level, a final `#` any number of them."""
    for index in range(max(len(pattern), len(levels))):
        mine = pattern[index] if index < len(pattern) else None
        theirs = levels[index] if index < len(levels) else None
        if mine == "#" or theirs == "#":
            return True
        if mine is None or theirs is None:
            return False
        if mine != theirs and "+" not in (mine, theirs):
            return False
    return True
