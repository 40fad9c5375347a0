"""Corrupt ranges of a table: found, remembered, skipped.

A rotten block of a table file makes every read of it fail, and a scan ends there. The rows before and behind
it are fine. So ranges of rows are read through `scan` here. At the block it searches for the next readable
key, doubling its stride and then halving it (some 200 probes of the engine for a message, 1,100 for a name,
15 us each). It remembers the *corrupt range* between, logs it once, and continues behind it. Later reads skip
known ranges.

    rows       a b c . . . . . . k l m         the block of d to j cannot be read
    scan       a b c                 k l m     the corrupt range (after c, up to k) is remembered

Rows of other, healthy files may lie in a corrupt range: at a rotten block the engine ends the scan of all
files. So the other files are read by themselves for their *keys* (`Store.keys_beside`), which are kept with
the range; a scan yields those that `get` finds. Readable rows between two close bad blocks of one file may be
skipped with them.

A corrupt range covers at least the unreadable rows. Nothing is written into it again (`Reader.seal`), because
nobody would find the row.

Undispatched messages in a corrupt range must not be forgotten. The range is *noted* in the table `meta`, with
the first position that is *owed*; until the note is durable the loader stops before it (`barrier`). A start
tries the noted ranges again: owed messages that are readable then are dispatched late (server/core).

Bounds: 10,000 corrupt ranges; beyond them one reaches to the end of the rows that were read. Kept keys of
KEPT_BYTES in all, and LOOKS_MAX looks beside; rows beyond these bounds are skipped until a repair, and the
log says so.

    meta    "unreadable/" · first key (22)  ->  end (22) · owed (12) · noted ms (8) · why, UTF-8
"""

import logging
import struct
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from timeline.position import END, Position
from timeline.slices import Home

from . import keys
from .errors import Corrupt, ShardsError
from .store import ROWS_END, Store, Table

log = logging.getLogger(__name__)

RANGES_MAX = 10_000
KEPT_BYTES = 16 << 20
KEPT_OVERHEAD = 60
"""Overhead of a kept key, bytes."""
LOOKS_MAX = 200
REPAIR_BYTES = 4 << 30
"""Bytes of kept keys during a repair, when nobody is served; looks have no bound there."""
WINDOW = 64
NOTE = b"unreadable/"
_NOTE = struct.Struct(">22s12sQ")


@dataclass(slots=True, eq=False)
class CorruptRange:
    """Unreadable keys [start, end) of one scope: a shard by its prefix, another table by its name."""

    start: bytes
    end: bytes
    scope: bytes
    why: str
    owed: Position | None = None
    """Messages from here on have not been dispatched; None: from behind the horizon, when it is noted."""
    kept: list[bytes] = field(default_factory=list)
    """Keys within it, in order, that `get` may find."""
    is_cut: bool = False
    """Whether there may be more kept keys."""

    @property
    def home(self) -> tuple[Home, int]:
        """The slice and the number of the shard."""
        return keys.shard_of(self.scope)

    @property
    def first(self) -> Position:
        return keys.place_of(self.start)

    @property
    def last(self) -> Position:
        """Last position; the end may be where the next shard begins."""
        return Position(keys.place_of(self.end) - 1) if self.end.startswith(self.scope) else END

    def owes(self, store: Store, place: Position) -> bool:
        """Whether an owed message of this range is at `place`, now that the range can be read."""
        if self.owed is None or not self.owed <= place <= self.last:
            return False
        # Other shards have positions in between; a position is in one shard only.
        return store.get(Table.MESSAGES, self.scope + keys.place(place)) is not None

    def __str__(self) -> str:
        if not self.is_of_messages:
            return f"table {self.scope.decode()}: unreadable from {self.start!r} to {self.end!r}: {self.why}"
        home, number = self.home
        return (
            f"slice {home.start_ms} generation {home.generation} shard {number}: "
            f"unreadable from {self.first:024x} to {self.last:024x}: {self.why}"
        )

    @property
    def is_of_messages(self) -> bool:
        return self.start.startswith(self.scope) and len(self.start) == keys.MESSAGE_KEY_BYTES


class Unreadable:
    """The known corrupt ranges of one open store."""

    def __init__(self, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._kept = self._looks = 0
        self._by_scope: dict[bytes, list[CorruptRange]] = {}
        self._count = 0
        self.fresh: list[CorruptRange] = []
        """Ranges of messages whose notes are not durable yet."""
        self.barrier = END
        """Their first position: nothing may be dispatched from here on."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, scope: bytes) -> bool:
        return scope in self._by_scope

    def __iter__(self) -> Iterator[CorruptRange]:
        return (corrupt for found in self._by_scope.values() for corrupt in found)

    def of(self, scope: bytes) -> Sequence[CorruptRange]:
        """Those of a shard, or of a table, in order."""
        return self._by_scope.get(scope, ())

    def scan(
        self, store: Store, table: Table, start: bytes, end: bytes, scope: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows of [start, end) that can be read, in key order. `scope`: a shard's prefix."""
        scope, at = scope or table.value.encode(), start
        while True:
            known = self._next(scope, at, end)
            stop, last = known.start if known is not None else end, b""
            try:
                if at < stop:
                    for row in store.scan(table, at, stop):
                        last = row[0]
                        yield row
            except Corrupt as error:
                at = self.meet(store, table, last + b"\0" if last else at, end, scope, error)
                continue
            if known is None:
                return
            yield from _kept(store, table, known, at, end)
            at = max(at, known.end)

    def meet(
        self, store: Store, table: Table, start: bytes, end: bytes, scope: bytes, error: Corrupt
    ) -> bytes:
        """A scan of [start, end) failed at its first row: where it goes on, now that more is known."""
        if table is Table.MESSAGES:
            whole = keys.MESSAGE_KEY_BYTES
            number = int.from_bytes(start[:whole].ljust(whole, b"\0"), "big") + (len(start) > whole)
            start = number.to_bytes(whole, "big")

        def is_readable(key: bytes) -> bool:
            try:
                next(store.scan(table, key, end), None)
            except Corrupt:
                return False
            return True

        if start >= end:
            return end
        if is_readable(start):
            return start
        further = end if self._count >= RANGES_MAX else beyond(is_readable, start, end)
        if table is Table.MESSAGES:
            further = further.ljust(keys.MESSAGE_KEY_BYTES, b"\0")
        corrupt = CorruptRange(start, further, scope, str(error))
        self.look_beside(store, table, corrupt)
        self.add(corrupt)
        return start

    def look_beside(self, store: Store, table: Table, corrupt: CorruptRange) -> None:
        """Keep the keys of other files that lie in a corrupt range."""
        self._looks += 1
        try:
            if self._looks > LOOKS_MAX and self._kept_bytes < REPAIR_BYTES:
                raise Corrupt("too many corrupt ranges")
            for key in store.keys_beside(table, corrupt.start, corrupt.end):
                if self._kept > self._kept_bytes:
                    raise Corrupt("too many rows")
                corrupt.kept.append(key)
                self._kept += len(key) + KEPT_OVERHEAD
        except ShardsError as error:
            corrupt.is_cut = True
            log.error("corrupt range: readable rows may be skipped until a repair, %s: %s", error, corrupt)

    def row(self, prefix: bytes, place: Position, error: Corrupt) -> None:
        """Remember one message that dispatch could not read."""
        start = prefix + keys.place(place)
        end = prefix + keys.place(Position(place + 1))
        self.add(CorruptRange(start, end, prefix, str(error), place))

    def add(self, corrupt: CorruptRange, *, is_noted: bool = False) -> None:
        """Remember a corrupt range."""
        known = self._by_scope.setdefault(corrupt.scope, [])
        if any(other.start <= corrupt.start and corrupt.end <= other.end for other in known):
            return
        insort(known, corrupt, key=attrgetter("start"))
        self._count += 1
        log.error("%s", corrupt)
        if corrupt.is_of_messages and not is_noted:
            self.fresh.append(corrupt)
            self.barrier = min(self.barrier, corrupt.first)

    def noted(self, ranges: Sequence[CorruptRange]) -> None:
        """The notes of these ranges are durable."""
        self.fresh = [corrupt for corrupt in self.fresh if corrupt not in ranges]
        self.barrier = min((corrupt.first for corrupt in self.fresh), default=END)

    def drop(self, corrupt: CorruptRange) -> None:
        """Forget a range: its shard or table is gone."""
        left = [other for other in self._by_scope.get(corrupt.scope, ()) if other is not corrupt]
        if left:
            self._by_scope[corrupt.scope] = left
        else:
            self._by_scope.pop(corrupt.scope, None)
        self._count -= 1
        self._kept -= sum(map(len, corrupt.kept)) + KEPT_OVERHEAD * len(corrupt.kept)

    def _next(self, scope: bytes, at: bytes, end: bytes) -> CorruptRange | None:
        """The first known range that overlaps [at, end)."""
        for corrupt in self._by_scope.get(scope, ()):
            if corrupt.end > at and corrupt.start < end:
                return corrupt
        return None


def _kept(
    store: Store, table: Table, corrupt: CorruptRange, start: bytes, end: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """Rows of [start, end) in a corrupt range that can be read one by one."""
    for at in range(bisect_left(corrupt.kept, start), bisect_left(corrupt.kept, end)):
        try:
            value = store.get(table, corrupt.kept[at])
        except Corrupt:
            continue
        if value is not None:
            yield corrupt.kept[at], value


def readable(
    store: Store, table: Table, start: bytes = b"", end: bytes = ROWS_END
) -> Iterator[tuple[bytes, bytes]]:
    """The readable rows of [start, end), for callers that read a table once. Unreadable ranges are logged."""
    return Unreadable().scan(store, table, start, end)


def beyond(is_readable: Callable[[bytes], bool], start: bytes, end: bytes) -> bytes:
    """The first readable key above the unreadable `start`; `end` if there is none.

    Names may be long: it searches in the WINDOW bytes behind the common prefix with `start`, at most 16
    probes a byte.
    """
    width, good_key = max(len(start), len(end)), end
    if width > WINDOW:
        common, longest = 0, len(start)
        while common < longest:
            middle = (common + longest + 1) // 2
            key = _behind(start[:middle], end)
            if key == end or is_readable(key):
                common, good_key = middle, key
            else:
                longest = middle - 1
        width = min(width, common + WINDOW)
    low, top = _number(start[:width], width), _number(good_key[:width], width)
    bad, stride = low, 1
    while low + stride < top and not is_readable((low + stride).to_bytes(width, "big")):
        bad, stride = low + stride, 2 * stride
    good = min(low + stride, top)
    while good - bad > 1:
        middle = (good + bad) // 2
        if is_readable(middle.to_bytes(width, "big")):
            good = middle
        else:
            bad = middle
    return good_key if good >= top else good.to_bytes(width, "big")


def _behind(prefix: bytes, end: bytes) -> bytes:
    """The first key behind all with a prefix, at most `end`."""
    rest = prefix.rstrip(b"\xff")
    return min(rest[:-1] + bytes([rest[-1] + 1]), end) if rest else end


def _number(key: bytes, width: int) -> int:
    return int.from_bytes(key.ljust(width, b"\0"), "big")


def note_key(corrupt: CorruptRange) -> bytes:
    return NOTE + corrupt.start


def note_value(corrupt: CorruptRange, owed: Position, wall_ms: int) -> bytes:
    return _NOTE.pack(corrupt.end, keys.place(owed), wall_ms) + corrupt.why.encode()[:1_000]


def notes(store: Store) -> Iterator[CorruptRange]:
    """Every noted corrupt range."""
    for key, value in readable(store, Table.META, *keys.under(NOTE)):
        start = key.removeprefix(NOTE)
        try:
            end, owed, _ = _NOTE.unpack_from(value)
        except struct.error:
            log.error("corrupt range: its note is unreadable: %s", key.hex())
            continue
        why = value[_NOTE.size :].decode(errors="replace")
        yield CorruptRange(start, end, start[:10], why, keys.place_of(owed))


def tried(store: Store) -> Iterator[tuple[CorruptRange, bool]]:
    """Every noted corrupt range, and whether it can be read now."""
    for note in notes(store):
        try:
            for _ in store.scan(Table.MESSAGES, note.start, note.end):
                pass
        except Corrupt:
            yield note, False
        else:
            yield note, True
