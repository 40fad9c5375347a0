"""Finds the field in which a request differs from the earlier one with its key: its name, never a value.

Requests with a key are compared by a digest of their bodies. To name the difference, the stored message is
compared with the new one. Times come last: `deliver_in` gives another time whenever it is sent, and the
message may have been moved.
"""

from collections.abc import Callable

from shards.errors import Corrupt
from shards.fields import Record
from shards.properties import headers_of
from shards.record import decode

from ..observe.trace_context import NAMES

Field = Callable[[Record], object]


def _headers(record: Record) -> object:
    return [pair for pair in headers_of(record.properties)[0] if pair[0] not in NAMES]


FIELDS: dict[str, Field] = {
    "topic": lambda record: record.topic,
    "payload": lambda record: record.payload,
    "encoding": lambda record: record.encoding,
    "qos": lambda record: record.qos,
    "retain": lambda record: record.retain,
    "late": lambda record: record.drop_late,
    "expires_in": lambda record: record.expires_ms,
    "deliver_to": lambda record: record.deliver_to,
    "ordering_key": lambda record: record.ordering_key,
    "content_type": lambda record: headers_of(record.properties)[1],
    "headers": _headers,
}
LEFT_OUT = frozenset(("payload", "encoding", "content_type", "headers"))
"""Unknown for a cancelled message."""
TIME = "deliver_at"


def other_field(stored: bytes, wanted: bytes) -> tuple[str, bool]:
    """The first differing field, and whether the stored message was cancelled.

    Empty: no known field differs, so only the JSON's form may differ.
    """
    if not stored:
        return "", False
    try:
        before, now = decode(stored), decode(wanted)
        is_cancelled = before.stub != 0
        for name, field in FIELDS.items():
            if not (is_cancelled and name in LEFT_OUT) and field(before) != field(now):
                return name, is_cancelled
    except Corrupt:
        return "", False
    return (TIME if before.due_ms != now.due_ms and not is_cancelled else ""), is_cancelled
