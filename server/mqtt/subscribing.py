"""SUBSCRIBE and UNSUBSCRIBE: each filter checked, granted or refused with its reason.

A packet may hold 10,000 filters, and one of many levels takes 45 us. So both are generators that yield after
each portion (some 5 ms): who runs them goes on in a later round, and answers when they have come to an end.
"""

from collections.abc import Generator

import msgspec

from timeline.filters import SHARE_PREFIX, TopicError, levels_of, parse_share
from timeline.position import Position, before
from timeline.session import Subscription

from ..codec.packets import Subscribe, SubscribeOptions, Unsubscribe
from ..codec.properties import Properties
from ..codec.reasons import Reason
from ..delivery.broker import Broker, Denial
from ..delivery.subscriber import Subscriber
from ..times import TimeError, parse_delay, parse_deliver_at

PORTION_BYTES = 32 << 10
"""Of filters, each with FILTER_OVERHEAD, that are taken in one go."""
FILTER_OVERHEAD = 32
_REASONS = {Denial.NOT_ALLOWED: Reason.NOT_AUTHORIZED, Denial.OVER_QUOTA: Reason.QUOTA_EXCEEDED}
Reasons = Generator[None, None, tuple[int, ...]]
"""Yields between portions; returns a reason code for each filter of the packet."""
Granted = tuple[int, Subscription | None]
"""(reason code, the subscription if what is retained for it is to be sent)."""


def size_of(packet: Subscribe | Unsubscribe) -> int:
    """What its filters count for in a portion, but at most one of these."""
    texts = (
        one if isinstance(one, str) else one[0] for one in packet.filters[: PORTION_BYTES // FILTER_OVERHEAD]
    )
    return min(PORTION_BYTES, sum(len(text) + FILTER_OVERHEAD for text in texts))


def subscribe(broker: Broker, subscriber: Subscriber, packet: Subscribe) -> Reasons:
    """Take every filter that can be taken. Of one that is there twice the last options count."""
    properties = packet.properties or Properties()
    try:
        replay_from = _replay_from(properties, broker.clock.wall_ms())
    except TimeError:
        return (int(Reason.IMPLEMENTATION_SPECIFIC_ERROR),) * len(packet.filters)
    identifier = properties.subscription_ids[0] if properties.subscription_ids else 0
    granted: dict[str, int] = {}
    left = PORTION_BYTES
    for text, options in dict(packet.filters).items():
        left -= len(text) + FILTER_OVERHEAD
        if left < 0:
            left = PORTION_BYTES
            yield
        granted[text], asking = _subscribe_one(broker, subscriber, text, options, identifier, replay_from)
        if asking is not None:
            broker.ask_retained(subscriber, asking)
    return tuple(granted[text] for text, _ in packet.filters)


def bridged(packet: Subscribe) -> Subscribe:
    """A SUBSCRIBE of a bridge below level 5, with the options that it cannot ask for and counts on.

    Not its own messages, or they would go round between the brokers; and retained ones as such.
    """
    filters = tuple(
        (
            text,
            msgspec.structs.replace(
                options, no_local=not text.startswith(SHARE_PREFIX), retain_as_published=True
            ),
        )
        for text, options in packet.filters
    )
    return msgspec.structs.replace(packet, filters=filters)


def _absence(text: str) -> int:
    """Why there was no subscription to end."""
    try:
        parse_share(text)
    except TopicError:
        return Reason.TOPIC_FILTER_INVALID
    return Reason.NO_SUBSCRIPTION_EXISTED


def unsubscribe(broker: Broker, subscriber: Subscriber, packet: Unsubscribe) -> Reasons:
    """Give up every filter that is there."""
    reasons: list[int] = []
    left = PORTION_BYTES
    for text in packet.filters:
        left -= len(text) + FILTER_OVERHEAD
        if left < 0:
            left = PORTION_BYTES
            yield
        reasons.append(0 if broker.unsubscribe(subscriber, text) else _absence(text))
    return tuple(reasons)


def _subscribe_one(
    broker: Broker,
    subscriber: Subscriber,
    text: str,
    options: SubscribeOptions,
    identifier: int,
    replay_from: Position | None,
) -> Granted:
    try:
        group, topic_filter = parse_share(text)
    except TopicError:
        return Reason.TOPIC_FILTER_INVALID, None
    if levels_of(topic_filter.encode()) > broker.config.limits.topic_levels:
        return Reason.TOPIC_FILTER_INVALID, None
    denied = broker.denial(text, topic_filter, subscriber)
    if denied is not None:
        return _REASONS[denied], None
    granted = min(options.qos, broker.config.mqtt.maximum_qos)
    wanted = Subscription(
        text,
        granted,
        broker.horizon,
        options.no_local,
        options.retain_as_published,
        identifier,
    )
    is_new = broker.subscribe(subscriber, wanted, replay_from)
    wants_retained = options.retain_handling == 0 or (options.retain_handling == 1 and is_new)
    return granted, wanted if wants_retained and group is None else None


def _replay_from(properties: Properties, now_ms: int) -> Position | None:
    """User property `replay-from`: a time, or a duration back from now. Raises TimeError."""
    text = properties.user("replay-from")
    if text is None:
        return None
    try:
        return before(parse_deliver_at(text))
    except TimeError:
        return before(max(0, now_ms - parse_delay(text)))
