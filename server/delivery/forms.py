"""The forms of filters, by owner: how many filters can match one topic.

A form is a filter without its words: where its `+` are, how many levels it has, whether it ends with `#`. Of
one form only one filter matches a topic, so the filters of a topic are as many as the forms at most:

    a/+/c, x/+/z              one form, `/+/`: the topic a/b/c fits the first alone
    +/a/#, a/+/#, +/+/#       three forms: a/a/b fits all

One key had 2^16 forms of 16 levels, and the walk of the trie took 131 ms for each new topic. It goes through
a node for each level of each form, at 1 us. So the levels of an owner's forms are bounded together: 4,096 are
all forms of up to 7 levels, and more. A filter without `+` has no form: a topic fits one for each of its
levels.
"""

import re
from collections import Counter

LEVELS_MAX = 4_096
"""Levels of the forms of one owner: 4 ms of a walk."""
_WORDS = re.compile(r"[^/+#]+")


class Forms:
    """Counts the forms of the filters of each owner."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        """By owner, the filters of each form. None is empty."""
        self._levels: Counter[str] = Counter()
        """By owner, of its forms; none is 0."""

    def has_room(self, owner: str, topic_filter: str) -> bool:
        """Whether the owner may add a filter of this form."""
        form = _form(topic_filter)
        is_known = not form or form in self._counts.get(owner, ())
        return is_known or self._levels[owner] + _levels(form) <= LEVELS_MAX

    def add(self, owner: str, topic_filter: str) -> None:
        """Count one more filter of the owner."""
        form = _form(topic_filter)
        if form:
            counts = self._counts.setdefault(owner, Counter())
            counts[form] += 1
            if counts[form] == 1:
                self._levels[owner] += _levels(form)

    def discard(self, owner: str, topic_filter: str) -> None:
        """Count one filter of the owner less."""
        form = _form(topic_filter)
        counts = self._counts.get(owner)
        if counts is None or not counts[form]:
            return
        counts[form] -= 1
        if not counts[form]:
            del counts[form]
            self._levels[owner] -= _levels(form)
        if not counts:
            del self._counts[owner], self._levels[owner]

    def move(self, before: str, after: str, topic_filter: str) -> None:
        """Move the filter to another owner."""
        self.discard(before, topic_filter)
        self.add(after, topic_filter)


def _form(topic_filter: str) -> str:
    """Empty: it has no `+`."""
    return _WORDS.sub("", topic_filter) if "+" in topic_filter else ""


def _levels(form: str) -> int:
    return form.count("/") + 1
