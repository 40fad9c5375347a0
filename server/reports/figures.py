"""Metrics of the server, read from its parts on request: `/metrics` and `$SYS/#`.

Both have the same figures. Prometheus requests them; for MQTT clients they are published, under the names
that broker users know. server/observe/metrics.py counts what cannot be read later.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from shards.fields import Record
from timeline.position import at_of

from ..codec.reasons import Reason
from ..core import Core
from ..delivery.burials import (
    ENDPOINT_DELETED,
    GROUP_DELETED,
    GROUP_EXPIRED,
    KEPT_TOO_LONG,
    SESSION_ENDED,
    SKIPPED,
)
from ..delivery.retention import Retention
from ..engine.archive import Archive
from ..http.values.shapes import Figures as Moving
from ..http.values.shapes import HeldBy
from ..jobs.pipeline import Pipeline
from ..net.pool import Pool
from ..observe.metrics import Metrics, Scraped, labelled
from ..observe.version import server_version
from ..settings.memory import PARTS
from ..settings.times import format_ms
from ..webhook.verdicts import Outcome
from ..webhook.webhooks import Webhooks
from .loads import Loads

PREFIX = "$SYS/broker/"
DROPPED = (GROUP_EXPIRED, GROUP_DELETED, ENDPOINT_DELETED, SESSION_ENDED, SKIPPED, KEPT_TOO_LONG)


class Figures(Scraped):
    """Reads the parts of one server at each request."""

    def __init__(
        self,
        core: Core,
        metrics: Metrics,
        pipeline: Pipeline,
        retention: Retention,
        archive: Archive,
        webhooks: Webhooks,
        pool: Pool,
    ) -> None:
        self._core = core
        self._pool = pool
        self._metrics = metrics
        self._pipeline = pipeline
        self._retention = retention
        self._archive = archive
        self._webhooks = webhooks
        self._started_s = core.clock.mono()
        self._loads = Loads(self._started_s)

    # -- Prometheus

    def collect(self) -> Iterator[Metric]:
        yield self._metrics.lateness()
        yield self._metrics.turns()
        for name, text, value in (*self._counters(), *self._traffic()):
            yield CounterMetricFamily(f"fasti_{name}", text, value=value)
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(f"fasti_{name}", text, value=value)
        answers = [((*one[:2], str(one[2])), count) for one, count in self._metrics.answers.items()]
        text, labels = "HTTP answers by method, route and status", ("method", "route", "status")
        yield labelled(CounterMetricFamily, "fasti_http_answers", text, labels, answers)
        for door, counted in (("http", self._metrics.bounded), ("mqtt", self._metrics.bounded_mqtt)):
            text = (
                f"Connections of {door.upper()} refused or closed, by the bound that was reached (open files:"
                " shed because descriptors ran out)"
            )
            name = f"fasti_{door}_connections_bounded"
            yield labelled(CounterMetricFamily, name, text, ("bound",), counted.items())
        yield self._metrics.latency()
        connects = self._core.publishing.traffic.answered
        text = "CONNECTs by the reason that they were answered with"
        named = [(reason_name(reason), count) for reason, count in connects.items()]
        yield labelled(CounterMetricFamily, "fasti_mqtt_connects", text, ("reason",), named)
        limits = list(self._limits())
        text = "Bounds of the whole server by name: settings and parts of limits.memory; 0: none"
        bounds = [(name, most) for name, most, _ in limits]
        yield labelled(GaugeMetricFamily, "fasti_limit", text, ("name",), bounds)
        text = "How much of each bound is taken, by name; of limits.memory RSS"
        taken_of = {name: taken for name, _, taken in limits}
        yield labelled(GaugeMetricFamily, "fasti_limit_used", text, ("name",), taken_of.items())
        text = "Bytes taken of each part of limits.memory, by part, as they are counted"
        parts = self._memory(taken_of)
        yield labelled(GaugeMetricFamily, "fasti_memory_bytes", text, ("part",), parts)
        yield from self._jobs()

    def _memory(self, taken_of: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """The counted parts of memory, and their bytes. `taken_of`: usage of each bound."""
        core = self._core
        known = {"tail": core.tail.bytes + core.spill.bytes, "unread and unsent": self._pool.held}
        for part in PARTS:
            sizes = [unit.each * taken_of[name] for name, unit in part.bounds.items() if name in taken_of]
            if sizes:
                yield part.name, known.get(part.name, max(sizes))

    def _jobs(self) -> Iterator[Metric]:
        pipeline, dropped = self._pipeline, self._core.burials.dropped
        text, labels = "Ended jobs by kind and outcome (done, aborted)", ("kind", "outcome")
        yield labelled(CounterMetricFamily, "fasti_jobs_ended", text, labels, pipeline.outcomes.items())
        text = "Messages that a place left unfinished and that became no dead letters, by reason"
        # All of them from the start, so that an increase from 0 is visible.
        by_reason = [(reason, dropped[reason]) for reason in DROPPED]
        yield labelled(CounterMetricFamily, "fasti_undone_dropped", text, ("reason",), by_reason)
        text = "How long slices behind retention have been kept, by the group or endpoint furthest behind"
        held_by = self.held_by()
        kept = [] if held_by is None else [(held_by.group, held_by.seconds)]
        yield labelled(GaugeMetricFamily, "fasti_floor_kept_seconds", text, ("group",), kept)
        text = "Rows of slices that jobs cut (split) or dropped (expire), by kind"
        yield labelled(CounterMetricFamily, "fasti_job_rows", text, ("kind",), pipeline.rows.items())

    def _counters(self) -> Iterator[tuple[str, str, float]]:
        counts = self._core.dispatch.counts
        yield "messages_dispatched", "Stored messages that the horizon has passed", counts.dispatched
        text = "Messages whose time to live was over at dispatch, or that were late with late: drop"
        yield "messages_expired", text, counts.expired
        text = (
            "Messages, plain publishes too, that no session, group or endpoint asked for at dispatch. One"
            " that is away or paused asks. What is retained, expired or withheld does not count"
        )
        yield "messages_unclaimed", text, counts.unclaimed
        yield "messages_early", "Messages handed on before their due; always 0", counts.early
        yield "dispatch_turns", "Times that the horizon was moved", counts.turns
        yield "slices_expired", "Slices dropped after their retention", self._retention.dropped
        text = "Times that a session or group found its read position dropped"
        yield "replays_lost", text, self._core.replay.lost
        text = "Messages in flight whose slice was dropped before they became dead letters"
        yield "flights_lost", text, self._core.sent.lost
        text = "Deliveries that failed and were put off: the message comes again"
        yield "retries", text, self._core.events.retried
        text = "Results in PUBACKs that were dropped: no JSON, no room, or the message was not the client's"
        yield "results_dropped", text, self._core.settling.results_dropped
        text = "Times that a message was not handed out, as its owner may not send to its topic any more"
        yield "messages_withheld", text, self._core.owners.withheld
        text = "Times that a group passed over a message, as none of its clients may receive the topic"
        yield "messages_barred", text, self._core.router.barred
        endpoint = "Webhook posts that "
        posts = self._webhooks.posted
        yield "webhook_posts_done", endpoint + "were answered with 2xx", posts[Outcome.DONE]
        failed = posts[Outcome.AGAIN] + posts[Outcome.GONE]
        yield "webhook_posts_failed", endpoint + "failed: the message comes again or is dead", failed
        yield "messages_cancelled", "Cancels that succeeded", self._metrics.cancelled
        yield "messages_moved", "Moves that succeeded", self._metrics.moved
        dead_letter_queue = self._core.dead_letter_queue
        yield "dead_letters_buried", "Messages that became dead letters", dead_letter_queue.buried
        text = "Dead letters dropped because 100,000, or dead.max_bytes of them, are kept"
        yield "dead_letters_crowded_out", text, dead_letter_queue.crowded_out
        yield "dead_letters_expired", "Dead letters dropped after dead.retention", dead_letter_queue.expired
        text = "Stories of finished deliveries dropped for newer ones, as there is no more room for them"
        yield "stories_crowded_out", text, self._core.cursors.crowded_out
        text = "Ends of deliveries of which the archive learns nothing, as too many wait for it"
        yield "archive_ends_lost", text, self._core.opened.open_batch.ends_lost
        text = "Alerts dropped: their endpoint was gone, or the key that set them may not deliver there"
        yield "alerts_dropped", text, dead_letter_queue.alerts.dropped
        text = "Messages not retained because 100,000 topics have one or the store takes nothing"
        yield "retained_refused", text, self._core.retained.refused
        refused = self._core.sessions.quota.refused
        yield "subscriptions_refused", "Subscriptions refused because a bound on them was reached", refused

    def _traffic(self) -> Iterator[tuple[str, str, float]]:
        traffic = self._core.publishing.traffic
        yield "connects", "MQTT connections opened", traffic.connects
        yield "publishes_received", "Publishes received over MQTT", traffic.received
        yield "publishes_refused", "Publishes refused over MQTT", traffic.refused
        yield "messages_leased", "Messages leased over HTTP, each time that one is", self._core.pull.leased
        yield "messages_delivered", "Messages sent to subscribers", traffic.sent
        yield "wills_lost", "Wills given up because too many could not be placed", self._core.wills.lost
        text = (
            "Deliveries dropped: larger than the subscriber takes; or at QoS 0, not stored, and no room at"
            " the subscriber until they had left the tail"
        )
        yield "messages_dropped", text, _dropped(self._core)

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        core = self._core
        yield "messages_pending", "Messages neither dispatched nor cancelled", core.opened.waiting.pending
        text = "Messages that wait because the clock was set back"
        yield "messages_held", text, core.opened.waiting.held
        text = "Messages that nobody has been given, as their senders may not send them now"
        yield "withheld_messages", text, core.opened.withheld.count
        yield "unreadable_stretches", "Ranges of messages that cannot be read", len(core.reader.unreadable)
        passed_over = (
            core.sessions.unreadable + core.schedules.unreadable + self._webhooks.registry.unreadable
        )
        yield "unreadable_rows", "Sessions, cursors, schedules and endpoints that cannot be read", passed_over
        yield "webhook_posts_open", "Webhook posts under way", self._webhooks.under_way
        text = "Groups of requests that one request spoilt: a fault of the server, the log has it"
        yield "groups_given_up", text, core.writer.given_up
        yield "store_writable", "1: the store takes writes; 0: it is read-only", core.writer.broken is None
        drain = core.groups.loans.drain
        is_draining = drain.since_ms is not None
        yield "draining", "1: groups and endpoints are given nothing new (POST /v1/drain)", is_draining
        text = "While it drains: messages that workers and endpoints have not finished; else 0"
        yield "draining_out", text, drain.out if is_draining else 0
        text = "Groups and endpoints that read no further, as limits.ordering_keys is reached"
        yield "groups_standing", text, core.groups.key_bound.stopped
        yield "live_publishes", "Plain publishes that wait for the horizon", core.dispatch.live
        yield "jobs_open", "Open pipeline jobs", self._pipeline.open
        text = "Age of the first message that has passed and that slices.archive has not; 0: there is none"
        yield "archive_lag_seconds", text, self._archive.lag_s
        text = "1: messages are refused, as the disk is nearly full and slices wait for the archive"
        yield "archive_refusing", text, bool(self._retention.full)
        text = "How far dispatch is behind what is due; 0 while nothing is"
        yield "horizon_behind_seconds", text, behind(core, core.clock.wall_ms()) / 1_000

    def _limits(self) -> Iterator[tuple[str, int, float]]:
        """Name, bound and usage of each limit."""
        core, config = self._core, self._core.config
        limits, quota, dead = config.limits, core.sessions.quota, core.dead_letter_queue.totals
        yield "limits.memory", limits.memory.bytes, resident_bytes()
        yield "limits.pool_bytes", limits.pool_bytes, self._pool.taken
        yield "http.buffered_bytes", config.http.buffered_bytes, core.pull.held_bytes
        yield "limits.sessions", limits.sessions, len(core.sessions)
        yield "limits.groups", limits.groups, len(core.groups)
        yield "limits.ordering_keys", limits.ordering_keys, core.groups.key_bound.count
        yield "limits.subscriptions", limits.subscriptions, quota.count
        yield "limits.subscription_bytes", limits.subscription_bytes, quota.bytes
        yield "limits.pending", limits.pending, core.opened.waiting.pending + core.opened.waiting.retries
        yield "limits.schedules", limits.schedules, len(core.schedules)
        yield "limits.endpoints", limits.endpoints, len(self._webhooks.registry)
        yield "limits.retained", limits.retained, core.retained.count
        yield "limits.queued", limits.queued, core.writer.queued
        yield "limits.queued_bytes", limits.queued_bytes, core.writer.queued_bytes
        yield "limits.waiting_pulls", limits.waiting_pulls, core.pull.waiting
        yield "limits.leases", limits.leases, core.pull.out
        yield "limits.connections", limits.connections, self._metrics.connections_mqtt
        yield "limits.returned", limits.returned, core.groups.returned.waiting + core.groups.returned.failing
        yield "limits.route_cache_bytes", limits.route_cache_bytes, core.router.cached_bytes
        yield "http.connections", config.http.connections, self._metrics.connections
        yield "dead.max_messages", config.dead.max_messages, dead.count
        yield "dead.max_bytes", config.dead.max_bytes, dead.bytes
        yield "slices.max", config.slices.max, len(core.directory)
        yield "wheel.max_entries", config.wheel.max_entries, len(core.wheel)
        yield "wheel.max_bytes", config.wheel.max_bytes, core.wheel.bytes
        yield "tail.max_entries", config.tail.max_entries, len(core.tail)
        yield "tail.max_bytes", config.tail.max_bytes, core.tail.bytes

    # -- for viewers

    def held_by(self) -> HeldBy | None:
        """The group or endpoint that holds the retention floor; None: none."""
        oldest = self._retention.kept
        if oldest is None:
            return None
        end, seconds = oldest
        groups = self._core.floor.holders(end)
        return HeldBy(groups[0].name, seconds) if groups else None

    def moving(self) -> Moving:
        """Figures that change every second; none is counted for the answer."""
        core = self._core
        now_ms, horizon_ms = core.clock.wall_ms(), at_of(core.horizon.position)
        return Moving(
            time=format_ms(now_ms),
            horizon=format_ms(horizon_ms),
            behind_ms=behind(core, now_ms),
            pending=core.opened.waiting.pending,
            held=core.opened.waiting.held,
            dispatched=core.dispatch.counts.dispatched,
            delivered=core.publishing.traffic.sent,
            sessions=len(core.sessions),
            groups=len(core.groups),
            schedules=len(core.schedules),
            dead_letters=core.dead_letter_queue.totals.count,
            slices=len(core.directory),
            jobs_open=self._pipeline.open,
            store_writable=core.writer.broken is None,
            draining=core.groups.loans.drain.since_ms is not None,
            lateness=self._metrics.late(),
        )

    # -- $SYS

    def records(self) -> list[Record]:
        """The records to publish now."""
        now_s = self._core.clock.mono()
        loads = self._loads.step(now_s, _counts(self._core))
        return [
            *sys_records(self._core, server_version(), int(now_s - self._started_s)),
            *(_record(f"load/{name}", value) for name, value in loads.items()),
        ]


def resident_bytes() -> int:
    """RSS of this process; 0 if the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def behind(core: Core, now_ms: int) -> int:
    """How far dispatch is behind, ms. An idle server moves its horizon four times a second: while nothing
    waits for it, it is behind by 0."""
    next_ms = core.wheel.next_ms()
    waits = core.writer.broken is not None or core.dispatch.live or at_of(core.wheel.loaded) < now_ms
    if not waits and (next_ms is None or next_ms > now_ms):
        return 0
    return max(0, now_ms - at_of(core.horizon.position))


def reason_name(reason: int) -> str:
    """Name of an MQTT 5 reason code: `not_authorized`."""
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return f"0x{reason:02x}"


def _dropped(core: Core) -> int:
    return core.publishing.traffic.dropped + core.spill.dropped


def _counts(core: Core) -> dict[str, int]:
    """Counters whose loads are published, by mosquitto's names."""
    traffic = core.publishing.traffic
    return {
        "connections": sum(traffic.answered.values()),
        "sockets": traffic.sockets,
        "bytes/received": traffic.bytes_received,
        "bytes/sent": traffic.bytes_sent,
        "messages/received": traffic.received,
        "messages/sent": traffic.sent,
        "publish/received": traffic.received,
        "publish/sent": traffic.sent,
        "publish/dropped": _dropped(core),
    }


def _record(name: str, value: object) -> Record:
    return Record((PREFIX + name).encode(), str(value).encode(), qos=0)


def sys_records(core: Core, version: str, uptime_s: int) -> list[Record]:
    """One record a figure; payloads are decimal text."""
    traffic = core.publishing.traffic
    connected = len(core.clients.present)
    stored, stored_bytes = sum(one.live for one in core.directory), sum(one.bytes for one in core.directory)
    figures = {
        "version": f"fasti {version}",
        "uptime": f"{uptime_s} seconds",
        "clients/connected": connected,
        "clients/disconnected": len(core.sessions) - connected,
        "clients/total": len(core.sessions),
        "clients/maximum": core.clients.most_present,
        "clients/expired": core.clients.expired,
        "clients/active": connected,
        "clients/inactive": len(core.sessions) - connected,
        "subscriptions/count": len(core.router),
        "shared_subscriptions/count": len(core.groups),
        "retained messages/count": core.retained.count,
        "messages/stored": stored,
        "store/messages/count": stored,
        "store/messages/bytes": stored_bytes,
        "bytes/received": traffic.bytes_received,
        "bytes/sent": traffic.bytes_sent,
        "messages/received": traffic.received,
        "messages/sent": traffic.sent,
        "publish/bytes/received": traffic.payload_received,
        "publish/bytes/sent": traffic.payload_sent,
        "publish/messages/received": traffic.received,
        "publish/messages/sent": traffic.sent,
        "publish/messages/dropped": _dropped(core),
        "fasti/pending": core.opened.waiting.pending,
        "fasti/dispatched": core.dispatch.counts.dispatched,
        "fasti/slices": len(core.directory),
    }
    return [_record(name, value) for name, value in figures.items()]
