"""Groups that order by key, at start: their keys as stored, and the heads that are in flight."""

from collections.abc import Iterable

from shards.order import keys_name, rows_under
from shards.retries import RETRIES
from shards.store import Store
from timeline.key_order import NOWHERE

from .sent import Sent
from .shared import Group


def restore(store: Store, sent: Sent, groups: Iterable[Group]) -> None:
    """Restore the order of each group that orders. A retry that a key waits for may have gone since."""
    for group in groups:
        order = group.session.order
        if order is None:
            continue
        order.restore(rows_under(store, keys_name(group.whose)))
        for flight in group.session.flights.values():
            message = sent.message(flight)
            if message is not None:
                group.session.lead(flight, message.ordering_key)
        for key, row in order.rows():
            if row.wait != NOWHERE and RETRIES.stored_at(store, row.wait) is None:
                order.release(key)
        group.dirty.add(group)
