"""Positions on the timeline, and message ids.

A position is (at, seq): `at` in milliseconds since the epoch, `seq` a number that only grows. Positions are
compared as a whole, thousands of times a second, and end every row key. So a position is a single integer of
96 bits, `at << 48 | seq`: one comparison, one `to_bytes`, and the next position is `+ 1`.

A bound "before millisecond x" is `before(x)`, that is (x, 0): never (x, infinity), because the next message
may still get a position within x.

A message id is 128 bits: at (48), shard (16), node (16), seq (48). It sorts by time and names the row it
was first written to, since shard numbers survive a split of their slice:

    019aa5d1c400 0003 0000 00000000002a     at, shard 3, node 0, seq 42

The node is the number of the timeline, 0 to 15: servers behind one address tell by it whose message it is.
"""

from typing import NewType

Position = NewType("Position", int)
MessageId = NewType("MessageId", int)

SEQ_BITS = 48
SEQ_MAX = (1 << SEQ_BITS) - 1
AT_MAX = (1 << 48) - 1
POSITION_BYTES = 12
ID_BYTES = 16
START = Position(0)
END = Position((1 << 96) - 1)
HELD_SHARD = 0xFFFF
"""The shard number in the id of a message that was written to the table `held`: no shard has it."""


NUMBER_MAX = 15
"""Highest number of a timeline, which stands in the place of the node in its ids."""


class BadId(ValueError):
    """Text that is not a message id."""


def position(at_ms: int, seq: int) -> Position:
    return Position(at_ms << SEQ_BITS | seq)


def before(at_ms: int) -> Position:
    """The bound below every position of the millisecond `at_ms`."""
    return Position(at_ms << SEQ_BITS)


def at_of(place: Position) -> int:
    return place >> SEQ_BITS


def seq_of(place: Position) -> int:
    return place & SEQ_MAX


def message_id(place: Position, shard: int, node: int) -> MessageId:
    return MessageId((place >> 48) << 80 | shard << 64 | node << 48 | place & SEQ_MAX)


def id_position(message: MessageId) -> Position:
    return Position(message >> 80 << 48 | message & SEQ_MAX)


def id_shard(message: MessageId) -> int:
    return message >> 64 & 0xFFFF


def id_node(message: MessageId) -> int:
    return message >> 48 & 0xFFFF


def is_held(message: MessageId) -> bool:
    """Whether it was first written to the table `held`."""
    return id_shard(message) == HELD_SHARD


def id_text(message: MessageId) -> str:
    # Twice as fast as formatting so large an integer, and asked for at each delivery.
    return message.to_bytes(ID_BYTES, "big").hex()


def parse_id(text: str) -> MessageId:
    """Parse an id. Raises BadId unless it is 32 lower-case hex digits."""
    if len(text) != 32 or not set(text) <= set("0123456789abcdef"):
        raise BadId(f"a message id is 32 lower-case hex digits, not {text[:40]!r}")
    return MessageId(int(text, 16))
