"""Values of the small tables: directory rows, the stored cursor, dedupe, sessions.

shards    structure (2) · count (4) · live (4) · bytes (8) · first (12) · last (12)        42 bytes
slices    end ms (8) · running seconds when passed, plus 1; 0: not yet (8) ·
          of one that borrows, too: 1 (1) · count (4) · live (4) · bytes (8) of what it borrows ·
          for each run of borrowed shards: start (6) · generation (2) · first shard (2) · how many (2)
          (format 1: for each borrowed shard start · generation · shard · structure (2), and no counts)
meta      "cursor": horizon (12) · bound ms (8) · seq (8) · running ms (8) · floor (12)
          "format": the format version, ASCII digits · "zones": version of the time zone database, text
          "owned/" and a name: of the messages of an owner, placed (8) · passed (8) · their bytes placed (8) ·
          bytes passed (8)
          "cells/" and a slice: histogram of its messages over time (cells.py)
          "retained": empty, there when `retained` is indexed by position
          "dead": dead letters (8) · their bytes (8) · none is before this position (12)
          "kept": MessagePack of `KeptRow`: of all places · "ended": MessagePack of `EndedSize`
          "applied": the record of a log up to which the rows are, sequence (8) · epoch (8)
          "seal": the rest of that record's seal, sequence (8) · version (1) · digest (16)
deliveries  MessagePack of `StateRow` and `RecordRow`, and what names them (delivery_rows.py)
dedupe    message id (16) · fingerprint (16) · due ms (8) · position (12)
          of a key with a version or a debounce: then 1 if it has a version, else 0 (1) · the version, two
          signed numbers (16) · until when a debounce may move the message, ms, 0: none (8)
          of a batch: fingerprint (16) · position (12) · for each item its message id (16), zeros: refused
moved     the id that names the row now (16)
dispatches  wall ms of the dispatch turn (8)
sessions  MessagePack of `SessionRow`; of a group `GroupRow` · cursors  MessagePack of `CursorRow`
"""

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from timeline.position import ID_BYTES, POSITION_BYTES, MessageId, Position
from timeline.slices import Counts, Shard, Slice

from . import keys
from .errors import Corrupt
from .fields import TryRow
from .log.record import VERSION, Seal

Row = TypeVar("Row")
Whole = Annotated[int, msgspec.Meta(ge=0)]
RowAddress = tuple[Position, int]
"""Address of a placed row: its position, and the number of its shard."""

FORMAT_FIRST = 1
"""Format of release 0.1.0, which has no owners, no retries and no rows of groups. Opening raises it to
FORMAT."""
FORMAT = 10
"""The format that this program writes. No release wrote those between: they are refused."""
WAITING, DEAD, DROPPED, WITHHELD, DONE = 1, 2, 3, 4, 5
"""States of a delivery that has a row: it waits for its next try, is a dead letter, was dropped undone, waits
until its sender may send it, or is done and kept (kept.py)."""
UNDONE = WAITING, WITHHELD
META_CURSOR = b"cursor"
NEVER_S = 0xFFFF_FFFF
"""The expiry of a group that stays until it is deleted."""
META_FORMAT = b"format"
META_NUMBER = b"number"
META_ZONES = b"zones"
META_RETAINED = b"retained"
META_DEAD = b"dead"
META_KEPT = b"kept"
META_ENDED = b"ended"
META_APPLIED = b"applied"
META_LEADER = b"leader"
META_SEAL = b"seal"
META_TIMELINE = b"timeline"

_SHARD = Struct(">HIIQ12s12s")
_SLICE = Struct(">QQ")
_PART = Struct(">BIIQ")
_RUN = Struct(">10sH")
_COUNTED = 1
_CURSOR = Struct(">12sQQQ12s")
_DEDUPE = Struct(">16s16sQ12s")
_KEY_EXTRA = Struct(">BqqQ")
_BATCH = Struct(">16s12s")
_NUMBER = Struct(">Q")
_OWNED = Struct(">qqqq")
_KEPT = Struct(">QQ12s")
_APPLIED = Struct(">QQ")
_SEAL = Struct(">QB16s")


class Run(NamedTuple):
    """Consecutively numbered shards of one home: the prefix of the first, and how many."""

    prefix: bytes
    many: int


class OwnedRow(NamedTuple):
    """An owner's accepted messages, and how many of them the horizon has passed. Then the bytes of both."""

    placed: int
    passed: int
    placed_bytes: int
    passed_bytes: int


class StoredCursor(msgspec.Struct, frozen=True):
    """Written with every batch: the dispatch horizon, and the bound up to which it may go."""

    horizon: Position
    bound_ms: int
    seq: int
    running_ms: int
    floor: Position


class KeyExtra(msgspec.Struct, frozen=True):
    """Values stored with an idempotency key, besides its message."""

    version: tuple[int, int] | None = None
    """The highest version of an upsert; None: no upsert had one."""
    until_ms: int = 0
    """Until when a debounce may move the message; 0: it was not debounced."""


NO_EXTRA = KeyExtra()


class DedupeRow(msgspec.Struct, frozen=True):
    """The first answer to an idempotency key. `id` 0: a version is known under the key, and no message."""

    id: MessageId
    fingerprint: bytes
    due_ms: int
    position: Position
    extra: KeyExtra = NO_EXTRA


class BatchRow(msgspec.Struct, frozen=True):
    """The first answers to a batch under a key of its own."""

    fingerprint: bytes
    position: Position
    """Retention forgets the key when it passes this place."""
    names: bytes
    """The id of each item's message; zeros: refused. Made to ids only when asked for: 10,000 take 4 ms."""

    @property
    def count(self) -> int:
        """Items of the batch."""
        return len(self.names) // ID_BYTES

    @property
    def ids(self) -> list[MessageId]:
        """The message of each item; 0: refused."""
        places = range(0, len(self.names), ID_BYTES)
        return [keys.message_of(self.names[at : at + ID_BYTES]) for at in places]


class SubscriptionRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    filter: str
    qos: int
    since: bytes
    options: int = 0
    identifier: int = 0
    retained_request: int = 0
    """Number of its last request for retained messages, counted per session; 0: never."""
    ack_timeout_ms: Whole | None = None
    """The subscription's terms (timeline/session.py); None: not set."""
    max_attempts: Whole | None = None
    backoff_ms: Annotated[list[Whole], msgspec.Meta(min_length=1)] | None = None


class SessionRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A persistent session, without its cursor."""

    expiry_s: int
    subscriptions: list[SubscriptionRow]
    left_ms: int = 0
    """When its connection ended, wall ms, for display; 0: it has not."""
    will_id: bytes = b""
    """The delayed will to cancel when the client returns."""
    will: bytes = b""
    """Record of a connected client's will: published if the server restarts and the client does not
    return."""
    will_delay_s: int = 0
    left_running_ms: int = 0
    """Running time of the server when its connection ended: start of its expiry; 0: unknown."""
    doubt: bytes = b""
    """Position: the client may have had messages due before its ms and placed up to its seq."""
    owner: str = ""
    """Name of the key that the client used; empty: none."""
    incarnation: Whole = 0
    """Number of the session among those of its client id; 0: an older version had none."""


class GroupRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A shared subscription, without its cursor, independent of its members."""

    subscription: SubscriptionRow
    expiry_s: Whole | None = None
    """Lifetime without members, s; NEVER_S: until it is deleted; None: not set, as a session."""
    rate: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Maximum messages a second; 0: no limit."""
    left_ms: int = 0
    """When the last connection of a member ended, wall ms, for display; 0: it has not."""
    left_running_ms: int = 0
    """The same in running time of the server: start of its expiry."""
    owner: str = ""
    """Name of its last member's key, used while it has no member, ..."""
    client: str = ""
    """... and that member's client id."""
    is_paused: bool = False
    incarnation: Whole = 0
    """Number of the group among those of its name; 0: an older version had none."""
    order: Whole = 0
    """1: messages of an ordering key are delivered one at a time, in order. 2: the group no longer orders,
    but messages that waited for their keys are still delivered in order. 0: it does not order."""
    holds_dead: bool = False
    """A dead letter holds its key."""
    concurrency: Whole = 0
    """Maximum messages of one ordering key at a time; 0: any number."""
    key_rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Maximum messages of one ordering key a second; 0: no limit."""
    is_fair: bool = False
    """Ordering keys take turns."""
    doubt: bytes = b""
    """As of a session."""
    keep_ms: int | None = None
    """-1: what has failed, 0: nothing, -2: all; else: all for so long."""
    result_ttl_ms: Whole | None = None
    alerts: str = ""
    """Endpoint that alerts go to, and the key that set it."""
    alerts_by: str = ""


class FlightRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A message sent to a session, and not acked yet."""

    packet_id: int
    place: bytes
    qos: int = 1
    phase: int = 0
    attempts: int = 1
    shard: int = 0
    is_retained: bool = False
    share: str = ""
    """The shared subscription by which it came, as subscribed to; empty: none."""
    returns: Whole = 0
    """Group: times that a member has returned the message in order, without a try."""
    until_ms: Whole = 0
    """Group: end of the message's lease, ms of running time; 0: none."""
    number: Whole = 0
    """Group: number of that lease (timeline/session.py `Loan.number`); 0: unknown."""
    lost_ms: Whole = 0
    """When it was resent, wall ms; 0: never, or unknown in an older version."""
    holder: Whole = 0
    """Group: the client that has it over MQTT; 0: none. Without `until_ms` its lease has no end."""
    progress: bytes = b""
    """Group: how far its member is, JSON; empty: unknown."""


class CursorRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Read position of a session: all up to `place` is read, except what is in flight, in order."""

    place: bytes
    flights: list[FlightRow] = []
    retained_done: int = 0
    """Subscriptions numbered up to this have been sent all their retained messages, ..."""
    topic: bytes = b""
    """... and the next one up to this topic."""
    retired: list[int] = []
    """Packet ids of QoS 2 exchanges that the server gave up and the client has not ended."""
    finished: list[bytes] = []
    """Finished positions behind `place`."""


class StateRow(msgspec.Struct, frozen=True, array_like=True):
    """The state of a delivery: of a message at one place."""

    state: int
    """WAITING, DEAD, DROPPED, WITHHELD or DONE."""
    at: bytes
    """Position: when its next try is due, when it died, was done, or is given up."""
    attempts: int
    """Deliveries to the place, in all."""
    counted: Whole
    """Those that count toward `max_attempts`."""
    reason: str
    """Why the last delivery failed."""
    keeper: str
    """Name of the key that the place's clients used; empty: none, or several."""
    running_ms: int
    """Running time of the server at its last change: start of a dead letter's retention."""
    due_ms: Whole = 0
    """From when on its expiry counts, ms; 0: from when the message was due."""
    tries: list[TryRow] = []
    """The last tries, oldest first."""
    returns: Whole = 0
    """Times that the message was returned in order, which was no delivery."""


class RecordRow(msgspec.Struct, frozen=True, array_like=True):
    """What of a delivery never changes."""

    addressee: str
    """The session or group by the name in its rows, ..."""
    group: str
    """... and as users call it."""
    incarnation: Whole
    """Number of the place among those of its name; 0: an older version had none."""
    id: bytes
    shard: Whole
    record: bytes
    """The message as it was stored; empty of a dropped one."""


class KeptRow(msgspec.Struct, frozen=True, array_like=True):
    """What a place keeps of its deliveries that are done (kept.py)."""

    count: int = 0
    size: int = 0
    """Bytes."""
    results: int = 0
    """How many have a result, ..."""
    result_size: int = 0
    """... and the bytes of these."""
    first: bytes = b""
    """Position: no root of them is before it, ..."""
    first_result: bytes = b""
    """... and no `at` of a result is before this one. To scan what was deleted takes 1 us a row."""


class EndRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """How a delivery ended (ended.py), without its root. `place`: as users call it, of which `kind`."""

    place: str
    kind: str
    incarnation: Whole
    end: str
    attempts: Whole = 0
    reason: str = ""
    by: str = ""
    """Who had it for its last try, ..."""
    held_ms: Whole = 0
    """... and how long; 0: unknown."""
    id: bytes = b""
    """Empty: the message's row at the root says it, in the shard of this number."""
    shard: int = -1


class EndsRow(msgspec.Struct, frozen=True, array_like=True):
    """How many deliveries of a place ended in a minute, by end."""

    place: str
    kind: str
    incarnation: Whole
    counts: dict[str, Whole]


class EndedSize(msgspec.Struct, frozen=True, array_like=True):
    """What the journal of ends takes: of a quarter of an hour, or all of it."""

    rows: int = 0
    size: int = 0
    """Bytes."""


class KeptTotals(msgspec.Struct, frozen=True):
    """Number of dead letters, and their bytes."""

    count: int
    bytes: int
    oldest: Position
    """None is before it."""


encode_row = msgspec.msgpack.Encoder().encode
_ARRAY_32 = 0xDD.to_bytes(1, "big")


def reading(kind: type[Row]) -> Callable[[bytes], Row]:
    """A function that decodes a MessagePack row of this kind; it raises Corrupt."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(value: bytes) -> Row:
        try:
            return decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"row of {len(value)} bytes: {error}") from error

    return read


session_of = reading(SessionRow)
group_of = reading(GroupRow)
cursor_row_of = reading(CursorRow)
_state_row = reading(StateRow)
_record_row = reading(RecordRow)
kept_row_of = reading(KeptRow)
end_row_of = reading(EndRow)
ends_row_of = reading(EndsRow)
ended_size_of = reading(EndedSize)


def state_row_of(value: bytes) -> StateRow:
    """Raises Corrupt."""
    row = _state_row(value)
    if len(row.at) != POSITION_BYTES or row.state not in (WAITING, DEAD, DROPPED, WITHHELD, DONE):
        raise Corrupt(f"state {row.state} at {row.at.hex()} is none")
    return row


def record_row_of(value: bytes) -> RecordRow:
    """Raises Corrupt."""
    row = _record_row(value)
    if len(row.id) != ID_BYTES:
        raise Corrupt(f"{len(row.id)} bytes are no id")
    return row


def encoded_rows(rows: list[bytes]) -> msgspec.Raw:
    """Join encoded values to an array, as a field of a row."""
    return msgspec.Raw(b"".join([_ARRAY_32, len(rows).to_bytes(4, "big"), *rows]))


def shard_value(shard: Shard) -> bytes:
    first, last = keys.place(shard.first), keys.place(shard.last)
    return _SHARD.pack(shard.structure, shard.count, shard.live, shard.bytes, first, last)


def shard_from(key: bytes, value: bytes) -> Shard:
    """Raises Corrupt."""
    home, number = keys.shard_of(key)
    structure, count, live, size, first, last = unpacked(_SHARD, value)
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
    """Runs of consecutive prefixes, as numbers: the first, and how many."""
    first = count = 0
    for prefix in sorted(int.from_bytes(shard.prefix, "big") for shard in shards):
        if prefix != first + count and count:
            yield first, count
            count = 0
        first, count = (first, count + 1) if count else (prefix, 1)
    if count:
        yield first, count


def slice_from(key: bytes, value: bytes) -> tuple[Slice, list[Run], Counts | None]:
    """The slice without its shards, the runs of borrowed ones, and the counts of what it holds of them.

    Counts None: a row of format 1. Raises Corrupt.
    """
    home = keys.slice_of(key)
    end_ms, passed = unpacked(_SLICE, value[: _SLICE.size])
    piece = Slice(home.start_ms, end_ms, home.generation)
    piece.passed_s = passed - 1 if passed else None
    tail = value[_SLICE.size :]
    if len(tail) % _RUN.size == 0:
        # Each shard by itself, with its structure in place of a count.
        runs = [Run(prefix, 1) for prefix, _ in _RUN.iter_unpack(tail)]
        return piece, runs, None if runs else Counts()
    _, *part = unpacked(_PART, tail[: _PART.size])
    if tail[0] != _COUNTED or (len(tail) - _PART.size) % _RUN.size:
        raise Corrupt(f"row of {len(value)} bytes, which is none of a slice")
    runs = [Run(*run) for run in _RUN.iter_unpack(tail[_PART.size :])]
    if any(int.from_bytes(run.prefix[8:], "big") + run.many > 1 << 16 for run in runs):
        raise Corrupt("a run of more shards than a slice can have")
    return piece, runs, Counts(*part)


def prefixes_of(runs: Iterable[Run]) -> Iterator[bytes]:
    """Prefixes of the shards in some runs."""
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
    horizon, bound_ms, seq, running_ms, floor = unpacked(_CURSOR, value)
    return StoredCursor(keys.place_of(horizon), bound_ms, seq, running_ms, keys.place_of(floor))


def dedupe_value(row: DedupeRow) -> bytes:
    return known_value(row.id, row.fingerprint, row.due_ms, row.position) + extra_value(row.extra)


def extra_value(extra: KeyExtra) -> bytes:
    """The end of a `DedupeRow`."""
    if extra == NO_EXTRA:
        return b""
    return _KEY_EXTRA.pack(extra.version is not None, *(extra.version or (0, 0)), extra.until_ms)


def known_value(name: MessageId, fingerprint: bytes, due_ms: int, position: Position) -> bytes:
    """Encode a `DedupeRow` without an extra; one is written for each message with a key."""
    place = position.to_bytes(POSITION_BYTES, "big")
    return _DEDUPE.pack(name.to_bytes(ID_BYTES, "big"), fingerprint, due_ms, place)


def dedupe_from(value: bytes) -> DedupeRow:
    """Raises Corrupt."""
    message, fingerprint, due_ms, place = unpacked(_DEDUPE, value[: _DEDUPE.size])
    extra = NO_EXTRA
    if len(value) > _DEDUPE.size:
        has_version, *version, until_ms = unpacked(_KEY_EXTRA, value[_DEDUPE.size :])
        extra = KeyExtra((version[0], version[1]) if has_version else None, until_ms)
    return DedupeRow(keys.message_of(message), fingerprint, due_ms, keys.place_of(place), extra)


def batch_value(row: BatchRow) -> bytes:
    return _BATCH.pack(row.fingerprint, row.position.to_bytes(POSITION_BYTES, "big")) + row.names


def batch_from(value: bytes) -> BatchRow:
    """Raises Corrupt."""
    names = value[_BATCH.size :]
    if len(names) % ID_BYTES:
        raise Corrupt(f"row of {len(value)} bytes, which is none of a key")
    fingerprint, place = unpacked(_BATCH, value[: _BATCH.size])
    return BatchRow(fingerprint, keys.place_of(place), names)


def dedupe_row_of(value: bytes) -> DedupeRow | BatchRow:
    """Either row of `dedupe`: their lengths differ. Raises Corrupt."""
    is_of_message = len(value) in (_DEDUPE.size, _DEDUPE.size + _KEY_EXTRA.size)
    return dedupe_from(value) if is_of_message else batch_from(value)


def number_value(number: int) -> bytes:
    """Encode a wall time in ms, or a count."""
    return _NUMBER.pack(number)


def number_from(value: bytes) -> int:
    """Raises Corrupt."""
    return int(unpacked(_NUMBER, value)[0])


def applied_value(applied: Seal) -> bytes:
    return _APPLIED.pack(applied.seq, applied.epoch)


def seal_value(applied: Seal) -> bytes:
    return _SEAL.pack(applied.seq, VERSION, applied.digest)


def applied_from(applied: bytes, seal: bytes) -> Seal:
    """Decode a record's seal from its two rows. Raises Corrupt."""
    seq, epoch = unpacked(_APPLIED, applied)
    _, _, digest = unpacked(_SEAL, seal)
    return Seal(seq, epoch, digest)


def owned_value(placed: int, passed: int, placed_bytes: int, passed_bytes: int) -> bytes:
    """Encode an owner's accepted and passed messages, and their bytes."""
    return _OWNED.pack(placed, passed, placed_bytes, passed_bytes)


def owned_from(value: bytes) -> OwnedRow:
    """Raises Corrupt."""
    return OwnedRow(*unpacked(_OWNED, value))


def kept_totals_value(totals: KeptTotals) -> bytes:
    return _KEPT.pack(totals.count, totals.bytes, keys.place(totals.oldest))


def kept_totals_from(value: bytes) -> KeptTotals:
    """Raises Corrupt."""
    count, size, oldest = unpacked(_KEPT, value)
    return KeptTotals(count, size, keys.place_of(oldest))


def unpacked(layout: Struct, value: bytes) -> tuple[Any, ...]:
    """Raises Corrupt for another length."""
    if len(value) != layout.size:
        raise Corrupt(f"row of {len(value)} bytes where {layout.size} belong")
    return layout.unpack(value)
