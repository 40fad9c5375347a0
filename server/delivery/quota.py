"""Number of subscriptions, bytes of their filters, and their forms: of one session and of all.

They stay in RAM as long as their session, present or away: the trie needs them. Bound: four keys of
`[limits]`; beyond each a new filter is refused (SUBACK 0x97) and counted. A known filter may always be
subscribed to again. What was stored before a bound was lowered is restored and counts. The number is shared
by owner (server/fair.py), and a key may have a bound of its own.

A form is a filter without its words: where its `+` are, how many levels it has, whether it ends with `#`. Of
one form only one filter matches a topic, so the filters of a topic are as many as the forms at most:

    a/+/c, x/+/z              one form, `/+/`: the topic a/b/c fits the first alone
    +/a/#, a/+/#, +/+/#       three forms: a/a/b fits all

One key had 2^16 forms of 16 levels, and the walk of the trie took 131 ms for each new topic. It goes through
a node for each level of each form, at 1 us. So the levels of an owner's forms are bounded together: 4,096 are
all forms of up to 7 levels, and more. A filter without `+` has no form: a topic fits one for each of its
levels. The forms of shared subscriptions count with their group.
"""

import re
from collections import Counter
from collections.abc import Iterable

from timeline.filters import SHARE_PREFIX
from timeline.session import Session

from ..fair import Bounds, Share
from ..settings.config import Limits

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


class Quota:
    """The subscriptions of all sessions, counted."""

    def __init__(self, limits: Limits, bounds: Bounds) -> None:
        self._limits = limits
        self._share = Share("subscriptions", limits.subscriptions, "subscriptions", bounds, "limits.memory")
        self._forms = Forms()
        self.bytes = 0
        self.refused = 0

    @property
    def count(self) -> int:
        return self._share.taken

    def admits(self, session: Session, topic_filter: str, owner: str) -> bool:
        """Whether the owner's session may subscribe to one more filter; a refusal is counted."""
        limits, size = self._limits, len(topic_filter.encode())
        is_free = (
            len(session.subscriptions) < limits.subscriptions_per_session
            and session.filter_bytes + size <= limits.subscription_bytes_per_session
            and self.bytes + size <= limits.subscription_bytes
            and not self._share.refusal(owner)
            and (topic_filter.startswith(SHARE_PREFIX) or self._forms.has_room(owner, topic_filter))
        )
        self.refused += not is_free
        return is_free

    def add(self, topic_filter: str, owner: str) -> None:
        self._share.add(owner)
        self.bytes += len(topic_filter.encode())
        if not topic_filter.startswith(SHARE_PREFIX):
            self._forms.add(owner, topic_filter)

    def move(self, session: Session, before: str, after: str) -> None:
        """The session is another owner's."""
        self._share.move(before, after, len(session.subscriptions))
        for topic_filter in session.subscriptions:
            if not topic_filter.startswith(SHARE_PREFIX):
                self._forms.move(before, after, topic_filter)

    def discard(self, topic_filters: Iterable[str], owner: str) -> None:
        for topic_filter in topic_filters:
            self._share.add(owner, -1)
            self.bytes -= len(topic_filter.encode())
            if not topic_filter.startswith(SHARE_PREFIX):
                self._forms.discard(owner, topic_filter)


def _form(topic_filter: str) -> str:
    """Empty: it has no `+`."""
    return _WORDS.sub("", topic_filter) if "+" in topic_filter else ""


def _levels(form: str) -> int:
    return form.count("/") + 1
