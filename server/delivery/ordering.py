"""Groups that order by key, at start: their keys as stored, and the heads that are in flight.

A key row names the head that rests; whether that waits, holds its key as a dead letter, or has ended, is the
state of its delivery. So at start, and after a failure of the store, each of these is looked up.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress

from shards import keys
from shards.errors import Corrupt
from shards.order import keys_name, rows_under
from shards.store import Store, Table
from shards.tables import DEAD, WAITING, state_row_of
from timeline.key_order import KeyOrder
from timeline.position import Position

from ..observe.logs import by, shown
from .sent import Sent
from .shared import Group

log = logging.getLogger(__name__)


def restore(store: Store, sent: Sent, groups: Iterable[Group]) -> None:
    """Restore the order of each group that orders."""
    for group in groups:
        order = group.session.order
        if not order.is_on:
            continue
        rows, read = [*rows_under(store, keys_name(group.whose))], group.session.read
        order.restore(rows)
        if any(row.next > read or row.root > read for _, row in rows):
            order.rewind(read, group.session.finished)  # it was set back
        for flight in group.session.flights.values():
            message = sent.message(group, flight)
            if message is not None:
                group.session.lead(flight, order.key_of(message.ordering_key))
        review(store, group, order)


def review(store: Store, group: Group, order: KeyOrder) -> None:
    """Look at all heads that rest. O(heads)."""
    for root in [*order.heads]:
        look(store, group, order, root)
    group.dirty.add(group)


def look(store: Store, group: Group, order: KeyOrder, root: Position) -> None:
    """A head that rests is what its delivery's row says. One that cannot be read has ended."""
    state = None
    with suppress(Corrupt):
        value = store.get(Table.DELIVERIES, keys.state(group.whose, root))
        state = None if value is None else state_row_of(value).state
    settle_head(group, order, root, state)


def settle_head(group: Group, order: KeyOrder, root: Position, state: int | None) -> None:
    """A head that rests has that state by now, and its key goes on if it neither waits nor is dead."""
    key = order.head_of(root)
    found = None if key is None else order.find(key)
    if key is None or found is None:
        return
    if state in (WAITING, DEAD):
        order.set_head(key, root, is_dead=state == DEAD)
        return
    if found.is_dead:
        name, text = shown(group.name), shown(key.decode(errors="replace"))
        log.info("group %s: key %s goes on, its dead letter is gone", name, text, extra=by(group.name))
    order.end_head(key)
