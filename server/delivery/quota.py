"""Number of subscriptions, bytes of their filters, and their forms: of one session and of all.

They stay in RAM as long as their session, present or away: the trie needs them. Bound: four keys of
`[limits]`; beyond each a new filter is refused (SUBACK 0x97) and counted. A known filter may always be
subscribed to again. What was stored before a bound was lowered is restored and counts. The number is shared
by owner (server/fair.py), and a key may have a bound of its own. Forms are bounded by owner (forms.py); those
of shared subscriptions count with their group.
"""

from collections.abc import Iterable

from timeline.filters import SHARE_PREFIX
from timeline.session import Session

from ..fair import Bounds, Share
from ..settings.config import Limits
from .forms import Forms


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
