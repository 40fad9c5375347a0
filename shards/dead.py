"""Dead letters: messages that a place could not do, kept until somebody decides (kept.py has their rows).

At a bound in number or bytes the oldest ones go.
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


def bury(commit: Commit, row: KeptRow, *, max_messages: int, max_bytes: int) -> int:
    """In the writer: keep a dead letter, and drop the oldest ones beyond the bounds; how many went.

    It takes the place of an earlier one of the same message and place.
    """
    remove_of(commit, keys.message_of(row.id), row.addressee, row.incarnation)
    DEAD.put(commit.open_group, position(commit.horizon.clock_ms, commit.horizon.issue()), row)
    return _drop_oldest(commit, max_messages, max_bytes)


def remove_of(commit: Commit, message: MessageId, addressee: str, incarnation: int) -> int:
    """In the writer: that place has done the message after all; how many dead letters went.

    Also those that this group commit has buried. One that cannot be read stays.
    """
    group = commit.open_group
    return sum(
        DEAD.remove(group, place, row)
        for place, row in DEAD.of_message_in(group, message)
        if row.is_of(addressee, incarnation)
    )


def drop_older(commit: Commit, running_ms: int, limit: int) -> int:
    """In the writer: drop those that died before that running time, the oldest ones, `limit` at most; how
    many."""
    gone = 0
    for letter in _oldest(commit):
        if gone == limit or letter[1].running_ms >= running_ms:
            break
        _drop(commit, letter)
        gone += 1
    return gone


def oldest_letter(store: Store) -> Letter | None:
    """The first one that can be read."""
    return next(DEAD.all(store, DEAD.stored_totals(store).oldest), None)


def _drop_oldest(commit: Commit, max_messages: int, max_bytes: int) -> int:
    """Until the rest is within the bounds; the one that came last stays, however large."""
    now, gone = DEAD.totals(commit.open_group), 0
    if now.count <= max_messages and now.bytes <= max_bytes:
        return 0
    for letter in _oldest(commit):
        _drop(commit, letter)
        gone += 1
        now = DEAD.totals(commit.open_group)
        if now.count <= max_messages and now.bytes <= max_bytes:
            break
    return gone


def _drop(commit: Commit, letter: Letter) -> None:
    """The oldest one goes: the next look begins behind it, not among what is left of those before."""
    group = commit.open_group
    DEAD.remove(group, *letter)
    now = DEAD.totals(group)
    DEAD.set_totals(group, KeptTotals(now.count, now.bytes, Position(letter[0] + 1)))


def _oldest(commit: Commit) -> Iterator[Letter]:
    """Those that are stored and that this group has not taken away, the oldest first."""
    group = commit.open_group
    for place, row in DEAD.all(group.store, DEAD.totals(group).oldest):
        if group.get(Table.DEAD, keys.kept(place)) is not None:
            yield place, row
