"""`client.subscribe`: messages as an async iterator that survives the connection.

    async for d in client.subscribe("orders/#", session="billing"):
        await handle(d.json())
        await d.ack()

Nothing is acked before `ack()`, so that a worker that dies in the middle of a message gets it again. At
most `max_in_flight` messages are here and unacked (MQTT's Receive Maximum): a slow loop slows its own
deliveries and fills no memory. That bound is the protocol's and does not cover QoS 0.

Who keeps our place decides what happens to a message when its connection goes:

A session (`session=`), for `expiry`.
- Waiting here, not yet in the loop's hands: dropped here; the server sends it again.
- In the loop's hands at QoS 1: `ack()` gives False, the server sends it again as attempt 2. An ack never
  goes out on another connection than its message came on, where the packet id may name another message.
- In the loop's hands at QoS 2: the server sends it again, it is recognised and not handed out twice; the
  ack goes out on the new connection, or is kept until there is one.
- Acked at QoS 2 with the ack lost: recognised, acked again, not handed out twice.
- If the server has lost the session (`session_present` is 0): as for nobody.

The group (`group=`), for `expiry`, with nobody there too. Its members need no session and leave none behind.
If the server was away, it holds for us what we had: on the next connection we say what that is
(`$control/holding`), at QoS 1 and by the messages' ids.
- Waiting here: handed out if it is held for us. Else dropped: another member gets it, or we do.
- In the loop's hands: `ack()` finishes it over the next connection, wherever it is by then
  (`$control/done`). If it comes again it is not handed out a second time: the answer to the first one goes
  out on the connection that it came again on. Without an id (a plain publish of a group without an
  `ack_timeout`), or if there is no connection within `LATE_S` or the lease: False, and it goes to another.
- A QoS 2 message is its member's: as for a session with one, else as for nobody.

Nobody. What waits here is still handed out, because nobody will send it again, its `ack()` gives False, and
what becomes due while the connection is down is missed.

A message of a group with an `ack_timeout` goes to another member when that is over. If it still waits here by
then it is not handed out: whoever gets it next is the one to do it. The server is told so, because its packet
id counts against `max_in_flight` until then.

Where there are several brokers, or one sends us on to another (`addresses`), it goes on there in the same
session, as the same client. One that only sends on, and nowhere, is a no where it is the only one.

One connection may have several subscriptions (a `Worker` has). Each has its own number then, which comes with
its messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet, WeakValueDictionary

from .addresses import HOPS, Broker, Brokers
from .delivery import Delivery, refusal
from .errors import BadArgument, Error, Unreachable, Untrusted
from .mqtt_values import NEVER, RESULT, Ended, Incoming, SentOn, Target, UserProperties
from .names import check_count, check_filter, check_group, check_text, items_of
from .options import OnDead, PerKey
from .tls import Tls
from .transport import Retry
from .wire import Qos, Span, When, moment, seconds, span

if TYPE_CHECKING:
    from .mqtt_adapter import Connection

DEFAULT_IN_FLIGHT = 64
_RATE_MAX = 1e18
LATE_S = 30.0
"""Time for which an ack waits for the next connection, at least."""
HOLDING_MAX = 200
"""Messages in one `$control/holding`."""
_log = logging.getLogger("fasti.subscribe")
_OVERDUE = refusal(None, "waited too long in a member's buffer")


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """The options of a subscription with their defaults."""

    topic_filter: str
    qos: Qos = 1
    session: str | None = None
    group: str | None = None
    replay_from: When | timedelta | None = None
    max_in_flight: int = DEFAULT_IN_FLIGHT
    expiry: Span | None = None
    ack_timeout: Span | None = None
    max_attempts: int | None = None
    backoff: Sequence[Span] | None = None
    rate: float | str | None = None
    order: bool | None = None
    on_dead: OnDead | None = None
    per_key: PerKey | None = None
    fair: bool | None = None
    keep: Span | None = None
    result_ttl: Span | None = None
    alerts: str | None = None

    def __post_init__(self) -> None:
        """Raise BadArgument for values that would change their meaning on the wire; ValueError."""
        check_filter("topic_filter", self.topic_filter)
        if self.session is not None:
            check_text("session", self.session)
        if self.group is not None:
            check_group("group", self.group)
            if self.topic_filter.startswith("$share/"):
                raise BadArgument("topic_filter", "names a group already; give group= or $share/, not both")
        if self.qos not in (0, 1, 2):
            raise BadArgument("qos", f"must be 0, 1 or 2, not {self.qos!r}")
        check_count("max_in_flight", self.max_in_flight, 1, 0xFFFF)
        if self.expiry is not None and not (isinstance(self.expiry, str) and self.session is None):
            seconds("expiry", self.expiry)
        if self.max_attempts is not None:
            check_count("max_attempts", self.max_attempts, 0)
        if self.backoff is not None and not [*items_of("backoff", self.backoff)]:
            raise BadArgument("backoff", "must be a list of spans, one at least")
        is_number = isinstance(self.rate, int | float) and 0 <= self.rate < _RATE_MAX
        if self.rate is not None and not (self.is_member and (is_number or isinstance(self.rate, str))):
            raise BadArgument("rate", f"is of a group, and not negative: {self.rate}")
        if not isinstance(self.per_key or {}, dict):
            raise BadArgument(
                "per_key", f"must be a mapping of concurrency and rate, not {self.per_key!r:.100}"
            )
        for name in ("order", "on_dead", "per_key", "fair", "keep", "result_ttl", "alerts"):
            if getattr(self, name) is not None and not self.is_member:
                raise BadArgument(name, "is of a group")
        for name, text in (("replay-from", self.replay_text), *self.terms):  # raises now, not in the loop
            check_text(name.replace("-", "_"), " " if text in (None, "") else text)

    def target(self, broker: Broker, tls: Tls, password: str | None) -> Target:
        """The connection that goes with it."""
        return Target(
            broker=broker,
            tls=tls,
            client_id=self.session or f"fasti-{uuid.uuid4().hex[:16]}",
            clean=self.session is None,
            expiry_s=self.expiry_s,
            receive_maximum=self.max_in_flight,
            password=password,
            token=uuid.uuid4().hex if self.is_member else "",
        )

    @property
    def is_member(self) -> bool:
        """Whether it is a shared subscription."""
        return self.group is not None or self.topic_filter.startswith("$share/")

    @property
    def expiry_s(self) -> int:
        """How long the server keeps a session of ours without a connection, in seconds, rounded up."""
        if self.session is None:
            return 0
        return NEVER if self.expiry is None else math.ceil(min(NEVER, seconds("expiry", self.expiry)))

    @property
    def terms(self) -> UserProperties:
        """User properties of SUBSCRIBE with the subscription's terms."""
        backoff = None if self.backoff is None else ",".join(span(each, "backoff") for each in self.backoff)
        per_key = self.per_key or {}
        texts = {
            "ack-timeout": None if self.ack_timeout is None else span(self.ack_timeout, "ack_timeout"),
            "max-attempts": None if self.max_attempts is None else str(self.max_attempts),
            "backoff": backoff,
            "rate": _number(self.rate),
            "order": None if self.order is None else str(self.order).lower(),
            "on-dead": self.on_dead,
            "per-key-concurrency": _number(per_key.get("concurrency")),
            "per-key-rate": _number(per_key.get("rate")),
            "fair": None if self.fair is None else str(self.fair).lower(),
            "keep": None if self.keep is None else span(self.keep, "keep"),
            "result-ttl": None if self.result_ttl is None else span(self.result_ttl, "result_ttl"),
            "alerts": self.alerts,
            "expiry": span(self.expiry, "expiry") if self.is_member and self.expiry is not None else None,
        }
        return tuple((name, value) for name, value in texts.items() if value is not None)

    @property
    def replay_text(self) -> str | None:
        """Where a new subscription starts, in the server's form."""
        return None if self.replay_from is None else moment(self.replay_from, "replay_from")

    @property
    def wire_filter(self) -> str:
        return self.topic_filter if self.group is None else f"$share/{self.group}/{self.topic_filter}"


def _number(value: float | str | None) -> str | None:
    return f"{value:f}".rstrip("0").rstrip(".") if isinstance(value, int | float) else value


class Ledger:
    """QoS 2 packet ids between PUBLISH and PUBREL: the message, and whether it was acked.

    It lives as long as the subscription, over its connections, as MQTT requires of a receiver's session
    state. An id alone does not identify a message: see `Incoming.is_again`.
    """

    def __init__(self, *, keeps: bool) -> None:
        """`keeps`: the server has a session, so that a lost ack can be repeated."""
        self._keeps = keeps
        self._held: dict[int, Incoming] = {}
        self._acked: dict[int, Incoming] = {}

    def is_new(self, incoming: Incoming) -> bool:
        """Note a message before it is passed on; False if it was passed on before (then it is handled
        here)."""
        earlier = self._held.get(incoming.mid) or self._acked.get(incoming.mid)
        if earlier is not None and incoming.is_again(earlier):
            earlier.adopt(incoming)
            if incoming.mid in self._acked:
                earlier.connection.send_ack(earlier)
            return False
        self._acked.pop(incoming.mid, None)
        self._held[incoming.mid] = incoming
        return True

    async def nack(self, incoming: Incoming, refusal: UserProperties) -> bool:
        """Send a nack. True: it was sent, and the packet id is free again."""
        if self._held.get(incoming.mid) is not incoming:
            return False
        del self._held[incoming.mid]
        return await incoming.connection.ack(incoming, refusal)

    async def ack(self, incoming: Incoming) -> bool:
        """Ack. True: it was sent, or is kept until the message is redelivered."""
        mid = incoming.mid
        if self._held.get(mid) is incoming:
            del self._held[mid]
            self._acked[mid] = incoming
        elif self._acked.get(mid) is not incoming:
            return False  # of a session that the server has lost since, or now another message's id
        return await incoming.connection.ack(incoming) or (self._keeps and self._acked.get(mid) is incoming)

    def release(self, mid: int) -> None:
        """PUBREL came: the packet id is free again."""
        self._acked.pop(mid, None)

    def clear(self) -> None:
        self._held.clear()
        self._acked.clear()


_Given = tuple[str, str]
"""The group, as subscribed to, and the message's id."""


class _Closed(Exception):
    """The subscription was closed while it was to be connected."""


class Subscription:
    """An async iterator of deliveries, and an async context manager that closes it at the end.

    It connects at the first step (or on entering the context). A step may be cancelled, say by a timeout,
    without harm, and several steps may go on at once. The connection ends with `aclose()`, with the
    client, or when the subscription and the deliveries out of it are no longer referenced, as after `break`
    in the usual loop.
    """

    def __init__(
        self,
        requests: Sequence[SubscribeRequest],
        brokers: Brokers,
        tls: Tls,
        password: str | None,
        retry: Retry,
        opened: WeakSet[Subscription],
    ) -> None:
        """`requests`: subscriptions of one connection; the first one has the connection's options."""
        self._requests = requests
        request = requests[0]
        self._request = request
        self._keeps = request.expiry_s > 0
        self._brokers = brokers
        self._tls = tls
        self._password = password
        self._retry = retry
        self._opened = opened
        self._target: Target | None = None
        self._is_first = True  # the first connection, for `replay_from`
        self._attempts = 0
        self._established = 0
        self._logged = ""  # why it is not connected, as logged
        self._fruitless = 0  # connections in a row that brought no message
        self._ledger = Ledger(keeps=self._keeps)
        self._set_aside: list[Incoming] = []  # of an ended connection, the server sends them again
        self._orphans: deque[Incoming] = deque()  # messages of an ended connection that are not resent
        # Of groups, by group and id, as several may give the same message:
        self._finished: dict[_Given, float] = {}  # when it was acked on a later connection
        self._in_hand: WeakValueDictionary[_Given, Incoming] = WeakValueDictionary()  # unanswered
        self._left_over: list[Incoming] = []  # of groups: waited here when their connection ended
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._closed = False

    @property
    def connections(self) -> int:
        """Number of network connections opened so far."""
        return self._established

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        while not self._closed:
            try:
                connection = await self._connected()
            except _Closed:
                break
            while self._orphans:
                incoming = self._orphans.popleft()
                if not self._is_refused(incoming):
                    return self._handed_out(incoming)
            try:
                incoming = await connection.receive()
            except Ended as ended:
                error = await self._left(connection, ended)
                if error is not None and not self._closed:
                    self._shut()
                    raise error from ended
                continue
            self._fruitless = 0
            if self._is_to_be_handed_out(incoming, connection):
                return self._handed_out(incoming)
        raise StopAsyncIteration

    def _handed_out(self, incoming: Incoming) -> Delivery:
        self._note_in_hand(incoming)
        return Delivery(incoming, self)

    def _note_in_hand(self, incoming: Incoming) -> None:
        if incoming.id is not None and self._group_of(incoming):
            self._in_hand[self._given(incoming)] = incoming

    def _given(self, incoming: Incoming) -> _Given:
        return self._group_of(incoming), incoming.id or ""

    def _is_refused(self, incoming: Incoming) -> bool:
        """Whether it waited here for longer than its lease: the server, if it still waits, hears so."""
        is_overdue = incoming.qos == 1 and incoming.is_overdue(asyncio.get_running_loop().time())
        if is_overdue:
            incoming.connection.send_ack(incoming, _OVERDUE)
        return is_overdue

    def _group_of(self, incoming: Incoming) -> str:
        """The group that gave it at QoS 1, as subscribed to; empty: none."""
        numbered = dict(enumerate(self._requests, 1))
        request = numbered.get(incoming.numbers[0] if incoming.numbers else 1, self._request)
        return request.wire_filter if request.is_member and incoming.qos == 1 else ""

    def _is_to_be_handed_out(self, incoming: Incoming, connection: Connection) -> bool:
        is_lost = incoming.qos > 0 and not connection.is_open
        if is_lost and incoming.qos == 1 and self._request.is_member:
            self._left_over.append(incoming)
            return False
        earlier = self._in_hand.get(self._given(incoming)) if incoming.qos == 1 else None
        if earlier is not None and earlier.connection is not connection:
            earlier.adopt(incoming)
            return False
        if is_lost and self._keeps:
            self._set_aside.append(incoming)
            return False
        if incoming.qos == 1 and incoming.arrived_s <= self._finished.get(self._given(incoming), -1.0):
            connection.send_ack(incoming)
            return False
        if self._is_refused(incoming):
            return False
        return incoming.qos < 2 or self._ledger.is_new(incoming)

    async def __aenter__(self) -> Self:
        try:
            await self._connected()
        except _Closed:
            raise Unreachable("the subscription is closed") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Send the acks given so far, then disconnect for good. Loops that wait for messages end."""
        self._shut()
        if self._connection is not None:
            await self._end(self._connection)

    def _shut(self) -> None:
        self._closed = True
        self._ledger.clear()

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.abandon()

    async def _answer(self, incoming: Incoming, refusal: UserProperties | None) -> bool:
        match incoming.qos:
            case 0:
                return refusal is None
            case 1:
                try:
                    is_sent = await incoming.connection.ack(incoming, refusal)
                    is_done = refusal is None or refusal[0][0] == RESULT
                    return is_sent or (is_done and await self._finish(incoming))
                finally:
                    if self._in_hand.get(self._given(incoming)) is incoming:
                        del self._in_hand[self._given(incoming)]
        if refusal is not None:
            return await self._ledger.nack(incoming, refusal)
        return await self._ledger.ack(incoming)

    async def _finish(self, incoming: Incoming) -> bool:
        """Ack a group's message over the current connection, if there is one in time."""
        group, message, lease = self._group_of(incoming), incoming.id, incoming.lease
        if message is None or not group:
            return False
        with contextlib.suppress(TimeoutError, Error, _Closed):
            async with asyncio.timeout(LATE_S if lease is None else max(LATE_S, lease.total_seconds())):
                is_done = await self._finish_somewhere(group, message)
                incoming.connection.send_ack(incoming)  # if it has come again: the packet id is free
                return is_done
        return False

    async def _finish_somewhere(self, group: str, message: str) -> bool:
        while not self._closed:
            connection = await self._connected()
            try:
                is_done = await connection.done(group, message)
            except Ended as ended:
                await self._left(connection, ended)
                continue
            if is_done:
                self._finished[group, message] = asyncio.get_running_loop().time()
                if len(self._finished) > self._request.max_in_flight:
                    del self._finished[next(iter(self._finished))]
            return is_done
        return False

    async def _extend(self, incoming: Incoming, span: str, **said: Any) -> bool:
        group, message = self._group_of(incoming), incoming.id
        is_held = self._in_hand.get(self._given(incoming)) is incoming
        with contextlib.suppress(Ended):
            return await incoming.connection.extend(incoming, span, **said)
        while is_held and message is not None and not self._closed:
            try:
                connection = await self._connected()
                if incoming.connection is connection:
                    return await connection.extend(incoming, span, **said)
                return await connection.holding(group, [message])
            except Ended as ended:
                if await self._left(connection, ended) is not None:
                    return False
            except (Error, _Closed):
                return False
        return False

    async def _connected(self) -> Connection:
        """The connection; made if there is none.

        Raises Refused, Unreachable if there never was one, and _Closed if it has been closed meanwhile.
        """
        async with self._connecting:
            if self._connection is None:
                connection = await self._connect()
                if self._closed:
                    await connection.close()
                    raise _Closed
                self._connection = connection
                self._opened.add(self)
            return self._connection

    async def _connect(self) -> Connection:
        """In as many attempts as a request gets; once there was a connection, for as long as it takes."""
        failures = 0
        while not self._closed:
            if self._established:
                await asyncio.sleep(self._retry.wait_s(self._fruitless))
                self._fruitless += 1
            try:
                return await self._attempt()
            except Unreachable as error:
                self._say(error)
                self._brokers.turn()
                failures += self._retry.attempts if isinstance(error, Untrusted) else 1
                if not self._established and failures >= self._retry.attempts * self._brokers.count:
                    raise
            if not self._established:
                await asyncio.sleep(self._retry.wait_s((failures - 1) // self._brokers.count))
        raise _Closed

    def _say(self, error: Unreachable) -> None:
        """Log why a subscription waits for its server, once for each reason."""
        if self._established and str(error) != self._logged:
            self._logged = str(error)
            _log.warning("subscription %s: not connected, trying again: %s", self._request.wire_filter, error)

    async def _attempt(self) -> Connection:
        """Connect and subscribe, at once wherever we are sent on to. Raises Refused, Unreachable."""
        for _ in range(HOPS):
            try:
                return await self._attempt_at(await self._brokers.current())
            except SentOn as sent_on:
                if not self._brokers.follow(sent_on.reference):
                    if not self._brokers.has_others():
                        raise
                    raise Unreachable(f"mqtt: {sent_on}") from sent_on
        raise Unreachable(f"mqtt: sent on {HOPS} times in a row")

    async def _attempt_at(self, broker: Broker) -> Connection:
        """Once. Raises Refused, SentOn, Unreachable."""
        if self._target is None:
            self._target = self._request.target(broker, self._tls, self._password)
        self._target = replace(self._target, broker=broker)
        self._attempts += 1
        from .mqtt_adapter import Connection  # a client of HTTP alone does not wait for aiomqtt and paho

        connection = Connection(self._target, self._attempts, self._ledger.release)
        try:
            await connection.open()
            self._sort_out(connection.session_present)
            await self._subscribe(connection)
            await self._say_what_we_hold(connection)
        except Ended as ended:
            await connection.close()
            raise ended.error or Unreachable(f"mqtt: {ended}") from ended
        except BaseException:
            await connection.close()
            raise
        self._is_first = False
        self._established += 1
        self._logged = ""
        return connection

    async def _subscribe(self, connection: Connection) -> None:
        is_one = len(self._requests) == 1
        for number, request in enumerate(self._requests, 1):
            properties = request.terms
            if self._is_first and request.replay_text:
                properties = (("replay-from", request.replay_text), *properties)
            await connection.subscribe(request.wire_filter, request.qos, properties, 0 if is_one else number)

    async def _say_what_we_hold(self, connection: Connection) -> None:
        """Of what waited here only what the server holds for us is handed out. Raises Ended."""
        held: dict[str, list[str]] = {}
        for group, message in self._in_hand:
            held.setdefault(group, []).append(message)
        for group, messages in held.items():
            for at in range(0, len(messages), HOLDING_MAX):
                await connection.holding(group, messages[at : at + HOLDING_MAX])
        self._left_over[:0] = filter(self._group_of, self._orphans)  # the server was away again meanwhile
        self._orphans = deque(one for one in self._orphans if not self._group_of(one))
        while self._left_over:
            incoming = self._left_over[0]
            if incoming.id is not None and await connection.holding(self._group_of(incoming), [incoming.id]):
                incoming.arrived_s = asyncio.get_running_loop().time()
                self._note_in_hand(incoming)  # if it comes again it is not handed out a second time
                self._orphans.append(incoming)
            del self._left_over[0]

    def _sort_out(self, session_present: bool) -> None:
        """Decide about the messages of the connection before this one."""
        if not session_present:
            self._ledger.clear()
            self._orphans.extend(self._set_aside)
        self._set_aside.clear()

    async def _left(self, connection: Connection, ended: Ended) -> Error | None:
        """Handle the end of a connection. Returns why reconnecting is pointless, if it is."""
        error, is_ours = ended.error, self._connection is connection
        if isinstance(error, SentOn):
            goes_on = not is_ours or self._brokers.follow(error.reference)
            if not goes_on:
                self._brokers.turn()
                goes_on = self._brokers.has_others()
            error = None if goes_on else error
        await self._end(connection)
        return error

    async def _end(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self._opened.discard(self)
        await connection.close()
