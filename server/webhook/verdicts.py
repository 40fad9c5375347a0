"""Outcome of a post for the message.

    2xx                             done
    410                             retry, and the endpoint is paused: the receiver wants no more
    429, 503 with Retry-After       retry at that time, at least in a second, at most in a day
    anything else, or no answer     retry with back-off; a redirect is not followed

The reason is the status, or the error; in the end it is stored with the dead letter.
"""

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http import HTTPStatus
from typing import NamedTuple

from ..settings.times import SECONDS_MAX

RETRY_AFTER_MIN_MS = 1_000
RETRY_AFTER_MAX_MS = 86_400_000
_ASKS = (429, 503)
"""Statuses whose Retry-After is honoured."""


class Outcome(Enum):
    """What happens to the message."""

    DONE = auto()
    AGAIN = auto()
    GONE = auto()
    """Retry, and pause the endpoint."""


class Reply(NamedTuple):
    """Result of a post. `status` 0: no answer, for the reason `fault`."""

    status: int
    retry_after: str = ""
    fault: str = ""
    latency_ms: float = 0.0


class Verdict(NamedTuple):
    """`delay_ms` None: back-off."""

    outcome: Outcome
    delay_ms: int | None = None
    reason: str = ""


DONE = Verdict(Outcome.DONE)


def verdict_of(reply: Reply, now_ms: int) -> Verdict:
    """`now_ms`: the machine's time, for a date in Retry-After."""
    status = reply.status
    if 200 <= status < 300:
        return DONE
    if not status:
        return Verdict(Outcome.AGAIN, None, reply.fault)
    reason = f"HTTP {status}{phrase_of(status)}"
    if status == HTTPStatus.GONE:
        return Verdict(Outcome.GONE, None, reason)
    delay_ms = retry_after_ms(reply.retry_after, now_ms) if status in _ASKS else None
    return Verdict(Outcome.AGAIN, delay_ms, reason)


def retry_after_ms(text: str, now_ms: int) -> int | None:
    """The wait in Retry-After, within bounds; None: unreadable, such as a Unix time."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,15}", text):
        if SECONDS_MAX <= int(text) < 10 * SECONDS_MAX:
            return None  # a Unix time
        wait_ms = int(text) * 1_000
    else:
        try:
            until = parsedate_to_datetime(text)
            if until.tzinfo is None:
                until = until.replace(tzinfo=UTC)
            wait_ms = int(until.timestamp() * 1_000) - now_ms
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    return min(RETRY_AFTER_MAX_MS, max(RETRY_AFTER_MIN_MS, wait_ms))


def phrase_of(status: int) -> str:
    """Its usual words behind a space; empty: it has none."""
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""
