"""The one place that knows key bytes. All big-endian, so that byte order is timeline order.

    messages     slice start (6) · generation (2) · shard (2) · at (6) · seq (6)    22 bytes
    slices       start (6) · generation (2)                                          8
    shards       start (6) · generation (2) · shard (2)                             10
    held         due (6) · seq (6)                                                  12
    dispatches   at (6) · seq (6) of the last message of a dispatch turn            12
    moved        message id (16)                                                    16
    dedupe       hash of user and key (16)                                          16
    structures   number (2)                                                          2
    deliveries   kind (1) · the parts that delivery_rows.py, kept.py and ended.py list   7 to 37
    meta         a name (tables.py) · of an owner's counters "owned/" and its name, UTF-8 ·
                 of a slice's cells "cells/" · start (6) · generation (2) · of a withheld message
                 "withheld/" · at (6) · seq (6)
    received     client id, UTF-8 · 0 · packet id (2)
    sessions, cursors, schedules, endpoints, retained: the name or topic, UTF-8
    retained by position   0xff · at (6) · seq (6), behind every topic              13

A shard's first ten bytes are `Shard.prefix`, a position's twelve are `place(position)`.
"""

from hashlib import blake2b

from timeline.position import ID_BYTES, POSITION_BYTES, MessageId, Position
from timeline.slices import Home

MESSAGE_KEY_BYTES = 22
"""Bytes of a key of `messages`. A shard's `bytes` count its values, and this for each row."""
GROUP_PREFIX = "\0share/"
"""Groups have their rows among the sessions', under names that no client id can have."""
ENDPOINT_PREFIX = "$endpoint/"
"""Begins the text, and the displayed name, of an endpoint's group."""
LAST = b"\xff" * 24
"""Above every key of the tables with fixed keys."""
WHOSE_BYTES = 8
"""Bytes of the hash by which a place is called."""
STATE, RECORD, WAITS_OF, WAITS, DEAD, DEAD_OF = b"\0", b"\1", b"\2", b"\3", b"\4", b"\5"
MOVED, WAITING_COUNT, DROPPED, KEPT, RESULT = b"\6", b"\7", b"\x08", b"\x09", b"\x0a"
ENDED, ENDS, QUARTERS = b"\x0b", b"\x0c", b"\x0d"
"""First bytes of the keys of `deliveries`."""
AT_BYTES = slice(10, 16)
"""Where `at` is in a key of `messages`."""


def place(position: Position) -> bytes:
    return position.to_bytes(POSITION_BYTES, "big")


def place_of(key: bytes) -> Position:
    """The position at the end of a key of `messages`, `held` or `dispatches`."""
    return Position(int.from_bytes(key[-POSITION_BYTES:], "big"))


def message(message_id: MessageId) -> bytes:
    return message_id.to_bytes(ID_BYTES, "big")


def message_of(key: bytes) -> MessageId:
    return MessageId(int.from_bytes(key, "big"))


def slice_key(home: Home) -> bytes:
    return (home.start_ms << 16 | home.generation).to_bytes(8, "big")


def slice_of(key: bytes) -> Home:
    number = int.from_bytes(key[:8], "big")
    return Home(number >> 16, number & 0xFFFF)


def under(prefix: bytes) -> tuple[bytes, bytes]:
    """The bounds [start, end) of the keys that begin with a prefix: a slice's key, a shard's, a name's."""
    return prefix, (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def span_range(prefix: bytes, start_ms: int, end_ms: int) -> tuple[bytes, bytes]:
    """The bounds of a shard's rows with start_ms <= at < end_ms."""
    low, high = start_ms << 48, min(end_ms << 48, (1 << 96) - 1)
    return prefix + low.to_bytes(12, "big"), prefix + high.to_bytes(12, "big")


def shard_of(key: bytes) -> tuple[Home, int]:
    return slice_of(key), int.from_bytes(key[8:10], "big")


def structure(number: int) -> bytes:
    return number.to_bytes(2, "big")


CELLS = b"cells/"


def cells_key(home: Home) -> bytes:
    """The row of `meta` with the cells of a slice."""
    return CELLS + slice_key(home)


WITHHELD = b"withheld/"


def withheld(position: Position) -> bytes:
    """The row of `meta` of a withheld message."""
    return WITHHELD + place(position)


OWNED = b"owned/"


def owned(owner: bytes) -> bytes:
    return OWNED + owner


def owner_in(key: bytes) -> bytes:
    """The owner in a counter's key of `meta`."""
    return key[len(OWNED) :]


def hash_of(text: str) -> bytes:
    """How a place or a name is called in keys; two may share it."""
    return blake2b(text.encode(), digest_size=WHOSE_BYTES).digest()


def state(whose: bytes, root: Position) -> bytes:
    """The state of a delivery."""
    return STATE + whose + root.to_bytes(POSITION_BYTES, "big")


def state_in(key: bytes) -> tuple[bytes, Position]:
    """Whose state stands under a key: the place and the root."""
    return key[1 : 1 + WHOSE_BYTES], place_of(key)


def record(root: Position, whose: bytes) -> bytes:
    """The record of a delivery."""
    return RECORD + root.to_bytes(POSITION_BYTES, "big") + whose


def delivery(prefix: bytes, at: Position, whose: bytes = b"") -> bytes:
    """A key of `deliveries`. `prefix`: its first byte, and what stands before the position; `whose`: what
    stands behind it."""
    return prefix + at.to_bytes(POSITION_BYTES, "big") + whose


def since(prefix: bytes, at_ms: int) -> bytes:
    """The first key of `deliveries` under the prefix that is of that time or later."""
    return prefix + at_ms.to_bytes(6, "big")


def time_in(key: bytes) -> int:
    """The time behind the first byte of a key of `deliveries`, ms."""
    return int.from_bytes(key[1:7], "big")


def root_of(key: bytes) -> Position:
    """The root in front of the place at the end of a key."""
    return place_of(key[:-WHOSE_BYTES])


def whose_of(key: bytes) -> bytes:
    """The place at the end of a key."""
    return key[-WHOSE_BYTES:]


def received(client_id: str, packet_id: int) -> bytes:
    return client_id.encode() + b"\0" + packet_id.to_bytes(2, "big")


def retained_at(position: Position) -> bytes:
    """The row of `retained` that names the topic of the message at a position."""
    return b"\xff" + place(position)


def is_of_group(key: bytes) -> bool:
    """Whether a key of `sessions` or `cursors` belongs to a group."""
    return key.startswith(GROUP_PREFIX.encode())


def received_range(client_id: str) -> tuple[bytes, bytes]:
    """The bounds of a client's rows in `received`; client ids hold no NUL."""
    return under(client_id.encode() + b"\0")
