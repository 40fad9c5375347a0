"""How many subscriptions there are, and the bytes of their filters: of one session and of all.

They stay in RAM for as long as their session, present or away: the trie has to know them. Bound: four keys of
`[limits]`; beyond each a new filter is refused (SUBACK 0x97) and counted. A filter that is there already may
always be subscribed to again. What was stored before a bound was lowered is restored and counts. How many
there are is shared by owner (server/fair.py), and a key may have a bound of its own.
"""

from collections.abc import Iterable

from timeline.session import Session

from ..fair import Bounds, Share
from ..settings.config import Limits


class Quota:
    """The subscriptions of all sessions, counted."""

    def __init__(self, limits: Limits, bounds: Bounds) -> None:
        self._limits = limits
        self._share = Share("subscriptions", limits.subscriptions, "subscriptions", bounds)
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
        )
        self.refused += not is_free
        return is_free

    def add(self, topic_filter: str, owner: str) -> None:
        self._share.add(owner)
        self.bytes += len(topic_filter.encode())

    def move(self, session: Session, before: str, after: str) -> None:
        """The session is another owner's."""
        self._share.move(before, after, len(session.subscriptions))

    def discard(self, topic_filters: Iterable[str], owner: str) -> None:
        for topic_filter in topic_filters:
            self._share.add(owner, -1)
            self.bytes -= len(topic_filter.encode())
