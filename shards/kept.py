"""Deliveries that are done and stay: what became of a message at a group or endpoint, and its result.

    0 · whose · root   StateRow, DONE. Its last try is the good one. No record is beside it: for all who look
                       for a delivery with its message there is none
    9 · whose          KeptRow: how many a place has, and their bytes
    10 · whose · at    root (12) · the result, JSON. `at` is that of the state

The number and bytes of all are in `meta`. All change in the same batch, so nothing is counted at start.
Beyond a bound the rows with the oldest roots go, in the batch that brings new ones. Of results the new one is
refused: somebody waits for it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from msgspec.structs import replace

from timeline.deliveries import DONE as ACKED
from timeline.deliveries import TRIES_MAX
from timeline.position import END, POSITION_BYTES, START, Position, before, position, seq_of

from . import keys
from .commit import Commit
from .dedupe import Refused
from .delivery_rows import Name, roots
from .errors import Corrupt
from .fields import TryRow
from .open_batch import OpenBatch
from .store import Store, Table
from .tables import DONE, META_KEPT, KeptRow, StateRow, encode_row, kept_row_of, state_row_of
from .unreadable import readable

log = logging.getLogger(__name__)

ROWS_EACH, ROWS_ALL = 1_000_000, 4_000_000
BYTES_EACH, BYTES_ALL = 256 << 20, 1 << 30
"""Bounds on what a place keeps, and all of them."""
RESULT_BYTES_EACH, RESULT_BYTES_ALL = 64 << 20, 256 << 20
"""The same of results."""
KEY_BYTES = 1 + keys.WHOSE_BYTES + POSITION_BYTES
STEP = 100
"""Beyond the bound of all, one place gives up so many at a time: the one with the oldest rows among as many
places, from the one that is written on."""
LOOKS = 10
"""How many rows are looked at for each that may go."""
NONE = KeptRow()


class Story(NamedTuple):
    """What became of a delivery that is done."""

    attempts: int
    counted: int
    tries: Sequence[TryRow]
    """The failed ones before."""
    by: str
    ended_ms: int
    held_ms: int
    """How long it was held for the last try; 0: unknown."""
    answer: str
    result: bytes | None = None
    """JSON."""
    shard: int = -1
    """Where the message stands; -1: not said."""


NO_STORY = Story(0, 0, (), "", 0, 0, "")


class Kept(NamedTuple):
    """A delivery that is done, as its place keeps it."""

    root: Position
    state: StateRow

    @property
    def tries(self) -> list[TryRow]:
        """The failed ones."""
        return self.state.tries[:-1]

    @property
    def good(self) -> TryRow:
        """The one that was acked; `reason`: the answer."""
        return self.state.tries[-1]

    @property
    def had_result(self) -> bool:
        """Whether it came with a result, which may be over."""
        return seq_of(keys.place_of(self.state.at)) > 0

    @property
    def story(self) -> Story:
        """Without its result."""
        state, good = self.state, self.good
        return Story(state.attempts, state.counted, self.tries, good.by, good.at_ms, good.ms, good.reason)


# -- in the writer


def keep(commit: Commit, whose: bytes, stories: Mapping[Position, Story], keeper: str) -> int:
    """In the writer: deliveries are done, and kept, by root. They have no rows of other states. Returns how
    many older ones of any place had to go."""
    group, at = commit.open_batch, keys.place(position(commit.open_batch.wall_ms, 0))
    count, size, results, result_size, value, since = len(stories), 0, 0, 0, b"", b""
    put, prefix, last = group.row, keys.STATE + whose, None
    for place, one in stories.items():
        root, stands = place.to_bytes(POSITION_BYTES, "big"), at
        if one.result is not None:
            stands = keys.place(position(group.wall_ms, commit.horizon.issue()))
            put(Table.DELIVERIES, keys.RESULT + whose + stands, root + one.result)
            results, result_size, since = results + 1, result_size + len(one.result), since or stands
        if one is not last or one.result is not None:
            good = TryRow(one.ended_ms, one.by, ACKED, one.answer, one.held_ms)
            tries = [*one.tries, good][-TRIES_MAX:]
            row = StateRow(DONE, stands, one.attempts, one.counted, "", keeper, group.running_ms, 0, tries)
            last, value = one, encode_row(row)
        put(Table.DELIVERIES, prefix + root, value)
        size += len(value) + KEY_BYTES
    known = totals_of(group, whose)
    group.made.kept[whose] = oldest = min(*stories, group.made.kept.get(whose, END))
    first = min(known.first, keys.place(oldest)) if known.count else keys.place(oldest)
    since = min(known.first_result, since) if known.results and since else since or known.first_result
    now = _add(group, whose, KeptRow(count, size, results, result_size, first, since))
    gone = 0
    if now.count > ROWS_EACH or now.size > BYTES_EACH:
        gone = drop_first(commit, whose, max(count, STEP))
    total = totals(group)
    if total.count > ROWS_ALL or total.size > BYTES_ALL:
        near = islice(chain(places(group.store, whose), places(group.store)), STEP)
        other, _ = min(near, key=lambda one: one[1].first, default=(whose, now))
        less = drop_first(commit, other, max(count, STEP))
        gone += less + drop_first(commit, whose, max(count, STEP) - less)
    return gone


def check_room(commit: Commit, whose: bytes, size: int) -> None:
    """In the writer: this batch is to have a result of so many bytes. Raises Refused if there is no room."""
    group, noted = commit.open_batch, commit.open_batch.made.results
    own, every = noted.get(whose, 0) + size, sum(noted.values()) + size
    is_full = totals_of(group, whose).result_size + own > RESULT_BYTES_EACH
    if is_full or totals(group).result_size + every > RESULT_BYTES_ALL:
        which = "of the group" if is_full else "of all groups"
        raise Refused("result-quota", f"the results {which} take all the room they may; they expire in time")
    noted[whose] = own


def is_kept(group: OpenBatch, name: Name) -> bool:
    """Whether the delivery is kept as done, as the open group leaves it."""
    return kept_at(group, name) is not None


def lose(group: OpenBatch, name: Name, value: bytes | None = None) -> bool:
    """In the writer: if the delivery is kept as done, that is forgotten, as it becomes something else.
    `value`: its row, if that is known. Raises Corrupt."""
    value = value or group.get(Table.DELIVERIES, keys.state(*name))
    if value is None or (state := state_row_of(value)).state != DONE:
        return False
    group.row(Table.DELIVERIES, keys.state(*name), None)
    size, results = _drop_result(group, name.whose, state.at)
    _add(group, name.whose, KeptRow(-1, -len(value) - KEY_BYTES, -results, -size))
    return True


def drop_first(
    commit: Commit, whose: bytes, most: int, may_go: Callable[[Kept], bool] = lambda _: True
) -> int:
    """In the writer: those of a place with the oldest roots go, at most `most`, until one may not. Returns
    their number."""
    group, gone = commit.open_batch, 0
    start = _start(totals_of(group, whose))
    for root in islice(roots(group.store, whose, start), most * LOOKS):
        name = Name(whose, root)
        kept = kept_at(group, name)
        if kept is not None:
            if gone == most or not may_go(kept):
                break
            gone += lose(group, name)
        start = Position(root + 1)
    now = totals_of(group, whose)
    if now.count:
        start = min(start, group.made.kept.get(whose, END))  # which is not in the store yet
        row = encode_row(replace(now, first=keys.place(start)))
        group.row(Table.DELIVERIES, keys.KEPT + whose, row)
    return gone


def drop_results(
    commit: Commit, whose: bytes, before_ms: int, most: int, stays: Callable[[Kept], bool]
) -> int:
    """In the writer: results from before that time go, at most `most`; with each its delivery, unless that
    `stays`. Returns their number."""
    group, gone, looked = commit.open_batch, 0, 0
    since = totals_of(group, whose).first_result
    for at, root in islice(_results(group.store, whose, before_ms, since), most):
        looked, since = looked + 1, at
        if group.get(Table.DELIVERIES, keys.RESULT + whose + at) is None:
            continue
        gone += 1
        kept = kept_at(group, Name(whose, root))
        if kept is not None and kept.state.at == at and not stays(kept):
            lose(group, Name(whose, root))
        else:
            size, results = _drop_result(group, whose, at)
            _add(group, whose, KeptRow(0, 0, -results, -size))
    now = totals_of(group, whose)
    if now.results:
        since = since if looked == most else max(since, keys.place(before(before_ms)))
        group.row(Table.DELIVERIES, keys.KEPT + whose, encode_row(replace(now, first_result=since)))
    return gone


def _drop_result(group: OpenBatch, whose: bytes, at: bytes) -> tuple[int, int]:
    """Returns its bytes, and 1 if there was one."""
    key = keys.RESULT + whose + at
    value = group.get(Table.DELIVERIES, key) if totals_of(group, whose).results else None
    if value is None:
        return 0, 0
    group.row(Table.DELIVERIES, key, None)
    return len(value) - POSITION_BYTES, 1


def _add(group: OpenBatch, whose: bytes, more: KeptRow) -> KeptRow:
    """Count more, or fewer, of a place; returns what it has now. An empty `first`, `first_result`: as
    before."""
    for table, key in ((Table.META, META_KEPT), (Table.DELIVERIES, keys.KEPT + whose)):
        now, is_all = _row(group.get(table, key)), table is Table.META
        now = KeptRow(
            max(0, now.count + more.count),
            max(0, now.size + more.size),
            max(0, now.results + more.results),
            max(0, now.result_size + more.result_size),
            b"" if is_all else more.first or now.first,
            b"" if is_all else more.first_result or now.first_result,
        )
        group.row(table, key, encode_row(now) if now.count or now.results else None)
    return now


# -- as stored, or as the open group leaves it


def kept_at(rows: OpenBatch | Store, name: Name) -> Kept | None:
    """The delivery, if it is done and kept; None: it is not, or cannot be read."""
    value = rows.get(Table.DELIVERIES, keys.state(*name))
    try:
        state = None if value is None else state_row_of(value)
    except Corrupt as error:
        log.error("done: a delivery is unreadable, skipped: %s", error)
        return None
    return Kept(name.root, state) if state is not None and state.state == DONE and state.tries else None


def result_of(store: Store, whose: bytes, kept: Kept) -> bytes | None:
    """Its result, JSON; None: it has none, or that has expired."""
    value = store.get(Table.DELIVERIES, keys.RESULT + whose + kept.state.at)
    return None if value is None else value[POSITION_BYTES:]


def totals(rows: OpenBatch | Store) -> KeptRow:
    """What all places keep."""
    return _row(rows.get(Table.META, META_KEPT))


def totals_of(rows: OpenBatch | Store, whose: bytes) -> KeptRow:
    """What a place keeps."""
    return _row(rows.get(Table.DELIVERIES, keys.KEPT + whose))


def places(store: Store, start: bytes = b"") -> Iterator[tuple[bytes, KeptRow]]:
    """Those that keep something, by `whose`, from `start` on."""
    for key, value in readable(store, Table.DELIVERIES, keys.KEPT + start, keys.RESULT):
        yield key[1:], _row(value)


def first_of(store: Store, whose: bytes, row: KeptRow) -> Kept | None:
    """What a place keeps under the oldest root; None: that is behind many rows of other states."""
    found = (kept_at(store, Name(whose, root)) for root in roots(store, whose, _start(row)))
    return next(filter(None, islice(found, LOOKS)), None)


def _start(row: KeptRow) -> Position:
    return keys.place_of(row.first) if row.first else START


def has_expired(store: Store, whose: bytes, row: KeptRow, before_ms: int) -> bool:
    """Whether a place has results from before that time."""
    return next(_results(store, whose, before_ms, row.first_result), None) is not None


def _results(store: Store, whose: bytes, before_ms: int, since: bytes) -> Iterator[tuple[bytes, Position]]:
    """(at, root) of a place's results from then until before that time, the oldest first."""
    prefix = keys.RESULT + whose
    end = max(since, keys.place(before(before_ms)))
    for key, value in readable(store, Table.DELIVERIES, prefix + since, prefix + end):
        yield key[len(prefix) :], keys.place_of(value[:POSITION_BYTES])


def _row(value: bytes | None) -> KeptRow:
    try:
        return NONE if value is None else kept_row_of(value)
    except Corrupt as error:
        log.error("done: a count is unreadable, counting again: %s", error)
        return NONE
