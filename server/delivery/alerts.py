"""Alerts: posts to the endpoint in `alerts` of a group or endpoint, when its messages die or are withheld.

    {"group": "mail", "event": "dead", "attempts": 3, "id": "019a...", "topic": "jobs/1", ...}
    {"group": "mail", "event": "more", "more": 990, "at": ...}

An alert is a message to `$alerts/{endpoint}`, sent by the key that set `alerts`: dropped if that key may not
deliver there, withheld if it loses the right before the post. It is in the batch in which the message dies or
is withheld. The server's own messages raise none: no loop. After MOST in a minute, the others are counted, in
RAM, and told by one alert.
"""

import logging
from collections.abc import Iterable
from functools import partial

import msgspec

from shards.commit import Commit, Draft, Refused
from shards.fields import Record
from shards.record import ENCODINGS, encode
from timeline.position import END, MessageId, id_text

from ..engine.commit_hook import CommitHook, Done
from ..engine.writer import Writer
from ..observe.logs import by, clean
from ..settings.times import time_text
from .giving import OWN_TOPICS
from .owners import ALERTS, Owners
from .place import Place
from .router import Router
from .shared import Group

log = logging.getLogger(__name__)

MOST, MINUTE_MS = 10, 60_000
Alert = tuple[Group, dict[str, object]]


class Alerts(CommitHook):
    """`dropped`: alerts without an endpoint, without the right to deliver there, or without room."""

    def __init__(self, router: Router, owners: Owners, writer: Writer) -> None:
        self._router = router
        self._owners = owners
        self._minutes: dict[Group, tuple[int, int]] = {}
        """When each began, wall ms, in order; and alerts that were due in it."""
        self._waiting: list[Alert] = []
        """For the next batch."""
        self.dropped = 0
        writer.add_hook(self)

    def note(
        self, places: Iterable[Place], record: Record, name: MessageId, now_ms: int, attempts: int, died: str
    ) -> None:
        """A message of these places is dead now, as `died` says; empty: it is withheld."""
        for group in places if not record.topic.startswith(OWN_TOPICS) else ():
            if not isinstance(group, Group) or not group.keeping.alerts:
                continue
            start_ms, count = self._minutes.get(group, (now_ms, 0))
            self._minutes[group] = start_ms, count + 1
            alert: dict[str, object] = {"event": "dead" if died else "withheld", "attempts": attempts}
            if count < MOST and self._owners.may_receive(group.keeping.alerts_by or "", record.topic):
                why = died or self._owners.why_not(record)
                alert |= {"id": id_text(name), "topic": record.topic.decode(), "reason": why}
            if count < MOST:
                self._waiting.append((group, alert))

    def write(self, commit: Commit) -> Done | None:
        now_ms = commit.open_batch.wall_ms
        for group, (start_ms, count) in [*self._minutes.items()]:
            if 0 <= now_ms - start_ms < MINUTE_MS:
                break
            del self._minutes[group]
            if count > MOST:
                self._waiting.append((group, {"event": "more", "more": count - MOST}))
        waiting, self._waiting = self._waiting, []
        for group, alert in waiting:
            try:
                self._place(commit, group, alert | {"at": time_text(now_ms)})
            except Refused as error:
                self.dropped += 1
                log.warning("%s: alert dropped: %s", clean(group.name), error, extra=by(group.name))
        return partial(self._written, waiting) if waiting else None

    def _place(self, commit: Commit, group: Group, alert: dict[str, object]) -> None:
        """Raises Refused."""
        target, owner = (group.keeping.alerts or "").encode(), (group.keeping.alerts_by or "").encode()
        named = {"endpoint": group.endpoint} if group.is_endpoint else {"group": group.name}
        body, json = msgspec.json.encode(named | alert), ENCODINGS.index("json")
        record = Record(ALERTS + target, body, encoding=json, owner=owner, deliver_to=target)
        is_there = self._router.posted(target, owner, END)
        if why := self._owners.why_not(record) if is_there else "its endpoint is gone":
            raise Refused("alerts", why)
        commit.put_owed(Draft(0, record.topic, encode(record)))

    def _written(self, waiting: list[Alert], answer: object) -> None:
        self._waiting[:0] = waiting if isinstance(answer, Exception) else ()

    def recover(self) -> None:
        """A write was lost. Deaths in it may not be stored: they are noted again, or come to nothing."""
        self._waiting = [one for one in self._waiting if one[1]["event"] != "dead"]
