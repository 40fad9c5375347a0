"""Keys that a dead letter or somebody holds, in groups that order (timeline/key_order.py).

With `on_dead: "hold"` a dead letter holds its key. Nothing of the key is given until the letter is

    requeued    its message is the head of its key again, in the batch that deletes the letter
    gone        dropped, done late, requeued elsewhere, at the end of dead.retention or above a bound
    let go      by `:release`: the letter stays. The key goes on once the release is durable

A letter may go in many ways. So each batch is looked at when it is sealed: which dead letters does it delete?
Their keys go on when that is durable, and at start, if their letters are no longer there (ordering.py). The
log tells of it.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from shards import delivery_rows, keys
from shards.commit import Commit
from shards.dedupe import Refused
from shards.delivery_rows import Name
from shards.open_batch import OpenBatch
from shards.store import Store, Table
from shards.tables import DEAD
from timeline.key_order import KeyOrder
from timeline.key_rows import NOWHERE, KeyRow
from timeline.position import Position

from ...engine.commit_hook import CommitHook, Done
from ...engine.decisions import Decisions
from ...engine.writer import Writer
from ...observe.logs import by, shown
from ..cursors import Cursors
from ..membership import Membership
from ..ordering import review
from ..retries import Retries
from ..shared import Group
from ..subscriber import Subscriber
from ..terms import HOLD

log = logging.getLogger(__name__)


class _Gone(NamedTuple):
    """A dead letter that held a key."""

    group: Group
    key: bytes
    root: Position


class Holds(CommitHook):
    """Holds keys, and lets them go on."""

    def __init__(
        self,
        store: Store,
        groups: Membership,
        retries: Retries,
        cursors: Cursors,
        decisions: Decisions,
        writer: Writer,
    ) -> None:
        self._store = store
        self._groups = groups
        self._retries = retries
        self._cursors = cursors
        self._decisions = decisions
        self._writer = writer
        writer.add_hook(self)

    # -- in the writer

    def requeued(self, commit: Commit, one: Subscriber, root: Position) -> None:
        """A dead letter of the place is a retry now, or a retry has another time."""
        order = one.session.order
        key = None if order is None else order.held_by(root) or order.waiting_for(root)
        if order is not None and key is not None:
            self._change(commit, one, order, key, partial(order.requeue, key, root))

    def buried(self, commit: Commit, one: Subscriber, root: Position) -> None:
        """A retry of the place is a dead letter now."""
        order = one.session.order
        key = None if order is None else order.waiting_for(root)
        if order is not None and key is not None and isinstance(one, Group) and one.on_dead == HOLD:
            self._change(commit, one, order, key, partial(order.bury, key, root))

    def _change(
        self, commit: Commit, one: Subscriber, order: KeyOrder, key: bytes, change: Callable[[], None]
    ) -> None:
        """The key rests otherwise, with the batch."""
        before = order.row(key)
        change()
        self._cursors.store(commit, one)
        self._decisions.note(partial(_undo, order, key, before, order.row(key)))

    def hold(self, commit: Commit, group: Group, key: bytes) -> bool:
        """Hold a key by hand; False: the group does not order. Raises Refused at the bound."""
        order = group.session.order
        if order is None:
            return False
        if order.room.is_full and not order.has_row(key):
            raise Refused("over-quota", "limits.ordering_keys is reached: no further key can be held")
        before = order.row(key)
        order.hold_by_hand(key)
        self._cursors.store(commit, group)
        self._decisions.note(partial(self._put_back, group, order, key, before))
        return True

    def let_go(self, commit: Commit, group: Group, key: bytes) -> bool:
        """Let a held key go on, whoever holds it; False: nothing holds it."""
        order = group.session.order
        if order is None or key not in order.held:
            return False
        before = order.row(key)
        order.let_go(key)
        self._cursors.store(commit, group)
        undo = partial(self._put_back, group, order, key, before)
        self._decisions.note(undo, partial(self._go_on, group, order, key))
        return True

    def _go_on(self, group: Group, order: KeyOrder, key: bytes) -> None:
        """The release is durable."""
        order.go_on(key)
        self._look_again(group, order, key)

    def _put_back(self, group: Group, order: KeyOrder, key: bytes, before: KeyRow) -> None:
        """A hold or a release was not written: the key rests as before. Its letter may have gone in an
        earlier batch."""
        if before.letter != NOWHERE and self._writer.broken is None:
            name = Name(group.whose, before.letter)
            if not delivery_rows.is_there(self._store, name, DEAD):
                before = KeyRow(by_hand=before.by_hand)
        order.undo_hold(key, before)
        self._look_again(group, order, key)

    def _look_again(self, group: Group, order: KeyOrder, key: bytes) -> None:
        """Look at the key, and at its retry, which was passed over while it was held."""
        if self._groups.get(group.text) is not group or group.session.order is not order:
            return
        wait = order.row(key).wait
        row = None if wait == NOWHERE else delivery_rows.stored(self._store, Name(group.whose, wait))
        if row is not None and row.is_waiting:
            self._retries.look_again(group, row.at)
        self._groups.read_on(group)

    # -- with each batch

    def write(self, commit: Commit) -> Done | None:
        gone = self._look(commit)
        return partial(self._let_on, gone) if gone else None

    def recover(self) -> None:
        """What has failed may be stored all the same."""
        if self._writer.broken is None:
            return  # a request has spoiled its group, of which nothing was written
        for group in self._groups:
            if group.session.order is not None:
                review(self._store, group, group.session.order)
                self._groups.read_on(group)

    def _look(self, commit: Commit) -> list[_Gone]:
        """The letters that are none any more with this batch and that hold a key."""
        batch, found = commit.open_batch, list[_Gone]()
        if not batch.deleted(Table.DELIVERIES, keys.DEAD):
            return found
        orders = [(group, group.session.order) for group in self._groups]
        holding = {group.whose: (group, order.letters) for group, order in orders if order and order.letters}
        changed = batch.deleted(Table.DELIVERIES, keys.STATE) + batch.fresh(Table.DELIVERIES, keys.STATE)
        for name in (Name(*keys.state_in(key)) for key in changed if holding):
            group, letters = holding.get(name.whose, (None, {}))
            if group is not None and name.root in letters and not _is_dead(batch, name):
                found.append(_Gone(group, letters[name.root], name.root))
        return found

    def _let_on(self, gone: list[_Gone], answer: object) -> None:
        """Let keys go on whose letters are durably gone."""
        for group, key, root in () if isinstance(answer, Exception) else gone:
            order = group.session.order
            if order is None or order.held_by(root) != key:
                continue
            order.release(key)
            group.dirty.add(group)
            name, cause = shown(group.name), by(group.name)
            key_text = shown(key.decode(errors="replace"))
            log.info("group %s: key %s goes on, its dead letter is gone", name, key_text, extra=cause)
            self._groups.read_on(group)


def _undo(order: KeyOrder, key: bytes, before: KeyRow, after: KeyRow) -> None:
    """Nothing of it was written. Something else may have become of the key since."""
    row = order.row(key)
    if (row.wait, row.letter) != (after.wait, after.letter):
        return
    if before.letter != NOWHERE:
        order.bury(key, before.letter)
    else:
        order.requeue(key, before.wait)


def _is_dead(batch: OpenBatch, name: Name) -> bool:
    state = delivery_rows.state_at(batch, name)
    return state is not None and state.state == DEAD
