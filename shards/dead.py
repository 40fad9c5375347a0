"""Dead letters: messages that a place gave up, kept until a user decides (kept.py has their rows).

Beyond the bounds in number and bytes the oldest are dropped.
"""

from collections.abc import Iterator

from timeline.position import MessageId, Position, position

from . import keys
from .commit import Commit
from .kept import Kept, Letter
from .store import Store, Table
from .tables import META_DEAD, KeptRow, KeptTotals


def _whose(row: KeptRow) -> bytes:
    return keys.kept_of(row.group)


DEAD = Kept(Table.DEAD, META_DEAD, _whose, is_counted=False)


def bury(commit: Commit, row: KeptRow, *, max_messages: int, max_bytes: int) -> tuple[Position, int]:
    """In the writer: keep a dead letter, and drop the oldest beyond the bounds. Returns its place, and how
    many were dropped.

    It replaces an earlier one of the same message and place.
    """
    remove_of(commit, keys.message_of(row.id), row.addressee, row.incarnation)
    place = position(commit.horizon.clock_ms, commit.horizon.issue())
    DEAD.put(commit.open_batch, place, row)
    return place, _drop_oldest(commit, max_messages, max_bytes)


def remove_of(commit: Commit, message: MessageId, addressee: str, incarnation: int) -> int:
    """In the writer: remove the place's dead letters of a message that it finished after all. Returns their
    number.

    Includes those that this group commit has buried. One that cannot be read stays.
    """
    group = commit.open_batch
    return sum(
        DEAD.remove(group, place, row)
        for place, row in DEAD.of_message_in(group, message)
        if row.is_of(addressee, incarnation)
    )


def drop_older(commit: Commit, running_ms: int, limit: int) -> int:
    """In the writer: drop at most `limit` of the oldest, of those that died before `running_ms`. Returns the
    number."""
    gone = 0
    for letter in _oldest(commit):
        if gone == limit or letter[1].running_ms >= running_ms:
            break
        _drop(commit, letter)
        gone += 1
    return gone


def oldest_letter(store: Store) -> Letter | None:
    """The oldest dead letter that can be read."""
    return next(DEAD.all(store, DEAD.stored_totals(store).oldest), None)


def _drop_oldest(commit: Commit, max_messages: int, max_bytes: int) -> int:
    """Drop the oldest until the rest is within the bounds; the newest stays, however large."""
    now, gone = DEAD.totals(commit.open_batch), 0
    if now.count <= max_messages and now.bytes <= max_bytes:
        return 0
    for letter in _oldest(commit):
        _drop(commit, letter)
        gone += 1
        now = DEAD.totals(commit.open_batch)
        if now.count <= max_messages and now.bytes <= max_bytes:
            break
    return gone


def _drop(commit: Commit, letter: Letter) -> None:
    """Drop the oldest, and note where the next search begins, so that it passes no deleted rows."""
    group = commit.open_batch
    DEAD.remove(group, *letter)
    now = DEAD.totals(group)
    DEAD.set_totals(group, KeptTotals(now.count, now.bytes, Position(letter[0] + 1)))


def _oldest(commit: Commit) -> Iterator[Letter]:
    """Stored dead letters that this group has not removed, oldest first."""
    group = commit.open_batch
    for place, row in DEAD.all(group.store, DEAD.totals(group).oldest):
        if group.get(Table.DEAD, keys.kept(place)) is not None:
            yield place, row
