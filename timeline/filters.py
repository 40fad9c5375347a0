# ruff: noqa: A002 - "filter" is MQTT's word for it
"""MQTT topics and topic filters: what may be one, which filter matches which topic, a trie of many filters.

A topic is a run of levels cut by `/`; a level may be empty, so `/a` has the levels `` and `a`. In a filter
the level `+` stands for exactly one level and a last level `#` for any number of levels, none included:
`a/#` matches `a`, `a/b` and `a/b/c`. A topic that begins with `$` is not matched by a filter that begins with
a wildcard, so that `#` shows a user the users' messages only. A few of those are the server's own
(`RESERVED`); any other is a topic like others.

`matches` compares one filter with one topic. With many filters that costs one comparison each; `Trie` walks
the levels of the topic instead, through at most two children per node (the level itself and `+`), and
collects at `#`:

    add a/+ , a/b , a/# , #          match("a/b"), a level at a time
    root - a - b     {a/b}           root: takes the pairs of root's `#`; `a` leads to node a
         |   |- +    {a/+}           node a: takes the pairs of a's `#`; `b` leads to nodes a/b and a/+
         |   `- #    {a/#}           the topic ends: takes the pairs of both, and of any `#` right below
         `- #        {#}             four pairs

The nodes looked at are bounded by the wildcards that were added, not by the number of filters. Topics are not
checked here on the hot path: `match` and `matches` expect what `check_topic` let through.

Source: MQTT 5.0, sections 4.7 (topic names and filters) and 4.8.2 (shared subscriptions).
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

TOPIC_BYTES_MAX = 65_535
SHARE_PREFIX = "$share/"
RESERVED = frozenset((b"$SYS", b"$share", b"$delayed", b"$dead", b"$queue", b"$control"))
"""First levels that are the server's own to publish to, or mean something else in a topic or filter."""
_NOT_IN_TOPICS = ((0, "NUL"), (ord("+"), "the wildcard '+'"), (ord("#"), "the wildcard '#'"))

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TopicError(ValueError):
    """A topic that MQTT does not allow; the message says what is wrong and at which byte."""


class FilterError(TopicError):
    """A topic filter or share that MQTT does not allow; the message says what is wrong and where."""


def check_topic(topic: bytes) -> None:
    """Raise TopicError unless `topic` may be published to: 1 to 65,535 bytes of UTF-8, no NUL or wildcard."""
    if not topic:
        raise TopicError("a topic must not be empty")
    if len(topic) > TOPIC_BYTES_MAX:
        raise TopicError(f"a topic has at most {TOPIC_BYTES_MAX} bytes, this one has {len(topic)}")
    for byte, name in _NOT_IN_TOPICS:
        if byte in topic:
            raise TopicError(f"a topic must not contain {name}, found at byte {topic.index(byte)}")
    try:
        topic.decode()
    except UnicodeDecodeError as error:
        raise TopicError(f"a topic must be UTF-8, byte {error.start} is not") from None


def is_reserved(topic: bytes) -> bool:
    """Whether a topic, its first level by itself included, is the server's own."""
    return topic.startswith(b"$") and topic.partition(b"/")[0] in RESERVED


def levels_of(topic: bytes) -> int:
    """How many levels a topic or filter has."""
    return topic.count(b"/") + 1


def check_filter(filter: str) -> None:
    """Raise FilterError unless `filter` may be subscribed to; `$share/group/` is taken off before."""
    _check_text(filter, "a filter")
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


def _level_fits(wanted: str, level: str) -> bool:
    return wanted in ("+", level)


def parse_share(filter: str) -> tuple[str | None, str]:
    """Split `$share/group/filter` into (group, filter), anything else into (None, filter); both are checked.

    Raises FilterError for a group that is empty or holds a wildcard and for a filter that is missing or bad.
    """
    if not filter.startswith(SHARE_PREFIX):
        check_filter(filter)
        return None, filter
    _check_text(filter, "a filter")
    group, slash, shared = filter.removeprefix(SHARE_PREFIX).partition("/")
    if not group:
        raise FilterError("the group of a shared subscription must not be empty: $share/group/filter")
    if "+" in group or "#" in group:
        raise FilterError(f"the group of a shared subscription must not hold a wildcard, it is {group!r}")
    if not slash or not shared:
        raise FilterError(f"the filter is missing after the group {group!r}: $share/group/filter")
    check_filter(shared)
    return group, shared


def _check_text(text: str, what: str) -> None:
    if not text:
        raise FilterError(f"{what} must not be empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FilterError(f"{what} must be UTF-8, character {error.start} is not") from None
    if size > TOPIC_BYTES_MAX:
        raise FilterError(f"{what} has at most {TOPIC_BYTES_MAX} bytes, this one has {size}")
    if "\0" in text:
        raise FilterError(f"{what} must not contain NUL, found at character {text.index(chr(0))}")


class _Node(Generic[K, V]):
    """One level of some filters: the levels below it, and the pairs of the filter that ends here."""

    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[K, V]] = {}
        self.values: dict[K, V] = {}


class Trie(Generic[K, V]):
    """Many (filter, key) -> value; `match` gives the pairs of every filter that matches a topic.

    A key may stand under several filters and is then given once for each that matches, as MQTT wants one copy
    per subscription. `add` and `discard` cost the levels of the filter.
    """

    __slots__ = ("_count", "_root")

    def __init__(self) -> None:
        self._root: _Node[K, V] = _Node()
        self._count = 0

    def __len__(self) -> int:
        """How many (filter, key) pairs are held."""
        return self._count

    def add(self, filter: str, key: K, value: V) -> None:
        """Put `value` under (filter, key), in place of what was there."""
        node = self._root
        for level in filter.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        self._count += key not in node.values
        node.values[key] = value

    def discard(self, filter: str, key: K) -> None:
        """Take (filter, key) out if it is there, and with it the nodes that nothing needs any more."""
        path = []
        node = self._root
        for level in filter.split("/"):
            child = node.children.get(level)
            if child is None:
                return
            path.append((node, level))
            node = child
        if key not in node.values:
            return
        del node.values[key]
        self._count -= 1
        while path and not node.values and not node.children:
            node, level = path.pop()
            del node.children[level]

    def match(self, topic: str) -> list[tuple[K, V]]:
        """Every (key, value) whose filter matches `topic`, in no promised order.

        On the path of every dispatched topic that the caller has not cached, hence one flat loop.
        """
        found: list[tuple[K, V]] = []
        nodes = [self._root]
        wild = not topic.startswith("$")
        for level in topic.split("/"):
            below: list[_Node[K, V]] = []
            for node in nodes:
                children = node.children
                if level in children:
                    below.append(children[level])
                if wild:
                    if "+" in children:
                        below.append(children["+"])
                    if "#" in children:
                        found.extend(children["#"].values.items())
            wild = True
            nodes = below
            if not nodes:
                return found
        for node in nodes:
            found.extend(node.values.items())
            if "#" in node.children:
                found.extend(node.children["#"].values.items())
        return found
