"""Keys that a dead letter or somebody holds, in groups that order (timeline/key_order.py).

With `on_dead: "hold"` a dead letter holds its key. Nothing of the key is given until the letter is

    requeued    its message waits, and is the head of its key still
    gone        dropped, done late, requeued elsewhere, at the end of dead.retention or above a bound
    let go      by `:release`: the letter stays. The key goes on once the release is durable

The key row names its head, and the head's own row says whether it waits or is dead. So at start, and after a
failure of the store, each head that rests is looked up. A head may change in many ways. So no such way tells
the order: each batch is looked at when it is sealed, for deliveries that change and are heads. When it is
durable their keys follow. What a batch must not leave to a start is in it: a head that is a dead letter and
holds nothing is in the key row no more.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from shards import delivery_rows, keys
from shards.commit import Commit
from shards.dedupe import Refused
from shards.delivery_rows import Name
from shards.errors import Corrupt
from shards.open_batch import OpenBatch
from shards.order import keys_name, rows_under
from shards.store import Store, Table
from shards.tables import DEAD, DONE, UNDONE, state_row_of
from timeline.key_order import KeyOrder
from timeline.key_rows import NOWHERE, KeyRow
from timeline.position import Position

from ...engine.commit_hook import CommitHook, Done
from ...engine.decisions import Decisions
from ...engine.writer import Writer
from ...observe.logs import by, clean
from ..cursors import Cursors
from ..membership import Membership
from ..place import Place
from ..retries import Retries
from ..sent import Sent
from ..shared import Group

log = logging.getLogger(__name__)

_Head = tuple[Group, Position, int | None]
"""A head that a batch changes, by its root, and its state with that; None: it has no row any more."""


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
        self._ordered: dict[bytes, Group] = {}
        """Groups with an order by `whose`, ..."""
        self._begun = 0
        """... of the first so many orders."""
        writer.add_hook(self)

    def restore(self, sent: Sent) -> None:
        """At start: restore the order of each group that orders. Its flights are heads again."""
        for group in self._ordering():
            order, read = group.session.order, group.session.read
            rows = [*rows_under(self._store, keys_name(group.whose))]
            order.restore(rows)
            if any(row.next > read or row.root > read for _, row in rows):
                order.rewind(read, group.session.finished)  # it was set back
            for flight in group.session.flights.values():
                message = sent.message(group, flight)
                if message is not None:
                    group.session.lead(flight, order.key_of(message.ordering_key))
            self._review(group)

    def _ordering(self) -> Iterator[Group]:
        return (group for group in self._groups if group.session.order.is_on)

    # -- in the writer

    def hold(self, commit: Commit, group: Group, key: bytes) -> bool:
        """Hold a key by hand; False: the group does not order. Raises Refused at the bound."""
        order = group.session.order
        if not order.is_on:
            return False
        if order.room.is_full and order.find(key) is None:
            raise Refused("over-quota", "limits.ordering_keys is reached: no further key can be held")
        self._change(commit, group, order, key, by_hand=True, ends=False)
        return True

    def let_go(self, commit: Commit, group: Group, key: bytes) -> bool:
        """Let a held key go on, whoever holds it; False: nothing holds it. With order, a retry goes on
        waiting."""
        order = group.session.order
        found = order.find(key)
        if found is None or not found.is_held:
            return False
        ends = found.is_dead or not order.rule.is_ordered
        self._change(commit, group, order, key, by_hand=False, ends=ends)
        return True

    def buried(self, commit: Commit, one: Place, root: Position, *, is_held: bool) -> None:
        """A retry of the place is a dead letter now. `is_held`: it holds its key."""
        order = one.session.order
        found = order.find(order.head_of(root) or b"")
        if found is not None and not is_held and isinstance(one, Group):
            self._change(commit, one, order, order.heads[root], by_hand=found.by_hand, ends=True)

    def _change(
        self, commit: Commit, group: Group, order: KeyOrder, key: bytes, *, by_hand: bool, ends: bool
    ) -> None:
        """With the batch the key is held by hand or not, and its head `ends`. Until that is durable nothing
        of the key is given."""
        before = order.row(key)
        order.stop(key)
        order.hold(key, by_hand=by_hand)
        if ends:
            order.end_head(key)
        self._cursors.store(commit, group)
        changed = partial(self._changed, group, order, key, before.root)
        self._decisions.note(partial(changed, before), changed)

    def _changed(
        self, group: Group, order: KeyOrder, key: bytes, root: Position, before: KeyRow | None = None
    ) -> None:
        """The change is durable; or is none, and the key rests as `before`. Its head may have gone in an
        earlier batch. Its retry was passed over meanwhile."""
        if before is not None:
            order.hold(key, by_hand=before.by_hand)
        if before is not None and before.root != NOWHERE:
            order.set_head(key, before.root)
            if self._writer.broken is None:
                self._look(group, before.root)
        order.go_on(key)
        if self._groups.get(group.text) is not group or group.session.order is not order:
            return
        root = order.row(key).root or root
        row = None if root == NOWHERE else delivery_rows.stored(self._store, Name(group.whose, root))
        if row is not None and row.is_waiting:
            self._retries.look_again(group, row.at)
        self._groups.read_on(group)

    # -- with each batch

    def write(self, commit: Commit) -> Done | None:
        heads = [*self._heads(commit.open_batch)] if self._groups.key_bound.count else []
        return partial(self._follow, heads) if heads else None

    def recover(self) -> None:
        """Reread the store: a batch whose sync failed may still be there."""
        if self._writer.broken is None:
            return  # a request has spoiled its group, of which nothing was written
        for group in self._ordering():
            self._review(group)
            self._groups.read_on(group)

    def _heads(self, batch: OpenBatch) -> Iterator[_Head]:
        """The heads whose deliveries change with this batch."""
        changed = batch.deleted(Table.DELIVERIES, keys.STATE) + batch.fresh(Table.DELIVERIES, keys.STATE)
        if changed and self._begun != self._groups.key_bound.begun:
            self._begun = self._groups.key_bound.begun
            self._ordered = {group.whose: group for group in self._ordering()}
        for name in (Name(*keys.state_in(key)) for key in changed):
            group = self._ordered.get(name.whose)
            if group is not None and name.root in group.session.order.heads:
                row = delivery_rows.state_at(batch, name)
                yield group, name.root, None if row is None or row.state == DONE else row.state

    def _follow(self, heads: list[_Head], answer: object) -> None:
        """The batch is durable: the keys do as their heads are now."""
        for group, root, state in () if isinstance(answer, Exception) else heads:
            if group.session.order.head_of(root) is not None:
                _settle(group, root, state)
                group.dirty.add(group)
                self._groups.read_on(group)

    # -- heads that rest

    def _review(self, group: Group) -> None:
        """Look at all of a group. O(heads)."""
        for root in [*group.session.order.heads]:
            self._look(group, root)
        group.dirty.add(group)

    def _look(self, group: Group, root: Position) -> None:
        """It is what its delivery's row says. One that cannot be read has ended."""
        state = None
        with suppress(Corrupt):
            value = self._store.get(Table.DELIVERIES, keys.state(group.whose, root))
            state = None if value is None else state_row_of(value).state
        _settle(group, root, state)


def _settle(group: Group, root: Position, state: int | None) -> None:
    """A head that rests has that state by now, and its key goes on if it neither waits nor is dead."""
    order = group.session.order
    key = order.head_of(root)
    found = None if key is None else order.find(key)
    if key is None or found is None:
        return
    if state == DEAD or state in UNDONE:
        order.set_head(key, root, is_dead=state == DEAD)
        return
    if found.is_dead:
        name, text = clean(group.name), clean(key.decode(errors="replace"))
        log.info("group %s: key %s goes on, its dead letter is gone", name, text, extra=by(group.name))
    order.end_head(key)
