"""Counts messages that sessions miss when retention passes them: at QoS 1 or 2, and not read.

Each row is read once, and the router finds its sessions: 10,000 sleeping devices cost one pass over a slice,
not 10,000. They get no dead letters: a device that comes back wants new messages, and copies of one message
for all sleeping sessions would evict dead letters that users look for.
"""

import logging
from collections.abc import Sequence

from shards.commit import Commit
from shards.errors import Corrupt
from shards.fate import is_over
from shards.record import decode, is_moved, is_stub, topic_of
from timeline.horizon import Horizon
from timeline.position import Position
from timeline.session import Subscription

from ..message import publisher_of
from ..router import Router
from ..subscriber import Subscriber

log = logging.getLogger(__name__)

PAIRS = 5_000
"""Maximum sessions checked in a step, over all its messages, except those of the last message: some 5 ms."""


class Missed:
    """Checks messages one by one, and which sessions have not read them."""

    def __init__(self, router: Router, horizon: Horizon) -> None:
        self._router = router
        self._horizon = horizon
        self.pairs = 0
        """Sessions checked."""

    def count(self, commit: Commit, place: Position, value: bytes) -> int:
        """Number of sessions that miss the message at `place`."""
        if is_stub(value) or is_moved(value):
            return 0
        try:
            targets = self._router.route(topic_of(value))
            self.pairs += len(targets)
            horizon = self._horizon.position
            missing = [
                one
                for one, found in targets.items()
                if not one.is_group
                and one.session.is_ahead(place, horizon)
                and any(theirs.qos and theirs.since < place for theirs in found)
            ]
            if not missing:
                return 0
            record = decode(value)
        except Corrupt as error:
            log.error("message at %024x: unreadable, skipped: %s", place, error)
            return 0
        due_ms = record.due_ms or place >> 48
        if not record.qos or is_over(due_ms, record.expires_ms, commit.open_batch.wall_ms):
            return 0
        own = record.publisher
        return sum(not own or _takes_own(one, own, place, targets[one]) for one in missing)


def _takes_own(one: Subscriber, publisher: bytes, place: Position, found: Sequence[Subscription]) -> bool:
    """Whether the session gets this message: it is not its own publish, or it also wants those."""
    if publisher_of(one.session.client_id) != publisher:
        return True
    return any(theirs.qos and theirs.since < place and not theirs.no_local for theirs in found)
