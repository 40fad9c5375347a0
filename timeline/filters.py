# ruff: noqa: A002 - "filter" is MQTT's word for it
"""MQTT topics and topic filters: validity, matching, and a trie of many filters.

A topic is a run of levels with `/` in between; a level may be empty, so `/a` has the levels `` and `a`. In a
filter the level `+` stands for exactly one level and a last level `#` for any number, none included: `a/#`
matches `a`, `a/b` and `a/b/c`. A topic that begins with `$` is not matched by a filter that begins with a
wildcard, so that `#` shows a user the users' messages only. A few of these topics are the server's own
(`RESERVED`); all others are ordinary.

`matches` compares one filter with one topic. With many filters that costs one comparison each; `Trie` walks
the levels of the topic instead, through at most two children per node (the level itself and `+`). Levels
between which no filter ends or branches are one node, so there are at most two nodes per filter, however deep
it is, and a node's levels are compared in one call. A last `#` is not a level: a node holds the pairs of the
filters that end there and of those that continue with `#`.

    add a/+ , a/b , a/# , # ,        match("a/b")
    c/d/+/e/#                        root: takes the pairs of `#`; `a` leads to node a
    root {#} - a {a/#} - b {a/b}     node a: takes the pairs of a/#; `b` and `+` lead to two nodes
         |             `- + {a/+}    the topic ends: takes the pairs of a/b and a/+
         `- c/d/+/e {c/d/+/e/#}      four pairs

The number of visited nodes is bounded by the filters whose beginning matches the topic, at about 1 us each.
The worst 1,000 filters found (of 126 levels that match except the last) take 1 ms; with a node per level they
took 34. Topics are not checked here on the hot path: `match` and `matches` expect what `check_topic` let
through.

Some characters are UTF-8 and still no part of a new topic, filter or property: control characters and code
points that are no characters. MQTT lets a receiver close the connection at one, and clients such as
mosquitto's do, at each new try: they would never get what is behind it.

Source: MQTT 5.0, sections 1.5.4 (strings), 4.7 (topic names and filters) and 4.8.2 (shared subscriptions).
"""

import re
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Generic, TypeVar

TOPIC_BYTES_MAX = 65_535
SHARE_PREFIX = "$share/"
RESERVED = frozenset((b"$SYS", b"$share", b"$delayed", b"$dead", b"$queue", b"$control", b"$alerts"))
"""First levels that are the server's own to publish to, or mean something else in a topic or filter."""
_NOT_IN_TOPICS = ((0, "NUL"), (ord("+"), "the wildcard '+'"), (ord("#"), "the wildcard '#'"))

_REFUSED = re.compile(
    "[\0-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)

Pick = Callable[[Sequence[str]], object]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TopicError(ValueError):
    """A topic that MQTT does not allow; the message says what is wrong and at which byte."""


class FilterError(TopicError):
    """A topic filter or share that MQTT does not allow; the message says what is wrong and where."""


def refused_character(text: str) -> str:
    """The first character at which MQTT clients may close the connection, as `the control character U+0007`;
    empty: none."""
    found = None if text.isprintable() else _REFUSED.search(text)
    if found is None:
        return ""
    code = ord(found[0])
    return f"the {'control character' if code < 0xA0 else 'non-character'} U+{code:04X}"


def sendable(text: str) -> str:
    """The text with a blank for each such character: no more bytes than before."""
    return text if text.isprintable() else _REFUSED.sub(" ", text)


def check_characters(text: str, what: str = "a filter") -> None:
    """Raise FilterError for a new filter or group with such a character. Older ones stay."""
    refused = refused_character(text)
    if refused:
        raise FilterError(f"{what} must not contain {refused}")


def check_topic(topic: bytes) -> None:
    """Raise TopicError unless `topic` may be published to: 1 to 65,535 bytes of UTF-8, no wildcard, and no
    character that clients may close the connection at."""
    if not topic:
        raise TopicError("a topic must not be empty")
    if len(topic) > TOPIC_BYTES_MAX:
        raise TopicError(f"a topic has at most {TOPIC_BYTES_MAX} bytes, this one has {len(topic)}")
    for byte, name in _NOT_IN_TOPICS:
        if byte in topic:
            raise TopicError(f"a topic must not contain {name}, found at byte {topic.index(byte)}")
    try:
        refused = refused_character(topic.decode())
    except UnicodeDecodeError as error:
        raise TopicError(f"a topic must be UTF-8, byte {error.start} is not") from None
    if refused:
        raise TopicError(f"a topic must not contain {refused}")


def is_reserved(topic: bytes) -> bool:
    """Whether a topic, its first level by itself included, is the server's own."""
    return topic.startswith(b"$") and topic.partition(b"/")[0] in RESERVED


def levels_of(topic: bytes) -> int:
    """How many levels a topic or filter has."""
    return topic.count(b"/") + 1


def check_filter(filter: str) -> None:
    """Raise FilterError unless `filter` may be subscribed to; `$share/group/` is taken off before."""
    _check_text(filter)
    levels = filter.split("/")
    for index, level in enumerate(levels):
        if level == "#":
            if index != len(levels) - 1:
                raise FilterError(f"'#' must be the last level, found as level {index + 1} of {len(levels)}")
        elif level != "+" and ("+" in level or "#" in level):
            raise FilterError(f"a wildcard must be a whole level, level {index + 1} is {level!r}")


def matches(filter: str, topic: str) -> bool:
    """Whether `filter` matches `topic`, both well-formed."""
    wanted = filter.split("/")
    levels = topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted.pop()
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(map(_level_fits, wanted, levels))


def matcher(filter: str) -> Callable[[str], bool]:
    """`matches` of one filter for many topics: it is parsed once, and its levels are compared in one call."""
    wanted = filter.split("/")
    is_open = wanted[-1] == "#"
    if is_open:
        wanted.pop()
    count, is_wild = len(wanted), filter[0] in "+#"
    pick, words = _literals(wanted, 0)

    def fits(topic: str) -> bool:
        levels = topic.split("/")
        size = len(levels)
        if size != count and not (is_open and size > count):
            return False
        if pick is not None and pick(levels) != words:
            return False
        return not (is_wild and topic.startswith("$"))

    return fits


def covers(wide: str, narrow: str) -> bool:
    """Whether everything that the filter `narrow` can match is matched by `wide`, level by level.

    Without the rule of `$`: by this `#` covers `$SYS/#` too, which it does not match.
    """
    theirs = narrow.split("/")
    own = wide.split("/")
    for index, level in enumerate(own):
        if level == "#":
            return True
        if index >= len(theirs) or theirs[index] == "#":
            return False
        if level != "+" and level != theirs[index]:
            return False
    return len(theirs) == len(own)


def _literals(wanted: Sequence[str], start: int) -> "tuple[Pick | None, object]":
    """A getter of the topic's levels that some levels of a filter name, and the values that they must have.

    `wanted` stands at level `start` of the topic, which must be as deep. None: they are all `+`.
    """
    places = [place for place, level in enumerate(wanted, start) if level != "+"]
    if not places:
        return None, None
    words = [level for level in wanted if level != "+"]
    return itemgetter(*places), words[0] if len(words) == 1 else tuple(words)


def _level_fits(wanted: str, level: str) -> bool:
    return wanted in ("+", level)


def parse_share(filter: str) -> tuple[str | None, str]:
    """Split `$share/group/filter` into (group, filter), anything else into (None, filter); both are checked.

    Raises FilterError for a group that is empty or holds a wildcard and for a filter that is missing or bad.
    """
    if not filter.startswith(SHARE_PREFIX):
        check_filter(filter)
        return None, filter
    _check_text(filter)
    group, slash, shared = filter.removeprefix(SHARE_PREFIX).partition("/")
    if not group:
        raise FilterError("the group of a shared subscription must not be empty: $share/group/filter")
    if "+" in group or "#" in group:
        raise FilterError(f"the group of a shared subscription must not hold a wildcard, it is {group!r}")
    if not slash or not shared:
        raise FilterError(f"the filter is missing after the group {group!r}: $share/group/filter")
    check_filter(shared)
    return group, shared


def share_text(group: str, filter: str) -> str:
    """`$share/group/filter`, of which `parse_share` gives these two. Raises FilterError."""
    if "/" in group:
        raise FilterError(f"the group of a shared subscription must not hold '/', it is {group!r}")
    text = f"{SHARE_PREFIX}{group}/{filter}"
    parse_share(text)
    check_characters(group, "the group of a shared subscription")
    check_characters(filter)
    return text


def _check_text(text: str) -> None:
    if not text:
        raise FilterError("a filter must not be empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FilterError(f"a filter must be UTF-8, character {error.start} is not") from None
    if size > TOPIC_BYTES_MAX:
        raise FilterError(f"a filter has at most {TOPIC_BYTES_MAX} bytes, this one has {size}")
    if "\0" in text:
        raise FilterError(f"a filter must not contain NUL, found at character {text.index(chr(0))}")


class _Node(Generic[K, V]):
    """Levels [start, end) of some filters, the levels below, and the pairs of those that end here."""

    __slots__ = ("children", "end", "levels", "open", "pick", "values", "words")

    def __init__(self, levels: Sequence[str], end: int) -> None:
        self.children: dict[str, _Node[K, V]] = {}
        """By their first level."""
        self.values: dict[K, V] = {}
        """The pairs of the filter that ends here ..."""
        self.open: dict[K, V] = {}
        """... and of the one that continues with `#`."""
        self.stand(levels, end)

    def stand(self, levels: Sequence[str], end: int) -> None:
        """`levels`, of which the last one is at `end` - 1; the first one is looked up by the parent."""
        self.levels = tuple(levels)
        self.end = end
        self.pick, self.words = _literals(levels[1:], end - len(levels) + 1)

    @property
    def is_needless(self) -> bool:
        return not (self.values or self.open or self.children)


class Trie(Generic[K, V]):
    """Many (filter, key) -> value; `match` gives the pairs of every filter that matches a topic.

    A key may stand under several filters and is then given once for each that matches, as MQTT wants one copy
    per subscription. `add` and `discard` cost the levels of the filter.
    """

    __slots__ = ("_count", "_root")

    def __init__(self) -> None:
        self._root: _Node[K, V] = _Node((), 0)
        self._count = 0

    def __len__(self) -> int:
        """How many (filter, key) pairs are held."""
        return self._count

    def add(self, filter: str, key: K, value: V) -> None:
        """Store `value` under (filter, key), replacing an earlier one."""
        levels, is_open = _path(filter)
        node = self._root
        while node.end < len(levels):
            below = node.children.get(levels[node.end])
            if below is None:
                below = node.children[levels[node.end]] = _Node(levels[node.end :], len(levels))
            elif len(below.levels) > 1:
                shared = _shared(below.levels, levels, node.end)
                if shared < len(below.levels):
                    below = _split(node, below, shared)
            node = below
        values = node.open if is_open else node.values
        self._count += key not in values
        values[key] = value

    def discard(self, filter: str, key: K) -> None:
        """Remove (filter, key) if present, and nodes that become useless."""
        levels, is_open = _path(filter)
        path = [self._root]
        while path[-1].end < len(levels):
            at = path[-1].end
            node = path[-1].children.get(levels[at])
            if node is None or _shared(node.levels, levels, at) < len(node.levels):
                return
            path.append(node)
        values = path[-1].open if is_open else path[-1].values
        if key not in values:
            return
        del values[key]
        self._count -= 1
        if len(path) > 1 and path[-1].is_needless:
            del path[-2].children[path.pop().levels[0]]
        if len(path) > 1:
            _merge(path[-2], path[-1])

    def match(self, topic: str) -> list[tuple[K, V]]:
        """Every (key, value) whose filter matches `topic`, in no promised order."""
        return [pair for pairs in self.holders(topic) for pair in pairs.items()]

    def holders(self, topic: str) -> list[dict[K, V]]:
        """The pairs of each filter that matches `topic`: the trie's own dictionaries, to look at.

        On the path of every dispatched topic that the caller has not cached, hence one flat loop.
        """
        levels = topic.split("/")
        count = len(levels)
        found: list[dict[K, V]] = []
        plus = "+"
        if topic.startswith("$"):
            plus = "\0"  # no filter has that: the first level is matched by itself only
        elif self._root.open:
            found.append(self._root.open)
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            children = node.children
            for below in (children.get(levels[node.end]), children.get(plus)):
                if below is None or below.end > count:
                    continue
                pick = below.pick
                if pick is not None and pick(levels) != below.words:
                    continue
                if below.open:
                    found.append(below.open)
                if below.end < count:
                    if below.children:
                        waiting.append(below)
                elif below.values:
                    found.append(below.values)
            plus = "+"
        return found


def _path(filter: str) -> tuple[list[str], bool]:
    """The levels of a filter without a last `#`, and whether it has one."""
    levels = filter.split("/")
    is_open = levels[-1] == "#"
    if is_open:
        levels.pop()
    return levels, is_open


def _shared(own: Sequence[str], levels: Sequence[str], start: int) -> int:
    """How many of a node's levels equal a filter's from its level `start` on; the first is known to."""
    most = min(len(own), len(levels) - start)
    for index in range(1, most):
        if own[index] != levels[start + index]:
            return index
    return most


def _split(parent: "_Node[K, V]", node: "_Node[K, V]", shared: int) -> "_Node[K, V]":
    """Cut a node behind its first `shared` levels; the new one that holds these."""
    upper: _Node[K, V] = _Node(node.levels[:shared], parent.end + shared)
    parent.children[upper.levels[0]] = upper
    node.stand(node.levels[shared:], node.end)
    upper.children[node.levels[0]] = node
    return upper


def _merge(parent: "_Node[K, V]", node: "_Node[K, V]") -> None:
    """Undo a split: a node where nothing ends and nothing branches off goes into the one below it."""
    if node.values or node.open or len(node.children) != 1:
        return
    (below,) = node.children.values()
    below.stand(node.levels + below.levels, below.end)
    parent.children[below.levels[0]] = below
