"""Topic -> subscribers: the trie, and a cache of its answers by topic.

Most deployments publish to far fewer topics than they publish messages, so the trie is asked once a topic.
Many topics have the same subscribers: those of `devices/#` are the same for each of 50,000 devices. So an
answer is made once for the filters that match, and shared by the topics that the same filters match:

    devices/1/temp, devices/2/temp ... -> {devices/#} -> 1,000 sessions and their subscriptions

Who may not be sent a topic is left out of its answer: where keys are asked for, such topics have answers of
their own. `forget` when rules change.

What is delivered to an endpoint goes to its group besides, whatever its topic (`posted`): by the name that it
says, and all full URLs to one group.

The cache is dropped whole when any subscription changes. Bound in bytes: half of `max_bytes` for the topics
and half for the answers; when one half is full all is dropped. An answer larger than its half is kept alone.
"""

from collections.abc import Sequence

from timeline.filters import SHARE_PREFIX, Trie, matches
from timeline.session import Subscription

from .subscriber import Subscriber

TOPIC_OVERHEAD = 150
"""Bytes of a cached topic besides its own."""
ANSWER_OVERHEAD = 400
PAIR_BYTES = 170
"""Of a subscriber and its subscription in an answer."""

URLS = "*"
"""What stands for every full URL among the names of endpoints."""


def is_delivered(deliver_to: bytes, name: str) -> bool:
    """Whether what says that it is delivered there goes to the endpoint of that name."""
    return (URLS if b"://" in deliver_to else deliver_to.decode()) == name


Targets = dict[Subscriber, tuple[Subscription, ...]]


class Router:
    """Subscribers of a topic. `route` is O(1) for a topic seen since the last change."""

    def __init__(self, denied: Sequence[str] = (), *, max_bytes: int = 16 << 20) -> None:
        """`denied`: filters whose topics nobody gets whatever is subscribed to; `max_bytes`: of the cache."""
        self._denied = denied
        self._half = max_bytes // 2
        self._trie: Trie[Subscriber, Subscription] = Trie()
        self._posted: dict[bytes, Targets] = {}
        """Subscribers by endpoint name."""
        self._cache: dict[bytes, Targets] = {}
        self._answers: dict[tuple[int, ...], tuple[Targets, bool]] = {}
        """By the identities of the dictionaries in the trie, which stay while no subscription changes. With
        each whether somebody in it may not have every topic."""
        self._topic_bytes = self._answer_bytes = 0

    def __len__(self) -> int:
        return len(self._trie)

    @property
    def cached_bytes(self) -> int:
        """Approximate bytes of the cache."""
        return self._topic_bytes + self._answer_bytes

    def add(self, subscriber: Subscriber, subscription: Subscription) -> None:
        self._trie.add(subscription.filter, subscriber, subscription)
        self.forget()

    def discard(self, subscriber: Subscriber, topic_filter: str) -> None:
        self._trie.discard(topic_filter, subscriber)
        self.forget()

    def discard_all(self, subscriber: Subscriber) -> None:
        for topic_filter in subscriber.session.subscriptions:
            if not topic_filter.startswith(SHARE_PREFIX):
                self.discard(subscriber, topic_filter)

    def add_endpoint(self, name: str, group: Subscriber, subscription: Subscription) -> None:
        """What is delivered to the endpoint of that name goes to this group from now on."""
        self._posted[name.encode()] = {group: (subscription,)}

    def discard_endpoint(self, name: str) -> None:
        self._posted.pop(name.encode(), None)

    def posted(self, deliver_to: bytes) -> Targets:
        """The group of an endpoint, by its name, or of full URLs; nobody if there is none."""
        return self._posted.get(URLS.encode() if b"://" in deliver_to else deliver_to, {})

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
        text = topic.decode()
        found = [] if self._denied and self.is_denied(text) else self._trie.holders(text)
        size = len(topic) + TOPIC_OVERHEAD
        if self._topic_bytes + size > self._half:
            self.forget()
        key = tuple(map(id, found))
        targets, is_restricted = self._answers.get(key) or self._answer(key, found)
        if is_restricted:
            targets = {
                subscriber: theirs for subscriber, theirs in targets.items() if subscriber.may_receive(topic)
            }
            size += ANSWER_OVERHEAD + PAIR_BYTES * len(targets)
            if self._topic_bytes + size > self._half:
                self.forget()
        self._cache[topic] = targets
        self._topic_bytes += size
        return targets

    def _answer(
        self, key: tuple[int, ...], found: Sequence[dict[Subscriber, Subscription]]
    ) -> tuple[Targets, bool]:
        gathered: dict[Subscriber, list[Subscription]] = {}
        pairs = 0
        for holders in found:
            pairs += len(holders)
            for subscriber, subscription in holders.items():
                gathered.setdefault(subscriber, []).append(subscription)
        targets = {subscriber: tuple(theirs) for subscriber, theirs in gathered.items()}
        size = ANSWER_OVERHEAD + 8 * len(key) + PAIR_BYTES * pairs
        if self._answer_bytes + size > self._half:
            self.forget()
        answer = targets, any(subscriber.is_restricted for subscriber in targets)
        self._answers[key] = answer
        self._answer_bytes += size
        return answer

    def forget(self) -> None:
        """Forget all answers: subscriptions or rules are others."""
        if self._cache or self._answers:
            self._cache, self._answers = {}, {}
            self._topic_bytes = self._answer_bytes = 0
