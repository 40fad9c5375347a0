"""Stretches of a table that cannot be read: found, remembered, worked around.

A block of a table file that has rotted makes every read of it fail, and a scan that comes to it ends there.
What lies before and behind it is as good as ever. So whoever reads a stretch of rows reads through `scan`
here: at the block it looks for the first key from which reading goes on, doubling its stride and then halving
it (some 200 probes of the engine for a message, 1,100 for a name, 15 us each), remembers the *stretch*
between, says so in the log, once, and goes on behind it. The next reader skips what is known without trying.

    rows       a b c . . . . . . k l m         the block of d to j cannot be read
    scan       a b c                 k l m     and the stretch (after c, up to k) is known

Rows of other, healthy files may lie in a stretch: at a rotten block the engine ends the scan of all. So those
files are read by themselves for the *keys* (`Store.keys_beside`), which are kept with the stretch; a scan
gives of these what `get` finds. What can be read of the rotten file lies around the stretch, but between two
bad blocks close to each other it may be passed over with them.

A stretch is at least what cannot be read. It is never written to again (`Reader` sees to it), because nobody
would find the row.

Messages that dispatch has not reached must not be forgotten with their stretch. It is *noted* in the table
`meta`, with the first position that is *owed*, and until that is durable the loader stops before it
(`barrier`). A start tries the notes: what can be read by then and was owed is dispatched late (server/core).

Bound: 10,000 stretches; beyond it a stretch goes on to the end of what was to be read. Keys of KEPT_BYTES in
all and LOOKS_MAX looks beside; what is beyond is passed over until a repair, and the log says so.

    meta    "unreadable/" · first key (22)  ->  end (22) · owed (12) · noted ms (8) · why, UTF-8
"""

import logging
import struct
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from timeline.position import END, Position
from timeline.slices import Home

from . import keys
from .errors import Corrupt, ShardsError
from .store import Store, Table

log = logging.getLogger(__name__)

STRETCHES_MAX = 10_000
KEPT_BYTES = 16 << 20
KEPT_OVERHEAD = 60
"""Bytes of a kept key besides its own."""
LOOKS_MAX = 200
REPAIR_BYTES = 4 << 30
"""Kept where nobody is served meanwhile; no bound on looks there."""
WINDOW = 64
NOTE = b"unreadable/"
NOTE_END = b"unreadable0"
_NOTE = struct.Struct(">22s12sQ")


@dataclass(slots=True, eq=False)
class Stretch:
    """Keys [start, end) of one scope: a shard by its prefix, another table by its name."""

    start: bytes
    end: bytes
    scope: bytes
    why: str
    owed: Position | None = None
    """Messages from here on have not been dispatched; None: from behind the horizon on, when it is noted."""
    kept: list[bytes] = field(default_factory=list)
    """Keys within it, in order, that may be found by `get`."""
    is_cut: bool = False
    """There may be more of these."""

    @property
    def home(self) -> tuple[Home, int]:
        """The slice and the number of the shard."""
        return keys.shard_of(self.scope)

    @property
    def first(self) -> Position:
        return keys.place_of(self.start)

    @property
    def last(self) -> Position:
        """Its end may be where the next shard begins."""
        return Position(keys.place_of(self.end) - 1) if self.end.startswith(self.scope) else END

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
    """What is known to be unreadable in one open store."""

    def __init__(self, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._kept = self._looks = 0
        self._by_scope: dict[bytes, list[Stretch]] = {}
        self._count = 0
        self.fresh: list[Stretch] = []
        """Of messages, not noted durably yet."""
        self.barrier = END
        """The first position of these: nothing may be dispatched from here on."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, scope: bytes) -> bool:
        return scope in self._by_scope

    def __iter__(self) -> Iterator[Stretch]:
        return (stretch for found in self._by_scope.values() for stretch in found)

    def of(self, scope: bytes) -> Sequence[Stretch]:
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
        further = end if self._count >= STRETCHES_MAX else beyond(is_readable, start, end)
        if table is Table.MESSAGES:
            further = further.ljust(keys.MESSAGE_KEY_BYTES, b"\0")
        stretch = Stretch(start, further, scope, str(error))
        self.look_beside(store, table, stretch)
        self.add(stretch)
        return start

    def look_beside(self, store: Store, table: Table, stretch: Stretch) -> None:
        """Keep the keys of other files that lie in a stretch."""
        self._looks += 1
        try:
            if self._looks > LOOKS_MAX and self._kept_bytes < REPAIR_BYTES:
                raise Corrupt("too many stretches")
            for key in store.keys_beside(table, stretch.start, stretch.end):
                if self._kept > self._kept_bytes:
                    raise Corrupt("too many rows")
                stretch.kept.append(key)
                self._kept += len(key) + KEPT_OVERHEAD
        except ShardsError as error:
            stretch.is_cut = True
            log.error("corrupt range: readable rows may be skipped until a repair, %s: %s", error, stretch)

    def row(self, prefix: bytes, place: Position, error: Corrupt) -> None:
        """One message that dispatch could not read."""
        start = prefix + keys.place(place)
        end = prefix + keys.place(Position(place + 1))
        self.add(Stretch(start, end, prefix, str(error), place))

    def add(self, stretch: Stretch, *, is_noted: bool = False) -> None:
        """Remember a stretch."""
        known = self._by_scope.setdefault(stretch.scope, [])
        if any(other.start <= stretch.start and stretch.end <= other.end for other in known):
            return
        insort(known, stretch, key=_start)
        self._count += 1
        log.error("%s", stretch)
        if stretch.is_of_messages and not is_noted:
            self.fresh.append(stretch)
            self.barrier = min(self.barrier, stretch.first)

    def noted(self, stretches: Sequence[Stretch]) -> None:
        """Their notes are durable."""
        self.fresh = [stretch for stretch in self.fresh if stretch not in stretches]
        self.barrier = min((stretch.first for stretch in self.fresh), default=END)

    def drop(self, stretch: Stretch) -> None:
        """What it is a stretch of has gone."""
        left = [other for other in self._by_scope.get(stretch.scope, ()) if other is not stretch]
        if left:
            self._by_scope[stretch.scope] = left
        else:
            self._by_scope.pop(stretch.scope, None)
        self._count -= 1
        self._kept -= sum(map(len, stretch.kept)) + KEPT_OVERHEAD * len(stretch.kept)

    def _next(self, scope: bytes, at: bytes, end: bytes) -> Stretch | None:
        """The first known stretch that reaches into [at, end)."""
        for stretch in self._by_scope.get(scope, ()):
            if stretch.end > at and stretch.start < end:
                return stretch
        return None


def _kept(
    store: Store, table: Table, stretch: Stretch, start: bytes, end: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """What can be read one by one in a stretch, of [start, end)."""
    for at in range(bisect_left(stretch.kept, start), bisect_left(stretch.kept, end)):
        try:
            value = store.get(table, stretch.kept[at])
        except Corrupt:
            continue
        if value is not None:
            yield stretch.kept[at], value


def readable(store: Store, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows of [start, end) that can be read, for a caller that reads a table once. The rest is logged."""
    return Unreadable().scan(store, table, start, end)


def beyond(is_readable: Callable[[bytes], bool], start: bytes, end: bytes) -> bytes:
    """A key above `start`, which is not readable, from which reading goes on; `end` if there is none.

    Names may be long: it is looked for in the WINDOW bytes behind what it has in common with `start`, which
    costs 16 probes a byte at most.
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
    """The first key behind all that begin with a prefix, `end` at most."""
    rest = prefix.rstrip(b"\xff")
    return min(rest[:-1] + bytes([rest[-1] + 1]), end) if rest else end


def _number(key: bytes, width: int) -> int:
    return int.from_bytes(key.ljust(width, b"\0"), "big")


def _start(stretch: Stretch) -> bytes:
    return stretch.start


def note_key(stretch: Stretch) -> bytes:
    return NOTE + stretch.start


def note_value(stretch: Stretch, owed: Position, wall_ms: int) -> bytes:
    return _NOTE.pack(stretch.end, keys.place(owed), wall_ms) + stretch.why.encode()[:1_000]


def notes(store: Store) -> Iterator[Stretch]:
    """Every stretch that is noted."""
    for key, value in readable(store, Table.META, NOTE, NOTE_END):
        start = key.removeprefix(NOTE)
        try:
            end, owed, _ = _NOTE.unpack_from(value)
        except struct.error:
            log.error("corrupt range: its note is unreadable: %s", key.hex())
            continue
        why = value[_NOTE.size :].decode(errors="replace")
        yield Stretch(start, end, start[:10], why, keys.place_of(owed))
