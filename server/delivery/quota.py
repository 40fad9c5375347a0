"""How many subscriptions there are, and the bytes of their filters: of one session and of all.

They stay in RAM for as long as their session, present or away: the trie has to know them. Bound: four keys of
`[limits]`; beyond each a new filter is refused (SUBACK 0x97) and counted. A filter that is there already may
always be subscribed to again. What was stored before a bound was lowered is restored and counts.
"""

from collections.abc import Iterable

from timeline.session import Session

from ..settings.config import Limits


class Quota:
    """The subscriptions of all sessions, counted."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.count = 0
        self.bytes = 0
        self.refused = 0

    def admits(self, session: Session, topic_filter: str) -> bool:
        """Whether the session may subscribe to one more filter; a refusal is counted."""
        limits, size = self._limits, len(topic_filter.encode())
        is_free = (
            len(session.subscriptions) < limits.subscriptions_per_session
            and session.filter_bytes + size <= limits.subscription_bytes_per_session
            and self.count < limits.subscriptions
            and self.bytes + size <= limits.subscription_bytes
        )
        self.refused += not is_free
        return is_free

    def add(self, topic_filter: str) -> None:
        self.count += 1
        self.bytes += len(topic_filter.encode())

    def discard(self, topic_filters: Iterable[str]) -> None:
        for topic_filter in topic_filters:
            self.count -= 1
            self.bytes -= len(topic_filter.encode())
