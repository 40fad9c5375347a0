"""What a request asks for otherwise than the one that has its key: a name of a field, never a value.

Two requests under a key are compared by the bytes of their bodies, of which a digest is kept. Which field
makes the difference is looked for in the message that was stored, and in the one that would be. Times come
last: `deliver_in` comes to another time whenever it is sent, and a message may have been moved since.
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
    "content_type": lambda record: headers_of(record.properties)[1],
    "headers": _headers,
}
LEFT_OUT = frozenset(("payload", "encoding", "content_type", "headers"))
"""Of a message that was cancelled nobody knows these any more."""
TIME = "deliver_at"


def other_field(stored: bytes, wanted: bytes) -> tuple[str, bool]:
    """The first field that differs, and whether the stored message was cancelled.

    Empty: none that is still known, so that only the way of writing may differ.
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
