"""Dead letters: how many are kept, and for how long; and their copies at `$dead/{group}/{topic}`.

A delivery that is dead is kept with its tries and the reason (shards/deliveries.py). In the same batch a copy
goes to the subscribers of `$dead/...`. Bounds: 100,000 and `dead.max_bytes`, beyond which the oldest is
dropped in the batch that brings a new one; and `dead.retention`, in running time of the server, enforced by
housekeeping. Dropped ones are counted.
"""

import logging
from contextlib import suppress
from functools import partial
from urllib.parse import quote

import msgspec

from shards import delivery_rows
from shards.commit import Commit, Refused
from shards.deliveries import bury, drop_older
from shards.delivery_rows import NONE, DeliveryRow
from shards.errors import StoreFailed
from shards.fields import Record
from shards.properties import user_property
from shards.store import Store
from shards.tables import KeptTotals
from timeline.filters import TOPIC_BYTES_MAX, refused_character
from timeline.position import Position, id_text

from ...engine.commit_hook import ignore
from ...engine.decisions import Decisions
from ...observe.logs import by, clean
from ...settings.config import Dead as Bounds
from ..owners import Owners
from ..publish_request import PublishRequest
from ..publishing import Publishing

log = logging.getLogger(__name__)

SWEEP_MAX = 250
"""Maximum expired dead letters dropped in one step."""
DEAD_REASON = "fasti-dead-reason"
"""User property with the reason, the last one of a copy."""


class DeadLetterQueue:
    """The dead letters of one server. `buried`, `crowded_out`, `expired`: counts since the start."""

    def __init__(
        self, store: Store, bounds: Bounds, owners: Owners, publishing: Publishing, decisions: Decisions
    ) -> None:
        self._store = store
        self._bounds = bounds
        self._owners = owners
        self._publishing = publishing
        self._decisions = decisions
        self.alerts = publishing.alerts
        self._totals = NONE
        self.buried = self.crowded_out = self.expired = 0

    @property
    def totals(self) -> KeptTotals:
        """Their number and bytes; while the store cannot be read, the last known ones."""
        with suppress(StoreFailed):
            self._totals = delivery_rows.totals(self._store)
        return self._totals

    def half_of_room(self, commit: Commit) -> tuple[int, int]:
        """Half of the remaining room for dead letters, in messages and bytes."""
        now, bounds = delivery_rows.totals(commit.open_batch), self._bounds
        return max(0, bounds.max_messages - now.count) // 2, max(0, bounds.max_bytes - now.bytes) // 2

    def keep(
        self, commit: Commit, row: DeliveryRow, record: Record, *, has_copy: bool, is_logged: bool
    ) -> Position:
        """In the writer: keep a row, with a copy of its message or without. Returns the time of death. Raises
        Refused before anything is changed."""
        topic = self._copy(commit, row, record) if has_copy else b""
        most = self._bounds.max_messages, self._bounds.max_bytes
        place, gone = bury(commit, row, max_messages=most[0], max_bytes=most[1])
        self._decisions.note(ignore, partial(self.note_buried, row if is_logged else None, topic, gone))
        return place

    def _copy(self, commit: Commit, row: DeliveryRow, record: Record) -> bytes:
        """Publish that the session or group has given up the message. Returns the topic. Does nothing if the
        message's owner may no longer send it."""
        copy = _copy_of(row.group, record, row.reason)
        may = self._owners.allow_record(record)
        if may and self._publishing.place(commit, PublishRequest(copy)) is None:
            raise Refused("over-quota", "too large to be announced at $dead")
        return copy.topic

    def note_buried(self, row: DeliveryRow | None, topic: bytes = b"", gone: int = 0) -> None:
        """A dead letter is durable, for which `gone` were evicted. `row`: to be logged; None: it is not."""
        self.buried += 1
        self.crowded_out += gone
        if gone:
            log.warning("dead letters: %d dropped, the limit or dead.max_bytes is reached", gone)
        if row is not None:
            details = clean(row.group), id_text(row.id), clean(topic), row.reason
            log.warning("%s: message %s moved to %s: %s", *details, extra=by(row.group))

    def are_over(self, running_ms: int) -> bool:
        """Whether the retention of the oldest one is over."""
        oldest = delivery_rows.oldest_dead(self._store)
        return oldest is not None and oldest.running_ms < running_ms - self._bounds.retention_ms

    def drop_expired(self, commit: Commit, running_ms: int) -> int:
        """In the writer: drop a step's worth of expired ones. Returns their number.

        `running_ms`: now. The open group's own is from the last write, which may be long ago.
        """
        return drop_older(commit, running_ms - self._bounds.retention_ms, SWEEP_MAX)

    def note_expired(self, gone: int) -> None:
        """Count expired dead letters."""
        self.expired += gone


def _copy_of(name: str, record: Record, reason: str) -> Record:
    topic = f"$dead/{_level(name)}/".encode() + record.topic
    if len(topic) > TOPIC_BYTES_MAX:
        topic = topic[: TOPIC_BYTES_MAX - 3].decode(errors="ignore").encode()
    return msgspec.structs.replace(
        record,
        topic=topic,
        retain=False,
        due_ms=0,
        id=0,
        key=b"",
        owner=b"",  # the server's own: only it may send to the topic
        retry=None,
        deliver_to=b"",  # only a report of the message, so it is not posted
        properties=record.properties + user_property(DEAD_REASON, reason),
    )


def _level(name: str) -> str:
    """A name as a level of a topic, which may not contain all that a client id may."""
    return "".join(quote(one, "") if one in "%/+#" or refused_character(one) else one for one in name)
