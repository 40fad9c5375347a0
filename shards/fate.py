"""Expired and late messages: whether dispatch still delivers them, from the record and the clock.

Nothing is written when a message is dispatched or dropped. So the server at dispatch, a look-up a week
later and the archive all ask here, with the time at which dispatch reached the message.

Those who get it later (a session that was away, a new subscription to retained messages) use `is_over`. There
an expiry of 0 s has no tolerance.
"""

from .fields import Record

LATE_MS = 1_000
"""`late: drop` drops a message dispatched more than this after its due."""
AT_ONCE_MS = 1
"""Stored expiry of 0 s: the message is only for those who are there when it is dispatched."""


def has_expired(due_ms: int, expires_ms: int, dispatched_ms: int) -> bool:
    """Whether a message has expired when dispatch reaches it; an expiry of 0 s tolerates LATE_MS."""
    return dispatched_ms >= due_ms + (LATE_MS if expires_ms == AT_ONCE_MS else expires_ms)


def is_over(due_ms: int, expires_ms: int, wall_ms: int) -> bool:
    """Whether a message has expired for a reader at `wall_ms`, after its dispatch; `expires_ms` 0: never."""
    return expires_ms != 0 and wall_ms >= due_ms + expires_ms


def is_too_late(due_ms: int, dispatched_ms: int) -> bool:
    """Whether a message with `late: drop` was dispatched too late."""
    return dispatched_ms - due_ms > LATE_MS


def is_dropped(record: Record, due_ms: int, dispatched_ms: int) -> bool:
    """Whether dispatch drops a message: it has expired, or is late and unwanted then."""
    if record.drop_late and is_too_late(due_ms, dispatched_ms):
        return True
    return record.expires_ms != 0 and has_expired(due_ms, record.expires_ms, dispatched_ms)
