"""The message under a key: made, changed or cancelled in one decision, by whoever knows what it should be.

    under the key              a message                       "cancel"
    nothing                    made                            nothing; its version is remembered
    pending                    changed: all of it, same id     cancelled
    cancelled                  made, with a new id             nothing; its version is remembered
    dispatched                 too late; with a version made   too late; its version is remembered

A *version* is two integers, compared in order. The highest one of each key is kept in the key's row, as long
as that is known: a request with a lower or equal one changes nothing, whatever has become of the message.
Example, sent as versions 1 to 3 and arriving as 1, 3, 2:

    (1, 0) due at noon      made
    (3, 0) cancel           cancelled
    (2, 0) due at two       nothing: (3, 0) is known

A message whose time has passed, and that is not wanted late, is dropped: the pending one is cancelled, and
none is made. It is a wish like any other: its version is remembered.

So a request with a version may be repeated and overtaken, and a dispatched message is no obstacle to a new
wish. Without a version nobody knows a repetition from a new wish. Then a dispatched message is too late, as
for a cancel or move, except if the draft says `while_undone` and no place has still to finish it.

A *debounce* makes the message, or puts its own in the place of the pending one, of the same id. The message
is due `wait` after the last request, and never later than `until_ms`, which the first request has set.
"""

from enum import Enum

import msgspec

from timeline.position import MessageId, before

from .commit import Commit
from .dedupe import Refused
from .draft import Draft, Outcome
from .read import Found
from .record import is_stub
from .store import Table
from .tables import DedupeRow, KeyExtra, dedupe_value

NO_MESSAGE = MessageId(0)
NO_PRINT = bytes(16)
NOT_DEBOUNCED = "not-debounced"
"""Why a debounce is refused: the pending message under its key is of another kind of request."""
Version = tuple[int, int]


class Effect(Enum):
    """What an upsert has done."""

    MADE = "made"
    CHANGED = "changed"
    CANCELLED = "cancelled"
    NOTED = "noted"
    """The version is remembered; no message was cancelled or created."""
    NOTHING = "nothing"
    """Its version was not higher than the known one."""
    TOO_LATE = "too late"
    """The message counts as dispatched."""
    UNKNOWN = "unknown"
    """A cancel without a version, and no message is known under the key."""


class Upserted(msgspec.Struct, frozen=True):
    """The answer to an upsert. `id` 0: there is no message under the key."""

    effect: Effect
    id: MessageId = NO_MESSAGE
    due_ms: int = 0
    """Of the message that was made or changed, or the first due under the key."""
    found: Found | None = None
    """The message as it was before; None: there was none, or its slice is gone."""
    row: MessageId = NO_MESSAGE
    """Names the row of a message that was made or changed."""


class Under(msgspec.Struct, frozen=True):
    """The message and version under an idempotency key, including changes of the open batch."""

    key: bytes
    row: DedupeRow | None
    found: Found | None
    """The message; None: there is none, or its slice is gone."""
    is_kept: bool
    """The message's slice is gone, but some place has still to try it."""

    @property
    def version(self) -> Version | None:
        """The highest version of an upsert; None: no upsert had one."""
        return None if self.row is None else self.row.extra.version

    @property
    def is_cancelled(self) -> bool:
        """Whether the message was cancelled."""
        return self.found is not None and is_stub(self.found.value)


def under(commit: Commit, key: bytes) -> Under:
    """In the writer: what is under a key. Raises Refused, Corrupt."""
    row = commit.standing(key)
    if row is None:
        return Under(key, None, None, False)
    return Under(key, row, commit.find_known(row), row.position < commit.directory.floor)


def is_known(what: Under, version: Version | None) -> bool:
    """Whether a request with this version comes too late to change anything."""
    return version is not None and what.version is not None and version <= what.version


def upsert(
    commit: Commit, what: Under, draft: Draft, version: Version | None, *, is_dropped: bool = False
) -> Upserted:
    """In the writer: make or change the message under a key. Raises Refused before anything is changed."""
    row, found = what.row, what.found
    if is_known(what, version):
        return _unchanged(what, Effect.NOTHING)
    version_now = version or what.version
    if row is not None and found is not None and not what.is_cancelled:
        if is_dropped and commit.winnable(row.id).outcome is Outcome.DONE:
            return cancel_under(commit, what, version)
        extra = KeyExtra(version_now, row.extra.until_ms)
        changed = None if is_dropped else _changed(commit, what.key, row, draft, extra)
        if changed is not None:
            return changed
        is_new = not commit.is_undone(found) if draft.while_undone else version is not None
    else:
        is_new = not what.is_kept or (version is not None and not draft.while_undone)
    if not is_new:
        return _unchanged(what, Effect.TOO_LATE)
    if is_dropped:
        return _dropped(commit, what, version)
    name = commit.put_under(draft, KeyExtra(version_now))
    return Upserted(Effect.MADE, name, draft.due_ms, found, name)


def cancel_under(commit: Commit, what: Under, version: Version | None) -> Upserted:
    """In the writer: cancel the message under a key. Raises Refused before anything is changed."""
    if is_known(what, version):
        return _unchanged(what, Effect.NOTHING)
    row = what.row
    if row is None or (what.found is None and not what.is_kept):
        return _noted(commit, what.key, version)
    outcome = Outcome.ALREADY_DISPATCHED if what.is_kept else commit.cancel(row.id).outcome
    commit.note_extra(what.key, row, KeyExtra(version or what.version, row.extra.until_ms))
    if outcome is not Outcome.DONE:
        return _unchanged(what, Effect.TOO_LATE)
    return _unchanged(what, Effect.NOTED if what.is_cancelled else Effect.CANCELLED)


def debounce(commit: Commit, what: Under, draft: Draft, until_ms: int) -> Upserted:
    """In the writer: make the message under a key, or put this one in the place of the pending one.

    Raises Refused before anything is changed, also if the pending one was not debounced.
    """
    row, found = what.row, what.found
    if row is not None and found is not None and not what.is_cancelled:
        bound_ms = row.extra.until_ms
        if not bound_ms and commit.winnable(row.id).outcome is Outcome.DONE:
            detail = "the key's pending message was sent without debounce; cancel it, or use another key"
            raise Refused(NOT_DEBOUNCED, detail, 0, found.value, draft.value)
        due_ms = max(commit.open_batch.wall_ms, min(draft.due_ms, bound_ms))  # a move may have passed it
        sooner = msgspec.structs.replace(draft, due_ms=due_ms)
        changed = _changed(commit, what.key, row, sooner, row.extra)
        if changed is not None:
            return changed
    name = commit.put_under(draft, KeyExtra(what.version, until_ms))
    return Upserted(Effect.MADE, name, draft.due_ms, found, name)


def _changed(commit: Commit, key: bytes, row: DedupeRow, draft: Draft, extra: KeyExtra) -> Upserted | None:
    """The message of the key, changed; None: it counts as dispatched. Raises Refused."""
    control = commit.change(row.id, draft)
    if control.outcome is not Outcome.DONE:
        return None
    again = commit.known_under(key)
    assert again is not None, "the message has moved with its key"
    commit.note_extra(key, again, extra)
    return Upserted(Effect.CHANGED, row.id, draft.due_ms, control.found, control.row)


def _unchanged(what: Under, effect: Effect) -> Upserted:
    row = what.row
    return Upserted(effect) if row is None else Upserted(effect, row.id, row.due_ms, what.found)


def _dropped(commit: Commit, what: Under, version: Version | None) -> Upserted:
    """No message to cancel: remember only the version."""
    if what.row is None or what.is_cancelled or (what.found is None and not what.is_kept):
        cancelled = cancel_under(commit, what, version)
        return Upserted(Effect.NOTED) if cancelled.effect is Effect.UNKNOWN else cancelled
    commit.note_extra(what.key, what.row, KeyExtra(version or what.version, what.row.extra.until_ms))
    return Upserted(Effect.NOTED)


def _noted(commit: Commit, key: bytes, version: Version | None) -> Upserted:
    """Nothing is there to cancel: remember the version alone, as long as if it were of a message of now."""
    if version is None:
        return Upserted(Effect.UNKNOWN)
    place = before(commit.horizon.clock_ms)
    commit.row(Table.DEDUPE, key, dedupe_value(DedupeRow(NO_MESSAGE, NO_PRINT, 0, place, KeyExtra(version))))
    return Upserted(Effect.NOTED)
