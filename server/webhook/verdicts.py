"""What an answer to a post means for the message.

    2xx                             it is done
    410                             go again, and the endpoint is paused: nobody wants anything there any more
    429, 503 with Retry-After       go again when that says, at least in a second, at most in a day
    anything else, or no answer     go again with back-off; a redirect is not followed

The reason tells the status, or what went wrong; it stands with the dead letter in the end.
"""

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http import HTTPStatus
from typing import NamedTuple

RETRY_AFTER_MIN_MS = 1_000
RETRY_AFTER_MAX_MS = 86_400_000
_ASKS = (429, 503)
"""Statuses whose Retry-After is honoured."""


class Outcome(Enum):
    """What becomes of the message."""

    DONE = auto()
    AGAIN = auto()
    GONE = auto()
    """Again, and the endpoint is to be paused."""


class Reply(NamedTuple):
    """What came of a post. `status` 0: no answer, for the reason `fault`."""

    status: int
    retry_after: str = ""
    fault: str = ""
    latency_ms: float = 0.0


class Verdict(NamedTuple):
    """`delay_ms` None: with back-off."""

    outcome: Outcome
    delay_ms: int | None = None
    reason: str = ""


DONE = Verdict(Outcome.DONE)


def verdict_of(reply: Reply, now_ms: int) -> Verdict:
    """`now_ms`: the machine's time, from which a date in Retry-After counts."""
    status = reply.status
    if 200 <= status < 300:
        return DONE
    if not status:
        return Verdict(Outcome.AGAIN, None, reply.fault)
    reason = f"HTTP {status}{_phrase(status)}"
    if status == HTTPStatus.GONE:
        return Verdict(Outcome.GONE, None, reason)
    delay_ms = retry_after_ms(reply.retry_after, now_ms) if status in _ASKS else None
    return Verdict(Outcome.AGAIN, delay_ms, reason)


def retry_after_ms(text: str, now_ms: int) -> int | None:
    """How long Retry-After asks to wait, within bounds; None: it says nothing that is understood."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,15}", text):
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


def _phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""
