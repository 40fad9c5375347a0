"""Status of groups, sessions and the disk, for `/metrics`.

There may be 100,000 sessions and 10,000 groups. So the status is taken before the answer, in steps between
which others have turns, and only TOP groups are reported one by one. They are found without reading the
store, by the oldest position that a group has not read or not acked:

    $share/w/jobs/#   oldest unacked 09:00       first
    $share/x/logs/#   has read up to 11:58       next
    $share/y/a        caught up                  last: it has no lag

A group without messages may be far back but have no lag. So the lag of the furthest groups, up to
`CANDIDATES` times TOP, is counted as in `/v1/groups` (http/backlog.py), over 1,000 rows each (`lag_is_exact`
says whether these were all), for `LOOK_S` in all. The same is done for the TOP groups with the next retries,
which may have read everything. Those with the most lag are reported.

A key that does not see every message gets no single groups: their names, filters and lag must not be revealed
to it.

A thread measures the size of the data and the free space; if the disk does not answer in `DISK_S` the last
known values stay.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from hashlib import sha256
from heapq import nlargest
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from shards.errors import ShardsError
from timeline.filters import SHARE_PREFIX, parse_share
from timeline.position import Position, at_of

from ..core import Core
from ..delivery.place import Place
from ..delivery.shared import Group
from ..delivery.subscriber import Subscriber
from ..http.backlog import LIST_LOOK_ROWS, lag_of, retries_of
from ..http.timeline import Timeline
from ..http.turns import Turn, least
from ..observe.history import GROUPS, SessionSample
from ..observe.logs import clean
from ..observe.metrics import Scraped, labelled
from ..webhook.last_posts import LAST_POSTS, Failing
from ..webhook.webhooks import Webhooks

P = TypeVar("P", bound=Place)
TOP = GROUPS
"""Maximum groups, and endpoints, reported one by one."""
CANDIDATES = 3
LOOK_S = 0.5
DISK_S = 0.5
LABEL_MAX = 128
"""Maximum characters of a client id or filter in a label; longer ones are cut, and distinguished by a
digest."""
DIGITS = 12
"""Characters of the digest. A text that looks as if it had one gets one, so that no client can imitate
another's label."""
ENDS = ("done", "dead", "dropped", "withheld")
"""How deliveries of a group end, or do not begin."""
RETAINED_LOOK = 16
"""Flights checked for one that is not a retained message: those may have any age."""


def _figure(text: str) -> Any:
    return field(metadata={"text": text})


@dataclass(frozen=True, slots=True)
class Row:
    """Status of one group: a metric for each figure, and its text."""

    labels: tuple[str, str]
    lag_messages: int = _figure("Messages that it has not read and will be sent")
    lag_is_exact: bool = _figure(
        "1: lag_messages is exact; 0: there may be more, 1,000 rows and 2 MiB were looked at"
    )
    lag_seconds: float = _figure("Age of the first message that it has not read")
    unacked_seconds: float = _figure("Age of the oldest message that was sent and is not acked")
    in_flight: int = _figure("Messages that were sent and are not acked")
    redeliveries: int = _figure("Messages that came again, since the start")
    members: int = _figure("Members, here or away")
    retries: int = _figure("Messages that wait for their next try")
    retry_oldest_seconds: float = _figure(
        "Age, since its due, of the message whose next try comes first; 0: none waits"
    )
    keys_blocked: int = _figure("Ordering keys that are behind or in trouble")
    keys_held: int = _figure("Ordering keys that a dead letter or somebody holds")
    done: int = _figure("Messages that were done, since the start")
    dead: int = _figure("Messages that became dead letters, since the start")
    dropped: int = _figure("Messages that were dropped undone, since the start")
    withheld: int = _figure("Messages that were withheld when they were to be given, since the start")

    @property
    def ends(self) -> tuple[int, ...]:
        """As ENDS."""
        return self.done, self.dead, self.dropped, self.withheld


@dataclass(slots=True)
class Totals:
    """Totals of all sessions; `keys_held`: of all groups and endpoints."""

    sessions: int = 0
    connected: int = 0
    in_flight: int = 0
    waiting: int = 0
    keys_held: int = 0

    def add(self, subscriber: Subscriber) -> None:
        self.sessions += 1
        self.connected += subscriber.link is not None
        self.in_flight += len(subscriber.session.flights)
        self.waiting += subscriber.is_ready


class Status(Scraped):
    """The status at the last request."""

    def __init__(self, core: Core, timeline: Timeline, webhooks: Webhooks, folder: Path) -> None:
        """`folder`: the data."""
        self._core = core
        self.timeline = timeline
        self._webhooks = webhooks
        self._folder = folder
        self.is_whole = True
        """Whether the caller sees every message; else single groups are left out."""
        self._totals = Totals()
        self.rows: list[Row] = []
        """Status of single groups."""
        self._idle_groups = 0
        self.disk: tuple[int, int] | None = None
        """Bytes of the data, and free ones; None: not known."""
        self._measuring: asyncio.Task[tuple[int, int] | None] | None = None

    async def look(self, turn: Turn) -> None:
        """Take the status now, in steps."""
        totals = await self._counted(turn)
        until_s = self._core.clock.mono() + LOOK_S

        def blocked(group: Group) -> int | None:
            order = group.session.order
            totals.keys_held += len(order.held)
            return -order.blocked or None

        groups = self._core.groups
        found = [
            *await self._first(turn, groups, self._oldest, CANDIDATES * TOP),
            *await self._first(turn, groups, self._core.retries.next_of, TOP),
            *await self._first(turn, groups, blocked, TOP),
        ]
        rows = await self._rows(turn, dict.fromkeys(found), until_s)
        await turn.begin()
        self.rows = rows
        self._totals = totals
        self._idle_groups = sum(1 for group in self._core.groups if not group.is_here)
        await self._measure()

    async def _counted(self, turn: Turn) -> Totals:
        totals = Totals()
        await turn.begin()
        for number, subscriber in enumerate(list(self._core.sessions), 1):
            totals.add(subscriber)
            if turn.is_over(number):
                await turn.begin()
        return totals

    async def sessions_behind(self, turn: Turn) -> list[SessionSample]:
        """The TOP sessions with lag that are furthest behind, furthest first, found as groups are."""
        until_s = self._core.clock.mono() + LOOK_S
        rows = []
        for session in await self._first(turn, self._core.sessions, self._oldest, CANDIDATES * TOP):
            await turn.begin()
            if self._core.clock.mono() > until_s:
                break
            lag = lag_of(session, self.timeline, self._core.router, LIST_LOOK_ROWS)
            if lag.lag_messages:
                retries, _ = retries_of(session, self.timeline)
                sample = SessionSample(
                    label_of(session.session.client_id),
                    lag.lag_messages,
                    lag.lag_messages_is_exact,
                    lag.lag_seconds,
                    in_flight=len(session.session.flights),
                    retries=retries,
                )
                rows.append(sample)
        return nlargest(TOP, rows, key=lambda row: (row.lag_seconds, row.lag_messages))

    async def _first(
        self, turn: Turn, places: Iterable[P], rank: Callable[[P], int | None], most: int
    ) -> list[P]:
        """The `most` places that rank lowest, in order; those without a rank are left out."""
        number = count()

        def numbered(place: P) -> tuple[int, int] | None:
            found = rank(place)
            return None if found is None else (found, next(number))

        return [found for _, found in await least(turn, list(places), numbered, most)]

    def _oldest(self, place: Place) -> Position:
        """The oldest position that it has not read or not acked; the horizon if there is none."""
        session, horizon = place.session, self._core.horizon.position
        read = session.read_at(horizon) if session.subscriptions else horizon
        return min(read, _unacked(place) or horizon)

    async def _rows(self, turn: Turn, found: Iterable[Group], until_s: float) -> list[Row]:
        rows = []
        for group in found:
            await turn.begin()
            if self._core.clock.mono() > until_s:
                break
            with suppress(ShardsError):  # the others are still reported
                rows.append(self._row(group))
        rows.sort(
            key=lambda row: (
                max(row.lag_seconds, row.unacked_seconds, row.retry_oldest_seconds),
                row.lag_messages,
            ),
            reverse=True,
        )
        return rows[:TOP]

    def _row(self, group: Group) -> Row:
        lag = lag_of(group, self.timeline, self._core.router, LIST_LOOK_ROWS)
        retries, first = retries_of(group, self.timeline)
        order = group.session.order
        return Row(
            _group_labels(group),
            lag.lag_messages,
            lag.lag_messages_is_exact,
            lag.lag_seconds,
            self._age_s(_unacked(group)),
            len(group.session.flights),
            group.redelivered,
            len(group.members),
            retries,
            0.0 if first is None else self._age_s(first[1]),
            order.blocked,
            len(order.held),
            *[group.rows.ends[name] for name in ENDS],
        )

    def _age_s(self, place: Position | None) -> float:
        return 0.0 if place is None else max(0, self._core.horizon.clock_ms - at_of(place)) / 1_000

    # -- the disk

    async def _measure(self) -> None:
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(asyncio.to_thread(measured, self._folder))
        done, _ = await asyncio.wait({self._measuring}, timeout=DISK_S)
        for task in done:
            self.disk = task.result()

    # -- Prometheus

    def collect(self) -> Iterator[Metric]:
        totals = self._totals
        for name, text, value in (
            ("fasti_sessions", "Sessions, present and away", totals.sessions),
            ("fasti_connections", "Sessions with a connection", totals.connected),
            ("fasti_in_flight", "Messages sent at QoS 1 or 2 and not acked", totals.in_flight),
            ("fasti_replay_queue", "Sessions that wait for their turn to read on", totals.waiting),
            (
                "fasti_ordering_keys_held",
                "Ordering keys that a dead letter or somebody holds, of all groups and endpoints",
                totals.keys_held,
            ),
            ("fasti_groups_without_consumers", "Groups without a connected member", self._idle_groups),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        if self.disk is not None:
            yield GaugeMetricFamily("fasti_store_bytes", "Size of the data directory", value=self.disk[0])
            text = "Free bytes of the disk that it is on"
            yield GaugeMetricFamily("fasti_disk_free_bytes", text, value=self.disk[1])
        if self.is_whole:
            yield from _families(self.rows)
            yield self._failing()

    def _failing(self) -> Metric:
        """The endpoints that fail most. One without posts since the start has no series."""
        text = (
            f"Share that failed of the last {LAST_POSTS} posts since the start, by endpoint, of the {TOP}"
            " that fail most; no series before the first post"
        )
        shares = [(name, failing.share) for failing, name in self.failing()]
        return labelled(GaugeMetricFamily, "fasti_endpoint_failing_share", text, ("endpoint",), shares)

    def failing(self) -> list[tuple[Failing, str]]:
        """The TOP endpoints that fail most, of those with posts since the start."""
        every = [(self._webhooks.failing(name), name) for name in self._webhooks.registry.names()]
        return nlargest(TOP, [one for one in every if one[0].of])


def _families(rows: list[Row]) -> Iterator[Metric]:
    for figure in fields(Row)[1:]:
        name, what = figure.name, figure.metadata["text"]
        kind = CounterMetricFamily if name in ("redeliveries", *ENDS) else GaugeMetricFamily
        text = f"{what}; by group and filter, of the {TOP} groups with the most lag"
        values = [(row.labels, getattr(row, name)) for row in rows]
        yield labelled(kind, f"fasti_group_{name}", text, ("group", "filter"), values)


def label_of(text: str) -> str:
    """A unique label for a client id or filter: a long or unprintable one ends in a digest."""
    if len(text) <= LABEL_MAX and text.isprintable() and text[-1 - DIGITS : -DIGITS] != "#":
        return text
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]
    return f"{clean(text, LABEL_MAX)}#{digest}"


def _group_labels(group: Group) -> tuple[str, str]:
    """Labels of its name and its filter; an endpoint has no filter."""
    text = group.text
    name, wanted = parse_share(text) if text.startswith(SHARE_PREFIX) else (text, "")
    return label_of(name or ""), label_of(wanted)


def _unacked(place: Place) -> Position | None:
    """Position of the first of its flights."""
    flights = islice(place.session.flights.values(), RETAINED_LOOK)
    return next((flight.position for flight in flights if not flight.is_retained), None)


def measured(folder: Path) -> tuple[int, int] | None:
    """Bytes of the files under `folder`, and free bytes; None: unknown."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return None
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.lstat().st_size
        except OSError:  # compaction has deleted it
            continue
    return size, free
