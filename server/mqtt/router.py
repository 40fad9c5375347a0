"""Topic -> subscribers: the trie, and a cache of its answers by topic.

Most deployments publish to far fewer topics than they publish messages, so the trie is asked once a topic;
the cache is dropped whole when any subscription changes, and when it has reached its bound.
"""

from collections.abc import Sequence

from timeline.filters import SHARE_PREFIX, Trie, matches
from timeline.session import Subscription

from ..subscriber import Subscriber

CACHE_TOPICS = 50_000

Targets = dict[Subscriber, tuple[Subscription, ...]]


class Router:
    """Who gets a topic. `route` is O(1) for a topic seen since the last change."""

    def __init__(self, denied: Sequence[str] = ()) -> None:
        """`denied`: filters whose topics nobody gets, whatever is subscribed to."""
        self._denied = denied
        self._trie: Trie[Subscriber, Subscription] = Trie()
        self._cache: dict[bytes, Targets] = {}

    def __len__(self) -> int:
        return len(self._trie)

    def add(self, subscriber: Subscriber, subscription: Subscription) -> None:
        self._trie.add(subscription.filter, subscriber, subscription)
        self._cache.clear()

    def discard(self, subscriber: Subscriber, topic_filter: str) -> None:
        self._trie.discard(topic_filter, subscriber)
        self._cache.clear()

    def discard_all(self, subscriber: Subscriber) -> None:
        for topic_filter in subscriber.session.subscriptions:
            if not topic_filter.startswith(SHARE_PREFIX):
                self.discard(subscriber, topic_filter)

    def route(self, topic: bytes) -> Targets:
        """Every subscriber with a matching subscription, away or not."""
        targets = self._cache.get(topic)
        if targets is None:
            targets = self._match(topic)
        return targets

    def is_denied(self, topic: str) -> bool:
        """Whether nobody may get this topic."""
        return any(matches(denied, topic) for denied in self._denied)

    def _match(self, topic: bytes) -> Targets:
        targets: Targets = {}
        text = topic.decode()
        found = () if self.is_denied(text) else self._trie.match(text)
        for subscriber, subscription in found:
            targets[subscriber] = (*targets.get(subscriber, ()), subscription)
        if len(self._cache) >= CACHE_TOPICS:
            self._cache.clear()
        self._cache[topic] = targets
        return targets
