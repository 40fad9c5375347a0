"""Keys that a dead letter or somebody holds, in groups that order (timeline/key_order.py).

With `on_dead: "hold"` a dead letter holds its key. Nothing of the key is given until the letter is

    requeued    its message is the head of its key again, in the batch that deletes the letter
    gone        dropped, done late, requeued elsewhere, at the end of dead.retention or above a bound
    let go      by `:release`: the letter stays

A letter may go in many ways. So each batch is looked at when it is sealed: which dead letters does it delete?
Their keys go on when that is durable, and at start, if their letters are no longer there (ordering.py). The
log tells of it.
"""

import logging
from functools import partial
from typing import NamedTuple

from shards import keys
from shards.commit import Commit
from shards.dedupe import Refused
from shards.store import Table
from timeline.key_order import NOWHERE, KeyOrder
from timeline.position import Position

from ...engine.commit_hook import CommitHook, Done
from ...engine.writer import Writer
from ...observe.logs import by, shown
from ..cursors import Cursors
from ..membership import Membership
from ..retries import Retries
from ..shared import Group
from ..subscriber import Subscriber
from ..terms import HOLD

log = logging.getLogger(__name__)


class _Changed(NamedTuple):
    """A key whose message was a dead letter or a retry, and became the other one."""

    order: KeyOrder
    key: bytes
    wait: Position
    letter: Position
    is_buried: bool


class _Gone(NamedTuple):
    """A dead letter that held a key."""

    group: Group
    key: bytes
    letter: Position


class Holds(CommitHook):
    """Holds keys, and lets them go on."""

    def __init__(self, groups: Membership, retries: Retries, cursors: Cursors, writer: Writer) -> None:
        self._groups = groups
        self._retries = retries
        self._cursors = cursors
        self._decided: list[_Changed] = []
        """In the open batch."""
        self._written: list[_Changed] = []
        """In batches that are not durable yet."""
        writer.add_hook(self)

    # -- in the writer

    def requeued(self, commit: Commit, one: Subscriber, letter: Position, wait: Position) -> None:
        """A dead letter of the place is a retry now."""
        order = one.session.order
        key = None if order is None else order.letters.get(letter)
        if order is not None and key is not None:
            order.requeue(key, wait)
            self._note(commit, one, _Changed(order, key, wait, letter, is_buried=False))

    def buried(self, commit: Commit, one: Subscriber, wait: Position, letter: Position) -> None:
        """A retry of the place is a dead letter now."""
        order = one.session.order
        key = None if order is None else order.waiting_for(wait)
        if order is not None and key is not None and isinstance(one, Group) and one.on_dead == HOLD:
            order.bury(key, letter)
            self._note(commit, one, _Changed(order, key, wait, letter, is_buried=True))

    def _note(self, commit: Commit, one: Subscriber, changed: _Changed) -> None:
        self._decided.append(changed)
        self._cursors.store(commit, one)

    def hold(self, commit: Commit, group: Group, key: bytes) -> bool:
        """Hold a key by hand; False: the group does not order. Raises Refused at the bound."""
        order = group.session.order
        if order is None:
            return False
        if order.is_full and not order.has_row(key):
            raise Refused("over-quota", "limits.ordering_keys is reached: no further key can be held")
        order.hold_by_hand(key)
        self._cursors.store(commit, group)
        return True

    def let_go(self, commit: Commit, group: Group, key: bytes) -> bool:
        """Let a held key go on, whoever holds it; False: nothing holds it."""
        order = group.session.order
        if order is None or key not in order.held:
            return False
        wait = order.row(key).wait
        order.let_go(key)
        if wait != NOWHERE:
            self._retries.look_again(group, wait)
        self._cursors.store(commit, group)
        self._groups.read_on(group)
        return True

    # -- with each batch

    def write(self, commit: Commit) -> Done | None:
        changed, self._decided = self._decided, []
        self._written += changed
        gone = self._look(commit)
        return partial(self._ended, changed, gone) if changed or gone else None

    def _look(self, commit: Commit) -> list[_Gone]:
        """The letters that this batch deletes and that hold a key."""
        deleted = commit.open_batch.deleted(Table.DEAD, b"\0")
        if not deleted:
            return []
        places = {keys.place_of(key) for key in deleted}
        found: list[_Gone] = []
        for group in self._groups:
            order = group.session.order
            if order is not None and order.letters:
                found += [_Gone(group, order.letters[one], one) for one in order.letters.keys() & places]
        return found

    def _ended(self, changed: list[_Changed], gone: list[_Gone], answer: object) -> None:
        for one in changed:
            if one in self._written:
                self._written.remove(one)
                if isinstance(answer, Exception):
                    _undo(one)
        for group, key, letter in () if isinstance(answer, Exception) else gone:
            order = group.session.order
            if order is None or order.letters.get(letter) != key:
                continue
            order.release(key)
            group.dirty.add(group)
            name, cause = shown(group.name), by(group.name)
            key_text = shown(key.decode(errors="replace"))
            log.info("group %s: key %s goes on, its dead letter is gone", name, key_text, extra=cause)
            self._groups.read_on(group)

    def recover(self) -> None:
        """A write was lost: what was decided with it is undone."""
        lost, self._decided, self._written = [*self._written, *self._decided], [], []
        for one in reversed(lost):
            _undo(one)


def _undo(one: _Changed) -> None:
    """Nothing of it was written."""
    row = one.order.row(one.key)
    if one.is_buried and row.letter == one.letter:
        one.order.requeue(one.key, one.wait)
    elif not one.is_buried and row.wait == one.wait:
        one.order.bury(one.key, one.letter)
