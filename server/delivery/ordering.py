"""Groups that order by key, at start: their keys as stored, and the heads that are in flight."""

import logging
from collections.abc import Iterable

from shards.dead import DEAD
from shards.order import keys_name, rows_under
from shards.retries import RETRIES
from shards.store import Store
from timeline.key_order import NOWHERE

from ..observe.logs import shown
from .sent import Sent
from .shared import Group

log = logging.getLogger(__name__)


def restore(store: Store, sent: Sent, groups: Iterable[Group]) -> None:
    """Restore the order of each group that orders. The retry that a key waits for, or the dead letter that
    holds it, may have gone since."""
    for group in groups:
        order = group.session.order
        if order is None:
            continue
        order.restore(rows_under(store, keys_name(group.whose)))
        for flight in group.session.flights.values():
            message = sent.message(flight)
            if message is not None:
                group.session.lead(flight, order.key_of(message.ordering_key))
        for key, row in order.rows():
            if row.wait != NOWHERE and not RETRIES.is_there(store, row.wait):
                order.release(key)
            elif row.letter != NOWHERE and not DEAD.is_there(store, row.letter):
                log.info("group %s: a key goes on, its dead letter is gone", shown(group.name))
                order.release(key)
        group.dirty.add(group)
