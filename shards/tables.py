"""Values of the small tables: directory rows, the stored cursor, dedupe, sessions.

shards    structure (2) · count (4) · live (4) · bytes (8) · first (12) · last (12)        42 bytes
slices    end ms (8) · running seconds when passed, +1, 0: not yet (8) ·
          of one that borrows, too: 1 (1) · count (4) · live (4) · bytes (8) of what it borrows ·
          for each run of borrowed shards: start (6) · generation (2) · first shard (2) · how many (2)
          (before format 4: for each borrowed shard start · generation · shard · structure (2), and no counts)
meta      "cursor": horizon (12) · bound ms (8) · seq (8) · running ms (8) · floor (12)
          "format": the format version, ASCII digits · "zones": version of the time zone database, text
          "owned/" and a name: of the messages of an owner, placed (8) · passed (8) · their bytes placed (8) ·
          bytes passed (8); without the bytes: these are to be counted
          "cells/" and a slice: when its messages are (cells.py)
          "retained": empty, there when `retained` is indexed by position
          "dead": dead letters (8) · their bytes (8) · none is before this position (12)
          "retrying": the same of retries
          "applied": up to which record of a log the rows are, sequence (8) · epoch (8)
retries, dead   MessagePack of `KeptRow` · empty in the rows that name one
          in `retries`, by whose they are: how many (8)
dedupe    message id (16) · fingerprint (16) · due ms (8) · position (12)
moved     the id that names the row now (16)
dispatches  wall ms of the dispatch turn (8)
sessions  MessagePack of `SessionRow`; of a group `GroupRow` · cursors  MessagePack of `CursorRow`
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from timeline.position import ID_BYTES, POSITION_BYTES, MessageId, Position, id_position
from timeline.slices import Counts, Shard, Slice

from . import keys
from .errors import Corrupt
from .fields import TryRow

Row = TypeVar("Row")
Whole = Annotated[int, msgspec.Meta(ge=0)]
Spot = tuple[Position, int]
"""Where a row is that has been placed: its position, and the number of its shard."""

FORMAT_FIRST = 1
"""Of release 0.1.0. Opening raises it to FORMAT, and 2 to 4 too: no release wrote those."""
FORMAT = 5
"""What this program writes. Since 5 a retry is a row of `retries` alone, none of the timeline."""
META_CURSOR = b"cursor"
NEVER_S = 0xFFFF_FFFF
"""The expiry of a group that stays until it is deleted."""
META_FORMAT = b"format"
META_ZONES = b"zones"
META_RETAINED = b"retained"
META_DEAD = b"dead"
META_RETRIES = b"retrying"
META_APPLIED = b"applied"
META_LEADER = b"leader"

_SHARD = Struct(">HIIQ12s12s")
_SLICE = Struct(">QQ")
_PART = Struct(">BIIQ")
_RUN = Struct(">10sH")
_COUNTED = 1
_CURSOR = Struct(">12sQQQ12s")
_DEDUPE = Struct(">16s16sQ12s")
_WALL = Struct(">Q")
_OWNED = Struct(">qq")
_OWNED_SIZED = Struct(">qqqq")
_KEPT = Struct(">QQ12s")
_APPLIED = Struct(">QQ")


class Run(NamedTuple):
    """Shards of one home whose numbers follow each other: the prefix of the first, how many."""

    prefix: bytes
    many: int


class Applied(NamedTuple):
    """A place in a log of group commits, and under whose lead it was written. Zeros: before the first."""

    seq: int
    epoch: int

    def __str__(self) -> str:
        return f"with the log up to record {self.seq:,} of epoch {self.epoch:,}"


class OwnedRow(NamedTuple):
    """How much of an owner has come in, and how much of that the horizon has passed."""

    placed: int
    passed: int
    sizes: tuple[int, int] | None
    """Bytes of both; None: an older version did not count them."""


class StoredCursor(msgspec.Struct, frozen=True):
    """What every batch writes: how far dispatch has come and how far it may go."""

    horizon: Position
    bound_ms: int
    seq: int
    running_ms: int
    floor: Position


class DedupeRow(msgspec.Struct, frozen=True):
    """The first answer to an idempotency key."""

    id: MessageId
    fingerprint: bytes
    due_ms: int
    position: Position


class SubscriptionRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    filter: str
    qos: int
    since: bytes
    options: int = 0
    identifier: int = 0
    asked: int = 0
    """When it last asked for what is retained, counted per session; 0: never."""
    ack_timeout_ms: Whole | None = None
    """Its terms (timeline/session.py); None: not said."""
    max_attempts: Whole | None = None
    backoff_ms: Annotated[list[Whole], msgspec.Meta(min_length=1)] | None = None


class SessionRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a persistent session is, apart from where it stands."""

    expiry_s: int
    subscriptions: list[SubscriptionRow]
    left_ms: int = 0
    """When its connection ended, wall ms, for people; 0: it has not."""
    will_id: bytes = b""
    """The delayed will that is to be cancelled when the client returns."""
    will: bytes = b""
    """Record of the will of a client that is connected: published if the server starts again without it."""
    will_delay_s: int = 0
    left_running_ms: int = 0
    """Running time of the server when its connection ended, from which its expiry counts; 0: not known."""
    doubt: bytes = b""
    """Position: the client may have had what is due before its ms and was placed up to its seq."""
    owner: str = ""
    """Name of the key that the client has shown; empty: none."""
    incarnation: Whole = 0
    """Which session of that client id it is; 0: an older version had no numbers."""


class GroupRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a shared subscription is, apart from where it stands, whoever its members are."""

    subscription: SubscriptionRow
    expiry_s: Whole | None = None
    """How long it stays with nobody there; NEVER_S: until it is deleted; None: not said, as a session."""
    rate: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Messages a second that it is given; 0: any number."""
    left_ms: int = 0
    """When the last connection of a member ended, wall ms, for people; 0: it has not."""
    left_running_ms: int = 0
    """The same in running time of the server, from which its expiry counts."""
    owner: str = ""
    """Name of the key of who was its last member, which counts while it has none, ..."""
    client: str = ""
    """... and the client id."""
    is_paused: bool = False
    incarnation: Whole = 0
    """Which group of that name it is; 0: an older version had no numbers."""


class FlightRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A message that a session was sent and has not acked."""

    packet_id: int
    place: bytes
    qos: int = 1
    phase: int = 0
    attempts: int = 1
    shard: int = 0
    is_retained: bool = False
    share: str = ""
    """The shared subscription, as it was subscribed to, that it came by; empty: none."""
    returns: Whole = 0
    """Of a group: how often a member has returned the message in order, without a try."""
    until_ms: Whole = 0
    """Of a group: end of the lease of who has the message, in ms of running time; 0: none."""
    number: Whole = 0
    """Of a group: which lease that is (timeline/session.py `Loan.number`); 0: not known."""
    lost_ms: Whole = 0
    """When it was sent again, wall ms; 0: never, or an older version did."""


class CursorRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Where a session stands: read up to `place`, but for what is in flight, in order."""

    place: bytes
    flights: list[FlightRow] = []
    asked: int = 0
    """Of what is retained the subscriptions that asked up to this number have been sent all, ..."""
    topic: bytes = b""
    """... and the next one all up to this topic."""
    retired: list[int] = []
    """Packet ids of QoS 2 exchanges that were given up and that the client has not ended."""
    finished: list[bytes] = []
    """Positions behind `place` that are done."""
    reread: bytes = b""
    """Position up to which it may have had what it reads, as somebody has set it back; empty: nowhere."""


class KeptRow(msgspec.Struct, frozen=True, array_like=True):
    """A message that is kept for one place: a retry, or a dead letter."""

    addressee: str
    """The session or group, by the name that its rows have, ..."""
    group: str
    """... and as people call it."""
    id: bytes
    attempts: int
    """Deliveries to it, in all."""
    reason: str
    """Why the last of them came to nothing."""
    keeper: str
    """Name of the key that its clients had shown; empty: none, or several."""
    running_ms: int
    """Running time of the server when it was kept, from which the retention of a dead letter counts."""
    record: bytes
    """The message as it was stored, due of a retry when the next try is."""
    incarnation: Whole = 0
    """Which place of that name it is; 0: an older version had no numbers."""
    counted: Whole = 0
    """Of the deliveries those that count toward `max_attempts`."""
    tries: list[TryRow] = []
    """The last ones, the first of them first."""
    returns: Whole = 0
    """How often the message was returned in order, which was no delivery."""
    stood_as: bytes = b""
    """The id of the row that was delivered, if the message has another one, as it had been moved: whoever
    names it by where it stood finds it still when its slice has gone."""

    def is_of(self, addressee: str, incarnation: int) -> bool:
        """Whether it is kept for this very place, and for no former one of the name."""
        return self.addressee == addressee and self.incarnation == incarnation

    @property
    def origin(self) -> Position:
        """Where the row that was delivered stands, or stood."""
        return id_position(keys.message_of(self.stood_as or self.id))


class KeptTotals(msgspec.Struct, frozen=True):
    """How many retries or dead letters there are, and their bytes."""

    count: int
    bytes: int
    oldest: Position
    """None stands before it."""


_session = msgspec.msgpack.Decoder(SessionRow)
_group = msgspec.msgpack.Decoder(GroupRow)
_kept_row = msgspec.msgpack.Decoder(KeptRow)
_cursor_row = msgspec.msgpack.Decoder(CursorRow)
encode_row = msgspec.msgpack.Encoder().encode
_ARRAY_32 = 0xDD.to_bytes(1, "big")


def session_of(value: bytes) -> SessionRow:
    """Raises Corrupt."""
    return decoded(_session, value)


def group_of(value: bytes) -> GroupRow:
    """Raises Corrupt."""
    return decoded(_group, value)


def cursor_row_of(value: bytes) -> CursorRow:
    """Raises Corrupt."""
    return decoded(_cursor_row, value)


def kept_row_of(value: bytes) -> KeptRow:
    """Raises Corrupt."""
    row = decoded(_kept_row, value)
    if len(row.id) != ID_BYTES:
        raise Corrupt(f"{len(row.id)} bytes are no id")
    return row


def decoded(decoder: "msgspec.msgpack.Decoder[Row]", value: bytes) -> Row:
    """A row in MessagePack. Raises Corrupt."""
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"row of {len(value)} bytes: {error}") from error


def encoded_rows(rows: list[bytes]) -> msgspec.Raw:
    """Encoded values as an array of them, to be a field of a row."""
    return msgspec.Raw(b"".join([_ARRAY_32, len(rows).to_bytes(4, "big"), *rows]))


def shard_value(shard: Shard) -> bytes:
    first, last = keys.place(shard.first), keys.place(shard.last)
    return _SHARD.pack(shard.structure, shard.count, shard.live, shard.bytes, first, last)


def shard_from(key: bytes, value: bytes) -> Shard:
    """Raises Corrupt."""
    home, number = keys.shard_of(key)
    structure, count, live, size, first, last = _unpacked(_SHARD, value)
    shard = Shard(home, number, structure)
    shard.take(count, live, size, keys.place_of(first), keys.place_of(last))
    return shard


def slice_value(piece: Slice) -> bytes:
    passed = 0 if piece.passed_s is None else piece.passed_s + 1
    head = _SLICE.pack(piece.end_ms, passed)
    if not piece.borrowed:
        return head
    runs = [_RUN.pack(first.to_bytes(10, "big"), count) for first, count in _runs(piece.borrowed.values())]
    return head + _PART.pack(_COUNTED, *piece.part) + b"".join(runs)


def _runs(shards: Iterable[Shard]) -> Iterator[tuple[int, int]]:
    """Prefixes that follow each other, as numbers: the first of them, how many."""
    first = count = 0
    for prefix in sorted(int.from_bytes(shard.prefix, "big") for shard in shards):
        if prefix != first + count and count:
            yield first, count
            count = 0
        first, count = (first, count + 1) if count else (prefix, 1)
    if count:
        yield first, count


def slice_from(key: bytes, value: bytes) -> tuple[Slice, list[Run], Counts | None]:
    """The slice, without its shards, the runs of those it borrows, and what it holds of them.

    None: an older version wrote the row, which did not count. Raises Corrupt.
    """
    home = keys.slice_of(key)
    end_ms, passed = _unpacked(_SLICE, value[: _SLICE.size])
    piece = Slice(home.start_ms, end_ms, home.generation)
    piece.passed_s = passed - 1 if passed else None
    tail = value[_SLICE.size :]
    if len(tail) % _RUN.size == 0:
        # By itself each of them, with its structure in place of a count.
        runs = [Run(prefix, 1) for prefix, _ in _RUN.iter_unpack(tail)]
        return piece, runs, None if runs else Counts()
    _, *part = _unpacked(_PART, tail[: _PART.size])
    if tail[0] != _COUNTED or (len(tail) - _PART.size) % _RUN.size:
        raise Corrupt(f"row of {len(value)} bytes, which is none of a slice")
    runs = [Run(*run) for run in _RUN.iter_unpack(tail[_PART.size :])]
    if any(int.from_bytes(run.prefix[8:], "big") + run.many > 1 << 16 for run in runs):
        raise Corrupt("a run of more shards than a slice can have")
    return piece, runs, Counts(*part)


def prefixes_of(runs: Iterable[Run]) -> Iterator[bytes]:
    """Of the shards in some runs."""
    for run in runs:
        first = int.from_bytes(run.prefix, "big")
        for number in range(first, first + run.many):
            yield number.to_bytes(10, "big")


def structure_from(key: bytes, value: bytes) -> tuple[int, str]:
    """A structure's number and pattern. Raises Corrupt."""
    try:
        return int.from_bytes(key, "big"), value.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"no pattern: {error}") from error


def cursor_value(cursor: StoredCursor) -> bytes:
    horizon, floor = keys.place(cursor.horizon), keys.place(cursor.floor)
    return _CURSOR.pack(horizon, cursor.bound_ms, cursor.seq, cursor.running_ms, floor)


def cursor_from(value: bytes) -> StoredCursor:
    horizon, bound_ms, seq, running_ms, floor = _unpacked(_CURSOR, value)
    return StoredCursor(keys.place_of(horizon), bound_ms, seq, running_ms, keys.place_of(floor))


def dedupe_value(row: DedupeRow) -> bytes:
    return known_value(row.id, row.fingerprint, row.due_ms, row.position)


def known_value(name: MessageId, fingerprint: bytes, due_ms: int, position: Position) -> bytes:
    """The same; one is written for each message that has a key."""
    place = position.to_bytes(POSITION_BYTES, "big")
    return _DEDUPE.pack(name.to_bytes(ID_BYTES, "big"), fingerprint, due_ms, place)


def dedupe_from(value: bytes) -> DedupeRow:
    """Raises Corrupt."""
    message, fingerprint, due_ms, place = _unpacked(_DEDUPE, value)
    return DedupeRow(keys.message_of(message), fingerprint, due_ms, keys.place_of(place))


def wall_value(wall_ms: int) -> bytes:
    return _WALL.pack(wall_ms)


def wall_from(value: bytes) -> int:
    wall_ms: int = _unpacked(_WALL, value)[0]
    return wall_ms


def applied_value(applied: Applied) -> bytes:
    return _APPLIED.pack(*applied)


def applied_from(value: bytes) -> Applied:
    return Applied(*_unpacked(_APPLIED, value))


def owned_value(placed: int, passed: int, sizes: tuple[int, int] | None = None) -> bytes:
    """Of the messages of an owner, how many have come in and how many the horizon has passed. `sizes`: the
    same of their bytes; None: they are to be counted."""
    return _OWNED.pack(placed, passed) if sizes is None else _OWNED_SIZED.pack(placed, passed, *sizes)


def owned_from(value: bytes) -> OwnedRow:
    """Raises Corrupt."""
    if len(value) == _OWNED.size:
        placed, passed = _OWNED.unpack(value)
        return OwnedRow(placed, passed, None)
    placed, passed, placed_bytes, passed_bytes = _unpacked(_OWNED_SIZED, value)
    return OwnedRow(placed, passed, (placed_bytes, passed_bytes))


def kept_totals_value(totals: KeptTotals) -> bytes:
    return _KEPT.pack(totals.count, totals.bytes, keys.place(totals.oldest))


def kept_totals_from(value: bytes) -> KeptTotals:
    """Raises Corrupt."""
    count, size, oldest = _unpacked(_KEPT, value)
    return KeptTotals(count, size, keys.place_of(oldest))


def count_value(count: int) -> bytes:
    return _WALL.pack(count)


def count_from(value: bytes) -> int:
    """Raises Corrupt."""
    return int(_unpacked(_WALL, value)[0])


def _unpacked(layout: Struct, value: bytes) -> tuple[Any, ...]:
    if len(value) != layout.size:
        raise Corrupt(f"row of {len(value)} bytes where {layout.size} belong")
    return layout.unpack(value)
