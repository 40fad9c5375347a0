"""SUBSCRIBE and UNSUBSCRIBE: each filter checked, granted or refused with its reason.

A packet takes effect when all that the client published before has been handed on, and what others have
retained before. Until then it waits, with everything behind it.

A packet may hold 10,000 filters, and one of many levels takes 45 us. So both are generators that yield after
each portion (some 5 ms) and continue in their owner's next turn (server/net/loop_time.py). The answer follows
at the end.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from timeline.filters import SHARE_PREFIX, TopicError, check_characters, levels_of, parse_share
from timeline.position import START, Position, before
from timeline.session import USUAL, Subscription, Terms

from ..codec.packets import Suback, Subscribe, SubscribeOptions, Unsuback, Unsubscribe
from ..codec.reasons import Reason
from ..delivery.clients import Clients
from ..delivery.link import Closing
from ..delivery.publishing import Publishing
from ..delivery.subscriber import Subscriber
from ..delivery.subscriptions import Denial, Subscriptions
from ..delivery.terms import UNSAID, Keeping, TermsError, TermsForbidden, read_keeping, read_terms
from ..engine.clock import Clock
from ..engine.commit_hook import ignore
from ..observe.logs import clean
from ..settings.config import Config
from ..settings.durations import TimeError
from ..settings.times import instant_or_back
from .backlog import Backlog
from .inbound import Inbound
from .outbox import Outbox
from .peer import Peer

log = logging.getLogger(__name__)

PORTION_BYTES = 32 << 10
"""Maximum bytes of filters, each with FILTER_OVERHEAD, that are handled at a time."""
FILTER_OVERHEAD = 32
FAULT_CHARS = 200
"""Maximum length of the reason for an invalid filter."""
_REASONS = {Denial.NOT_ALLOWED: Reason.NOT_AUTHORIZED, Denial.OVER_QUOTA: Reason.QUOTA_EXCEEDED}
Reasons = Generator[None, None, tuple[int, ...]]
"""Yields between portions; returns a reason code for each filter of the packet."""


@dataclass(frozen=True, slots=True)
class SubscribeProperties:
    """Properties of a SUBSCRIBE, for all its filters."""

    identifier: int = 0
    replay_from: Position | None = None
    terms: Terms = USUAL
    keeping: Keeping = UNSAID
    """Only for groups."""


NOTHING = SubscribeProperties()


class Subscribing:
    """The subscriptions of one connection.

    `wake` is called when a packet that waited is through, `in_turn` with what is to be done in a turn of its
    owner.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        clients: Clients,
        subscriptions: Subscriptions,
        publishing: Publishing,
        outbox: Outbox,
        inbound: Inbound,
        backlog: Backlog,
        peer: Peer,
        *,
        wake: Callable[[], None],
        in_turn: Callable[[Callable[[], None]], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._clients = clients
        self._subscriptions = subscriptions
        self._publishing = publishing
        self._outbox = outbox
        self._inbound = inbound
        self._backlog = backlog
        self._peer = peer
        self._wake = wake
        self._in_turn = in_turn
        self._portion = PORTION_BYTES
        """Bytes of filters that may still be handled in this round."""

    def end(self) -> None:
        """The connection is gone: let go of its link."""
        self._wake = self._in_turn = ignore

    def take(self, packet: Subscribe | Unsubscribe, subscriber: Subscriber) -> None:
        """Handle a packet, at once or when earlier publishes have been handed on. Many packets of few filters
        go in portions like few packets of many."""
        self._portion -= size_of(packet)
        is_spent = self._portion <= 0
        if is_spent:
            self._portion = PORTION_BYTES
        is_at_once = self._is_settled and not is_spent
        if is_at_once or not self._later(lambda: self._take_effect(packet, subscriber)):
            self._take_effect(packet, subscriber)
        self._inbound.settle()

    @property
    def _is_settled(self) -> bool:
        """Whether every earlier publish has settled: this client's, and others' that a later subscriber gets
        as retained."""
        return self._inbound.is_settled and not self._publishing.is_retaining(self._clock.mono())

    def _later(self, work: Callable[[], None]) -> bool:
        """Do it in a turn, when all earlier publishes have been handed on; later packets wait. False: it
        cannot wait, and the caller does it."""
        self._backlog.work = work
        in_turn = partial(self._in_turn, partial(self._go_on, work))
        if self._is_settled:
            in_turn()
        elif not self._publishing.after_publishes(self._inbound.key, in_turn):
            self._backlog.work = None
        return self._backlog.work is not None

    def _go_on(self, work: Callable[[], None]) -> None:
        """Its turn has come. What it raises is this connection's fault."""
        if self._backlog.work is work and not self._outbox.is_closed:
            self._backlog.work = None
            try:
                work()
            except Exception:
                log.exception("subscribe: failed inside the server")
                self._inbound.refuse(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "the server failed")
            self._wake()

    def _take_effect(self, packet: Subscribe | Unsubscribe, subscriber: Subscriber) -> None:
        if self._outbox.level == 5 and self._inbound.is_in_use(packet.packet_id):
            # Only level 5 can say that the client has begun something else under this packet id.
            taken = (int(Reason.PACKET_IDENTIFIER_IN_USE),) * len(packet.filters)
            answer = Suback if isinstance(packet, Subscribe) else Unsuback
            self._outbox.put(answer(packet.packet_id, taken))
        elif isinstance(packet, Subscribe):
            self._on_subscribe(packet, subscriber)
        else:
            self._on_unsubscribe(packet, subscriber)

    def _on_subscribe(self, packet: Subscribe, subscriber: Subscriber) -> None:
        """Subscribe to every valid filter, in order; the last options of a filter count."""
        try:
            properties = properties_of(packet, self._config, self._clock.wall_ms())
        except TermsError as error:
            reasons = (int(Reason.IMPLEMENTATION_SPECIFIC_ERROR),) * len(packet.filters)
            self._outbox.put(self._refused(Suback(packet.packet_id, reasons), _fault_text(error)))
            return

        invalid: list[str] = []
        """The fault of the last invalid filter, or of its group's terms."""

        def take(text: str, options: SubscribeOptions) -> int:
            try:
                return self._subscribe(subscriber, text, options, properties)
            except TopicError as error:
                invalid[:] = [clean(error, FAULT_CHARS)]
                return Reason.TOPIC_FILTER_INVALID
            except TermsError as error:
                invalid[:] = [_fault_text(error)]
                is_forbidden = isinstance(error, TermsForbidden)
                return Reason.NOT_AUTHORIZED if is_forbidden else Reason.IMPLEMENTATION_SPECIFIC_ERROR

        def taken_all(reasons: tuple[int, ...]) -> None:
            answer = Suback(packet.packet_id, reasons)
            for why in invalid:
                answer = self._refused(answer, why)
            texts = [text for text, _ in packet.filters]
            self._put_stored(answer, subscriber, texts, lambda: self._subscriptions.send_retained(subscriber))

        self._subscriptions.hold_retained(subscriber)
        self._work_off(_portions((text, partial(take, text, how)) for text, how in packet.filters), taken_all)

    def _refused(self, answer: Suback, why: str) -> Suback:
        """The answer with the reason, which is logged."""
        log.info("subscription refused: %s, %s", self._peer, why, extra=self._peer.cause)
        return self._outbox.with_why(answer, why)

    def _subscribe(
        self, subscriber: Subscriber, text: str, options: SubscribeOptions, properties: SubscribeProperties
    ) -> int:
        """The reason code of the answer. Raises TopicError, TermsError."""
        subscriptions, config = self._subscriptions, self._config
        group, topic_filter = parse_share(text)
        check_characters(text)
        levels, levels_max = levels_of(topic_filter.encode()), config.limits.topic_levels
        if levels > levels_max:
            raise TopicError(f"a filter has at most {levels_max} levels, this one has {levels}")
        denied = subscriptions.denial(text, topic_filter, subscriber)
        if denied is not None:
            return _REASONS[denied]
        keeping = subscriptions.check(text, properties.terms, properties.keeping, subscriber.rights)
        granted = min(options.qos, config.mqtt.maximum_qos)
        wanted = Subscription(
            text,
            granted,
            START,
            options.no_local,
            options.retain_as_published,
            properties.identifier,
            terms=properties.terms,
        )
        is_new = subscriptions.subscribe(subscriber, wanted, properties.replay_from, keeping)
        wants_retained = options.retain_handling == 0 or (options.retain_handling == 1 and is_new)
        if wants_retained and group is None:
            subscriptions.ask_retained(subscriber, wanted)
        return granted

    def _on_unsubscribe(self, packet: Unsubscribe, subscriber: Subscriber) -> None:
        """Give up every filter that is there."""

        def give_up(text: str) -> int:
            return 0 if self._subscriptions.unsubscribe(subscriber, text) else _absence(text)

        def taken_all(reasons: tuple[int, ...]) -> None:
            self._put_stored(Unsuback(packet.packet_id, reasons), subscriber, packet.filters, ignore)

        self._work_off(_portions((text, partial(give_up, text)) for text in packet.filters), taken_all)

    def _work_off(self, portions: Reasons, then: Callable[[tuple[int, ...]], None]) -> None:
        """A portion now and the others in later rounds, then the answer."""
        while True:
            try:
                next(portions)
            except StopIteration as end:
                then(end.value)
                return
            if self._later(lambda: self._work_off(portions, then)):
                return

    def _put_stored(
        self,
        answer: Suback | Unsuback,
        subscriber: Subscriber,
        texts: Sequence[str],
        then: Callable[[], None],
    ) -> None:
        """Send an answer once the session is durable as it is now (or, of a session that is not persistent,
        its groups among `texts`), then go on."""
        shared = {text for text in texts if text.startswith(SHARE_PREFIX)}
        if not (subscriber.session.is_persistent or shared):
            self._outbox.put(answer)
            then()
            return

        self._inbound.reserve(answer.packet_id)

        def stored(is_durable: bool) -> None:
            self._inbound.free(answer.packet_id)
            if not is_durable:
                self._outbox.close(Closing.STORE_FAILED)
            elif not self._outbox.is_closed:
                self._outbox.put(answer)
                if subscriber.link is self._outbox:
                    then()

        if subscriber.session.is_persistent:
            self._clients.store(subscriber, stored)
        else:
            self._clients.store_groups(subscriber, shared, stored)


def size_of(packet: Subscribe | Unsubscribe) -> int:
    """Bytes that a packet's filters take of a portion; at most one portion."""
    texts = (
        one if isinstance(one, str) else one[0] for one in packet.filters[: PORTION_BYTES // FILTER_OVERHEAD]
    )
    return min(PORTION_BYTES, sum(len(text) + FILTER_OVERHEAD for text in texts))


def _portions(filters: Iterable[tuple[str, Callable[[], int]]]) -> Reasons:
    """Take each filter, in order, by the call that stands with it and returns its reason code."""
    reasons: list[int] = []
    left = PORTION_BYTES
    for text, take in filters:
        left -= len(text) + FILTER_OVERHEAD
        if left < 0:
            left = PORTION_BYTES
            yield
        reasons.append(take())
    return tuple(reasons)


def bridged(packet: Subscribe) -> Subscribe:
    """A SUBSCRIBE of a bridge below level 5, with the options that it counts on: not its own messages, which
    would go round between the brokers, and retained ones as such."""
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


def _fault_text(error: TermsError) -> str:
    """The fault, with the name as user properties spell it."""
    return f"{error.name.replace('_', '-')} {error.detail}"


def _absence(text: str) -> int:
    """Why there was no subscription to end."""
    try:
        parse_share(text)
        check_characters(text)
    except TopicError:
        return Reason.TOPIC_FILTER_INVALID
    return Reason.NO_SUBSCRIPTION_EXISTED


def properties_of(packet: Subscribe, config: Config, now_ms: int) -> SubscribeProperties:
    """Raises TermsError for a property that cannot be understood, or is beyond a bound."""
    properties = packet.properties
    if properties is None:
        return NOTHING

    def requested(name: str) -> str | None:
        return properties.user(name.replace("_", "-"))

    terms, keeping = read_terms(requested, config), read_keeping(requested, config)
    shared = [text.startswith(SHARE_PREFIX) for text, _ in packet.filters]
    if keeping != UNSAID and not all(shared):
        given = ("expiry", "rate", "order", "on_dead", "per_key_concurrency", "per_key_rate", "fair")
        name = next(name for name in (*given, "keep", "result_ttl", "alerts") if requested(name) is not None)
        raise TermsError(name, "is only for groups: use it with $share/group/filter")
    identifier = properties.subscription_ids[0] if properties.subscription_ids else 0
    return SubscribeProperties(identifier, _replay_from(requested("replay_from"), now_ms), terms, keeping)


def _replay_from(text: str | None, now_ms: int) -> Position | None:
    """A time, or a duration back from now. Raises TermsError."""
    try:
        return None if text is None else before(instant_or_back(text, now_ms))
    except TimeError as error:
        raise TermsError("replay_from", str(error)) from None
