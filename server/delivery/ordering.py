"""Groups that order by key, at start: their keys as stored, and the heads that are in flight. After a failure
of the store, as at start: what keys wait for, and what holds them."""

import logging
from collections.abc import Iterable

from shards.dead import DEAD
from shards.order import keys_name, rows_under
from shards.retries import RETRIES
from shards.store import Store
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
        order.restore(rows_under(store, keys_name(group.whose)))
        if group.reread:
            order.rewind(group.session.read, group.session.finished)
        for flight in group.session.flights.values():
            message = sent.message(flight)
            if message is not None:
                group.session.lead(flight, order.key_of(message.ordering_key))
        review(store, group, order)


def review(store: Store, group: Group, order: KeyOrder) -> None:
    """The retry that a key waits for, or the dead letter that holds it, may have gone, or be another one. If
    its row does not say which, the key goes on. O(keys)."""
    name = keys_name(group.whose)
    for key, row in order.rows():
        if row.root == NOWHERE or _is_there(store, row) or order.row(key).root == NOWHERE:
            continue
        longer, stored = next(rows_under(store, name + key), (b"", row))
        if longer or not _is_there(store, stored):
            if row.letter != NOWHERE:
                log.info("group %s: a key goes on, its dead letter is gone", shown(group.name))
            order.release(key)
        elif stored.letter != NOWHERE:
            order.bury(key, stored.letter)
        else:
            order.requeue(key, stored.wait)
    group.dirty.add(group)


def _is_there(store: Store, row: KeyRow) -> bool:
    """Whether the retry or the dead letter is there that a row names."""
    if row.letter != NOWHERE:
        return DEAD.is_there(store, row.letter)
    return row.wait != NOWHERE and RETRIES.is_there(store, row.wait)
