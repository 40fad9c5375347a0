"""What dispatch makes of a message that is past its time, told from the record and the clock.

Nothing is written when a message is dispatched or dropped. So the server at the moment of dispatch, a look-up
a week later and the archive all ask here, with the time at which dispatch came to it.

For those who get it later than that (a session that was away, a new subscription that is sent what is
retained) the clock decides as well: `is_over`. There, at once means at once.
"""

from .fields import Record

LATE_MS = 1_000
"""What `late: drop` counts as late: a dispatch more than this after the due."""
AT_ONCE_MS = 1
"""Expiry of a message that is for those who are there when it is dispatched (an interval of 0 s)."""


def has_expired(due_ms: int, expires_ms: int, dispatched_ms: int) -> bool:
    """Whether a message that expires has done so when dispatch comes: at once means a little late, too."""
    return dispatched_ms >= due_ms + (LATE_MS if expires_ms == AT_ONCE_MS else expires_ms)


def is_over(due_ms: int, expires_ms: int, wall_ms: int) -> bool:
    """Whether a message has expired for those who would get it at `wall_ms`, after its dispatch; 0: never."""
    return expires_ms != 0 and wall_ms >= due_ms + expires_ms


def is_too_late(due_ms: int, dispatched_ms: int) -> bool:
    """Whether dispatch came too late to a message with `late: drop`."""
    return dispatched_ms - due_ms > LATE_MS


def is_dropped(record: Record, due_ms: int, dispatched_ms: int) -> bool:
    """Whether nobody gets a message when it is dispatched: it has expired, or is unwanted so late."""
    if record.drop_late and is_too_late(due_ms, dispatched_ms):
        return True
    return record.expires_ms != 0 and has_expired(due_ms, record.expires_ms, dispatched_ms)
