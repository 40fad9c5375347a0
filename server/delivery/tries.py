"""Failed tries of a message, and how they are told.

A try that failed while the server ran is written into the row of the retry. A delivery whose connection or
server was lost leaves the flight as it is, and is sent again from there: its try is told from the flight. The
flight's row has the number of tries and when the last one began. Flights know in RAM when each connection of
their session ended, until the server is killed. So successful deliveries cost no further writes.
"""

from collections.abc import Iterable, Sequence

import msgspec

from shards.fields import TryRow
from timeline.filters import sendable
from timeline.position import at_of
from timeline.session import Flight

from ..settings.times import Instant, format_ms
from .message import Message

TRIES_MAX = 20
"""Maximum number of remembered tries of a message."""
SAID_NO, LAPSED_LEASE, LOST, RETURNED = "failed", "lapsed", "lost", "returned"
"""Outcomes of a try: a nack or a failed post; no answer in time; connection or server lost; returned in order
more often than is free."""
UNANSWERED = "no answer before the connection or the server ended"
"""Reason of a failed try without a known reason."""
BYTES_MAX = 4_096
"""Maximum bytes of the JSON, which has the last tries that fit."""
_encode = msgspec.json.Encoder().encode


def tries_of_flight(before: Sequence[TryRow], flight: Flight, holder: str) -> Sequence[TryRow]:
    """Tries before the delivery in flight. `before`: those of its row; `holder`: who has it."""
    losses = flight.losses
    lost = [] if losses is None else losses.each()
    if not lost:
        at_ms = at_of(flight.position) if losses is None else losses.at_ms
        return _with_lost(before, flight.attempts - 1, at_ms)
    first_ms, held_ms = lost[0]
    unknown = _with_lost(before, flight.attempts - 1 - len(lost), first_ms - held_ms)
    known = [TryRow(at_ms, holder, LOST, UNANSWERED, ms) for at_ms, ms in lost]
    return [*unknown, *known][-TRIES_MAX:]


def tries_before(message: Message, attempt: int) -> Sequence[TryRow]:
    """Tries of a message before it is sent for the `attempt`-th time from its row; 0: not known."""
    if attempt <= 1:
        return message.tries
    retry = message.record.retry
    recorded = 0 if retry is None else retry.recorded
    return _with_lost(message.tries, attempt - 1 - recorded, message.as_of_ms)


def _with_lost(before: Sequence[TryRow], count: int, at_ms: int) -> Sequence[TryRow]:
    if count <= 0:
        return before
    lost = TryRow(at_ms, "", LOST, UNANSWERED)
    return [*before, *[lost] * min(count, TRIES_MAX)][-TRIES_MAX:]


class Try(msgspec.Struct, gc=False):
    """A failed delivery. `at`: time of the failure; `by`: who had the message, empty: unknown; `seconds`: how
    long, null: unknown."""

    at: Instant
    by: str
    outcome: str
    reason: str
    seconds: float | None


def tries_view(tries: Iterable[TryRow]) -> list[Try]:
    """Tries as answers show them."""
    return [
        Try(format_ms(one.at_ms), one.by, one.outcome, one.reason, one.ms / 1_000 if one.ms else None)
        for one in tries
    ]


def tries_text(tries: Sequence[TryRow]) -> str:
    """A JSON array, the last try at its end; of many long ones only the last."""
    texts: list[bytes] = []
    size = 2
    for one in reversed(tries_view(tries)):
        text = _encode(one)
        size += len(text) + 1
        if size > BYTES_MAX:
            break
        texts.append(text)
    return sendable(f"[{b','.join(reversed(texts)).decode()}]")
