"""Groups that order by key, at start: their keys as stored, and the heads that are in flight. After a failure
of the store, as at start: what keys wait for, and what holds them."""

import logging
from collections.abc import Iterable

from shards import delivery_rows
from shards.delivery_rows import Name
from shards.order import keys_name, rows_under
from shards.store import Store
from shards.tables import DEAD, WAITING
from timeline.key_order import KeyOrder
from timeline.key_rows import NOWHERE, KeyRow

from ..observe.logs import shown
from .sent import Sent
from .shared import Group

log = logging.getLogger(__name__)


def restore(store: Store, sent: Sent, groups: Iterable[Group]) -> None:
    """Restore the order of each group that orders."""
    for group in groups:
        order = group.session.order
        if order is None:
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
    """The retry that a key waits for, or the dead letter that holds it, may have gone, or be another one. If
    its row does not say which, the key goes on. O(keys)."""
    name = keys_name(group.whose)
    for key, row in order.rows():
        if row.root == NOWHERE or _is_there(store, group, row) or order.row(key).root == NOWHERE:
            continue
        longer, stored = next(rows_under(store, name + key), (b"", row))
        if longer or not _is_there(store, group, stored):
            if row.letter != NOWHERE:
                log.info("group %s: a key goes on, its dead letter is gone", shown(group.name))
            order.release(key)
        elif stored.letter != NOWHERE:
            order.bury(key, stored.letter)
        else:
            order.requeue(key, stored.wait)
    group.dirty.add(group)


def _is_there(store: Store, group: Group, row: KeyRow) -> bool:
    """Whether the retry or the dead letter is there that a row names."""
    state = DEAD if row.letter != NOWHERE else WAITING
    return delivery_rows.is_there(store, Name(group.whose, row.root), state)
