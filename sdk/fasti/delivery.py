"""A delivered message that waits for `ack()` or `nack()`.

What cannot be read in its details is as if it were not there: no value ends a program that reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Protocol

from .answers import Try
from .errors import BadArgument
from .mqtt_values import ACK_TIMEOUT, RESULT, Came, Incoming, UserProperties, readable
from .traces import NAMES, handling
from .values import each
from .wire import NO_PAYLOAD, Span, parse_instant, seconds
from .wire import span as _span

REASON_BYTES_MAX = 255
"""Maximum length of a nack's reason; the rest is cut off."""
NEVER_AGAIN = "never"
"""The server's word for: a dead letter at once."""
_OURS = frozenset(
    {
        "fasti-id",
        "fasti-due",
        "fasti-late-ms",
        "fasti-attempt",
        "fasti-tries",
        "fasti-schedule",
        "fasti-ordering-key",
        ACK_TIMEOUT,
    }
)


class Received:
    """A message with the details of its delivery. Details that another broker does not send are None."""

    __slots__ = ("_came", "_properties")

    def __init__(self, came: Came) -> None:
        self._came = came
        self._properties = dict(came.properties)

    @property
    def topic(self) -> str:
        return self._came.topic

    @property
    def payload(self) -> bytes:
        return self._came.payload

    @property
    def qos(self) -> int:
        return self._came.qos

    @property
    def retain(self) -> bool:
        """Whether this is a retained message, sent because of the subscription."""
        return self._came.retain

    @property
    def content_type(self) -> str | None:
        return self._came.content_type

    @property
    def id(self) -> str | None:
        """The message id, the same at every delivery."""
        return self._properties.get("fasti-id")

    @property
    def due(self) -> datetime | None:
        """Due time, UTC."""
        return readable(self._properties.get("fasti-due"), parse_instant, None)

    @property
    def lateness(self) -> timedelta | None:
        """Dispatch time minus due, by the server's clock."""
        return readable(
            self._properties.get("fasti-late-ms"), lambda text: timedelta(milliseconds=float(text)), None
        )

    @property
    def attempt(self) -> int:
        """1 at the first delivery to this session or group."""
        return max(1, readable(self._properties.get("fasti-attempt"), int, 1))

    @property
    def redelivered(self) -> bool:
        """Whether somebody may have had it before: it is not the first attempt, or nobody knows whether it
        is, as the server was killed."""
        return self.attempt > 1 or self._came.dup

    @property
    def tries(self) -> tuple[Try, ...]:
        """The last failed attempts before this one, at most 20, oldest first."""
        return readable(self._properties.get("fasti-tries"), lambda text: each(Try.of, json.loads(text)), ())

    @property
    def schedule(self) -> str | None:
        """Name of the recurring schedule that created it, or None."""
        return self._properties.get("fasti-schedule")

    @property
    def ordering_key(self) -> str | None:
        """What it belongs to, such as a customer, or None."""
        return self._properties.get("fasti-ordering-key")

    @property
    def ack_timeout(self) -> timedelta | None:
        """Time to ack before the server gives it to another member; None: until the connection ends."""
        return self._came.lease

    @property
    def headers(self) -> Mapping[str, str]:
        """The publisher's user properties; of a repeated name the last."""
        return {name: value for name, value in self._properties.items() if name not in _OURS}

    @property
    def trace_context(self) -> Mapping[str, str]:
        """The trace that it belongs to (`traceparent`, `tracestate`), as propagators read it."""
        return {name: self._properties[name] for name in NAMES if name in self._properties}

    def traced(self, topic_filter: str = "", group: str = "") -> AbstractContextManager[None]:
        """`with d.traced():` the block is an OpenTelemetry span in the message's trace.

        A `Worker` does this around its handlers. Without OpenTelemetry it does nothing. `topic_filter`,
        `group`: attributes of the span.
        """
        return handling(self.trace_context, self.topic, self.id, topic_filter, group, self.attempt)

    def text(self) -> str:
        """The payload as UTF-8. Raises UnicodeDecodeError."""
        return self.payload.decode()

    def json(self) -> Any:
        """The payload as JSON. Raises ValueError."""
        return json.loads(self.payload)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topic={self.topic!r}, id={self.id!r}, payload={len(self.payload)} bytes)"
        )


class Delivery(Received):
    """A received message that waits for one answer: `ack()`, `nack()` or `reject()`. The first one counts."""

    __slots__ = ("_answer", "_given_by", "_incoming", "_result", "_sent")

    def __init__(self, incoming: Incoming, given_by: Giver) -> None:
        super().__init__(incoming)
        self._incoming = incoming
        self._given_by = given_by
        self._answer: str | None = None  # the verb; None: none yet
        self._result: UserProperties | None = None  # of its ack
        self._sent: bool | None = None

    async def ack(self, *, result: Any = NO_PAYLOAD) -> bool:
        """Finish the message; the server does not send it to this session or group again.

        True: the ack has been written to the connection that the message came on. It waits while the server
        does not read. False: nothing was acked and nothing will be, because that connection has ended, be
        there a new one or not, or because the subscription is closed, or because it was nacked before. With a
        session the message comes again; in a group it goes to another member. It raises nothing. The first
        answer stays: a second call, also one at the same time or after a close, gives the same and sends
        nothing.

        It counts however late it comes, also when the message has gone to another member meanwhile.

        At QoS 2 with a session True is also said when the connection was lost: the message comes again under
        its packet id, is recognised, not handed out a second time, and acked then, as long as this
        subscription lives. At QoS 0 nothing is acked and nothing comes again: True.

        The server makes an ack durable a little later (QoS 1): if it is killed meanwhile, the message can
        come again after a True.

        `result`: JSON of at most 65,535 bytes, of a group's message at QoS 1 acked on its own connection.
        """
        if result is not NO_PAYLOAD:
            self._result = answered(result)
        return await self._tell("ack", self._result if self.qos == 1 else None)

    async def nack(self, delay: Span | None = None, reason: str | None = None) -> bool:
        """Return the message: this session or group, and no other, gets it again after `delay`.

        Without a delay after the back-off of the subscription, which grows from try to try. It waits on the
        server's timeline, and survives restarts of either side. After the subscription's `max_attempts` tries
        it is a dead letter, with `reason`. Raises ValueError for a negative delay.

        True: it has been written to the connection that the message came on. False: it was not, for the
        causes that `ack` has, or because there is nothing to try again (QoS 0).
        """
        return await self._tell("nack", refusal(delay, reason))

    async def reject(self, reason: str | None = None) -> bool:
        """Give the message up: it becomes a dead letter at once, with `reason`.

        True and False as for `nack`.
        """
        return await self._tell("reject", refusal(None, reason, retry=NEVER_AGAIN))

    async def extend(self, span: Span) -> bool:
        """Extend the lease: the server gives the message to no other member until `span` has passed.

        Needed only where the subscription has an `ack_timeout`. True: it is ours until then. False: it is not
        ours any more, as that time was over, or its connection has ended. In a group it waits for the next
        connection: if the server was away and holds it for us still, the `ack_timeout` begins anew. Raises
        Refused for more than 12 h, ValueError for less than nothing.
        """
        held = _span(span)
        return self._answer is None and await self._given_by._extend(self._incoming, held)

    async def progress(self, value: Any) -> bool:
        """Say how far the work on a group's message is, in JSON of at most 4 KiB, and `extend` its lease to
        the usual time; after a lost connection only this."""
        span = _span(self.ack_timeout or 60)  # a lease without a limit stays one
        return self._answer is None and await self._given_by._extend(self._incoming, span, progress=value)

    async def _tell(self, answer: str, properties: UserProperties | None) -> bool:
        if self._answer is None:
            self._answer = answer
        if self._answer != answer:
            return False
        if self._sent is None:
            self._sent = await self._given_by._answer(self._incoming, properties)
        return self._sent


class Giver(Protocol):
    """The source of a delivery, which takes its answer."""

    async def _answer(self, incoming: Incoming, refusal: UserProperties | None) -> bool: ...

    async def _extend(self, incoming: Incoming, span: str, **said: Any) -> bool: ...


def answered(result: Any) -> UserProperties:
    """User properties of an ack with a result. Raises BadArgument, TypeError, ValueError."""
    text = json.dumps(result, separators=(",", ":"), allow_nan=False)
    json.dumps(result, ensure_ascii=False).encode()  # raises for half a surrogate pair
    if len(text) > 0xFFFF:  # the longest user property
        raise BadArgument("result", f"has {len(text):,} bytes in JSON, more than 65,535")
    return ((RESULT, text),)


def refusal(delay: Span | None, reason: str | None, *, retry: str = "auto") -> UserProperties:
    """User properties of a nack; `retry`: value without a delay.

    Raises BadArgument: for invalid values the server would close the connection.
    """
    again = ("retry-in", retry if delay is None else _span(seconds("delay", delay)))
    return (again,) if not reason else (again, ("reason", reason_of(reason)))


def reason_of(text: str) -> str:
    """The part of a reason that the server stores, without characters invalid in MQTT or UTF-8."""
    return text.replace("\0", " ").encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
