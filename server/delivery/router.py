"""Topic -> subscribers: the trie, and a cache of its answers by topic.

Most deployments publish to far fewer topics than they publish messages, so the trie is asked once a topic.
Many topics have the same subscribers: those of `devices/#` are the same for each of 50,000 devices. So an
answer is made once for the filters that match, and shared by the topics that the same filters match:

    devices/1/temp, devices/2/temp ... -> {devices/#} -> 1,000 sessions and their subscriptions

A topic's answer leaves out subscribers that may not receive it: where keys are needed, such topics have
answers of their own. What that costs counts in a turn, also if nobody gets the message. `forget` when rules
change. Groups that were left out are noted: what they pass over is counted and logged (`pass_over`).

A message with `deliver_to` also goes to the group of that endpoint, whatever its topic (`posted`). A full URL
is an unnamed endpoint, one for each origin (scheme, host, port) and key that sends there:

    https://a.example/hook, no key     https://a.example, else `*`
    the same, sent by the key ci       ci@https://a.example, else ci@*, else `*`

The first of these groups that exists, and began before the message, has the message. So each message belongs
to one group, and a group has nothing that was due before it began (docs/decisions/0025).

The cache is dropped whole when any subscription changes. Bound in bytes: half of `max_bytes` for the topics
and half for the answers; when one half is full, all is dropped. An answer larger than its half is kept alone.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from yarl import URL

from shards.fields import Record
from shards.record import deliver_to_of, owner_of, topic_of
from timeline.filters import SHARE_PREFIX, Trie, matches
from timeline.position import Position
from timeline.session import Subscription

from .place import Place

TOPIC_OVERHEAD = 150
"""Bytes of a cached topic besides its own."""
ANSWER_OVERHEAD = 400
PAIR_BYTES = 170
"""Bytes of a subscriber and its subscription in a cached answer."""

URLS = "*"
"""Stands for every full URL where endpoints are listed by name."""
ORIGIN_CHARS_MAX = 300
"""Maximum length of an origin. A longer one gets no endpoint of its own."""
ORIGINS_REMEMBERED = 10_000
"""At most 12 MiB."""
_HEAD = re.compile(rb"[^/?#]*://[^/?#]*")


def is_unnamed(name: str) -> bool:
    """Whether an endpoint of that name is made by the server, for full URLs."""
    return name.endswith(URLS) or "://" in name


def posting_topic(deliver_to: bytes) -> bytes:
    """The topic that who has something delivered there may send to, and that of what says no other."""
    return b"$deliver/" + (URLS.encode() if b"://" in deliver_to else deliver_to)


def endpoint_names(deliver_to: bytes, owner: bytes) -> tuple[str, ...]:
    """Endpoints that a message of this owner may belong to, the best first."""
    if b"://" not in deliver_to:
        return (deliver_to.decode(errors="replace"),)
    found = _HEAD.match(deliver_to)
    head = b"" if found is None else found.group()
    return _unnamed(head if len(head) <= ORIGIN_CHARS_MAX else b"", owner)


@lru_cache(ORIGINS_REMEMBERED)
def _unnamed(head: bytes, owner: bytes) -> tuple[str, ...]:
    """`head`: a URL up to its path. A pure function, so the memory of it is no state."""
    key = f"{owner.decode(errors='replace')}@" if owner else ""
    common = (f"{key}{URLS}", URLS) if key else (URLS,)
    try:
        url = URL(head.decode())
        origin = f"{url.scheme}://{url.host_port_subcomponent}" if url.host else ""
    except (ValueError, IndexError):  # yarl raises both
        origin = ""  # nothing can be posted there, which its dead letter says in the end
    return (key + origin, *common) if 0 < len(origin) <= ORIGIN_CHARS_MAX else common


Targets = dict[Place, tuple[Subscription, ...]]
NOBODY: Targets = {}


class Router:
    """Subscribers of a topic. `route` is O(1) for a topic seen since the last change."""

    def __init__(self, denied: Sequence[str] = (), *, max_bytes: int = 16 << 20) -> None:
        """`denied`: filters whose topics nobody gets; `max_bytes`: of the cache."""
        self._denied = denied
        self._half = max_bytes // 2
        self._trie: Trie[Place, Subscription] = Trie()
        self._posted: dict[str, tuple[Subscription, Targets]] = {}
        """The groups of endpoints by name, each with its own subscription."""
        self._cache: dict[bytes, Targets] = {}
        self._answers: dict[tuple[int, ...], tuple[Targets, bool]] = {}
        """By the identities of the dictionaries in the trie, which stay while no subscription changes. With
        each: whether a subscriber in it may not receive every topic."""
        self._topic_bytes = self._answer_bytes = 0
        self._barred: dict[bytes, list[Place]] = {}
        """Groups that cached topics leave out. No set is empty."""
        self.cost = 0
        """Number of checks whether a client may receive a topic, some 2 us each, since `take_cost`."""
        self.barred = 0
        """Times that a group passed over a message that none of its clients may receive."""

    def __len__(self) -> int:
        return len(self._trie)

    def take_cost(self) -> int:
        """`cost`, which begins anew."""
        cost, self.cost = self.cost, 0
        return cost

    @property
    def cached_bytes(self) -> int:
        """Approximate bytes of the cache."""
        return self._topic_bytes + self._answer_bytes

    def add(self, subscriber: Place, subscription: Subscription) -> None:
        self._trie.add(subscription.filter, subscriber, subscription)
        self.forget()

    def discard(self, subscriber: Place, topic_filter: str) -> None:
        self._trie.discard(topic_filter, subscriber)
        self.forget()

    def discard_all(self, subscriber: Place) -> None:
        for topic_filter in subscriber.session.subscriptions:
            if not topic_filter.startswith(SHARE_PREFIX):
                self.discard(subscriber, topic_filter)

    def add_endpoint(self, name: str, group: Place, subscription: Subscription) -> None:
        """Route messages for the endpoint of that name to this group."""
        self._posted[name] = subscription, {group: (subscription,)}

    def discard_endpoint(self, name: str) -> None:
        self._posted.pop(name, None)

    def posted(self, deliver_to: bytes, owner: bytes, place: Position) -> Targets:
        """The group of the endpoint that the message at `place` belongs to; nobody if there is none."""
        if deliver_to:
            for name in endpoint_names(deliver_to, owner):
                found = self._posted.get(name)
                if found is not None and found[0].since < place:
                    return found[1]
        return NOBODY

    def posted_in(self, value: bytes, place: Position) -> Targets:
        """The same of a stored value. Raises Corrupt."""
        deliver_to = deliver_to_of(value)
        return self.posted(deliver_to, owner_of(value), place) if deliver_to else NOBODY

    def is_for(self, name: str, record: Record, place: Position) -> bool:
        """Whether a message belongs to the endpoint of that name, there or not."""
        for one in endpoint_names(record.deliver_to, record.owner) if record.deliver_to else ():
            if one == name:
                return True
            found = self._posted.get(one)
            if found is not None and found[0].since < place:
                return False
        return False

    def route(self, topic: bytes) -> Targets:
        """Every subscriber with a matching subscription, away or not."""
        targets = self._cache.get(topic)
        if targets is None:
            targets = self._match(topic)
        return targets

    def wanted(self, subscriber: Place, place: Position, topic: bytes) -> tuple[Subscription, ...]:
        """The subscriptions by which a subscriber gets a message at `place`; written for one, the usual
        case."""
        found = self.route(topic).get(subscriber, ())
        if not found or (len(found) == 1 and found[0].since < place):
            return found
        return tuple([one for one in found if one.since < place])

    def wanted_in(self, subscriber: Place, place: Position, value: bytes) -> tuple[Subscription, ...]:
        """The same of a stored value, also for an endpoint. Raises Corrupt."""
        if subscriber.is_endpoint:
            return self.posted_in(value, place).get(subscriber, ())
        return self.wanted(subscriber, place, topic_of(value))

    def subscriptions_of(self, subscriber: Place, topic: bytes) -> tuple[Subscription, ...]:
        """The subscriptions by which a message comes again. Of a group it is its own, whatever the filter."""
        if subscriber.is_group:
            return tuple(subscriber.session.subscriptions.values())
        return self.route(topic).get(subscriber, ())

    def pass_over(self, topic: bytes, count: int = 1, reader: Place | None = None) -> None:
        """Count messages of a topic for the groups that were left out of its answer: for all that tail, or
        for `reader`."""
        for group in self._barred.get(topic, ()) if self._barred else ():
            if group is reader if reader is not None else group.session.tailing:
                self.barred += count

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
            self.cost += sum([subscriber.checks for subscriber in targets])
            every, targets = (
                targets,
                {
                    subscriber: theirs
                    for subscriber, theirs in targets.items()
                    if subscriber.may_receive(topic)
                },
            )
            barred = [one for one in every if one.is_group and one not in targets]
            size += ANSWER_OVERHEAD + PAIR_BYTES * (len(targets) + len(barred))
            if self._topic_bytes + size > self._half:
                self.forget()
            if barred:
                self._barred[topic] = barred
                for one in barred:
                    one.warn(topic)
        self._cache[topic] = targets
        self._topic_bytes += size
        return targets

    def _answer(
        self, key: tuple[int, ...], found: Sequence[dict[Place, Subscription]]
    ) -> tuple[Targets, bool]:
        gathered: dict[Place, list[Subscription]] = {}
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
            self._cache, self._answers, self._barred = {}, {}, {}
            self._topic_bytes = self._answer_bytes = 0
