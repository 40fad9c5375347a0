"""Where retries stand, kept with them: by position, for who counts, and by message, for who ends them.

    at · seq of the retry                  id of the message, shard
    ff · id of the message · addressee     for each retry that waits: at · seq, shard

The rows by position are exact: there is one for each row of the timeline that is a retry and no stub. Those
by message have what waits, and a little of what does not any more: who puts another one there drops what the
horizon has passed, and what is left goes with its slice (leavings.py). So a message that comes again and
again has one row for each addressee, and who has acked late finds what is still to come by one look-up, also
within the group that has placed it. One in `held` is named by message alone.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress

from timeline.position import HELD_SHARD, MessageId, Position, id_position, id_shard

from . import keys
from .errors import Corrupt
from .open_group import OpenGroup
from .read import Row
from .record import addressee_of, decode, is_retry, is_stub
from .store import Table
from .tables import (
    Spot,
    retry_value,
    spots_from,
    spots_value,
)

log = logging.getLogger(__name__)

SPOTS_MAX = 16
"""Retries of a message that wait for one addressee, as many as are known: of more the first is not found."""


def note(group: OpenGroup, message: MessageId, addressee: bytes, row: MessageId) -> None:
    """In the writer: a retry of the message has been placed in that row."""
    place, number = id_position(row), id_shard(row)
    if number != HELD_SHARD:
        group.row(Table.RETRIES, keys.place(place), retry_value(message, number))
    waiting = [spot for spot in spots(group, message, addressee) if does_wait(spot, group.horizon.position)]
    key = keys.retries_of(message, addressee)
    group.row(Table.RETRIES, key, spots_value([*waiting, (place, number)][-SPOTS_MAX:]))


def forget(group: OpenGroup, message: MessageId, addressee: bytes, spot: Spot) -> None:
    """In the writer: no retry stands there any more."""
    if spot[1] != HELD_SHARD:
        group.row(Table.RETRIES, keys.place(spot[0]), None)
    left = [other for other in spots(group, message, addressee) if other != spot]
    group.row(Table.RETRIES, keys.retries_of(message, addressee), spots_value(left) if left else None)


def spots(group: OpenGroup, message: MessageId, addressee: bytes) -> list[Spot]:
    """Where the retries of the message for the addressee stand, as this group leaves it; of another addressee
    there may be some, too. What cannot be read names none."""
    found = spots_in(group.get(Table.RETRIES, keys.retries_of(message, addressee)))
    return [spot for spot in found if does_wait(spot, group.directory.floor)]


def spots_in(value: bytes | None) -> list[Spot]:
    """What a row by message says; of one that cannot be read, or is not there, nothing."""
    try:
        return [] if value is None else spots_from(value)
    except Corrupt as error:
        log.error("where retries of a message stand cannot be read: %s", error)
        return []


def does_wait(spot: Spot, horizon: Position) -> bool:
    """Whether dispatch has not come to a retry that stands there."""
    return spot[1] == HELD_SHARD or spot[0] > horizon


def waiting(rows: Iterable[Row], horizon: Position) -> dict[bytes, list[Spot]]:
    """What rows by message have to say, by their keys, where the timeline and `held` have such rows."""
    found: dict[bytes, list[Spot]] = {}
    for place, number, value in rows:
        if is_retry(value) and not is_stub(value) and does_wait((place, number), horizon):
            with suppress(Corrupt):
                key = keys.retries_of(MessageId(decode(value).id), addressee_of(value))
                found.setdefault(key, []).append((place, number))
    return {key: spots[-SPOTS_MAX:] for key, spots in found.items()}
