"""How much RAM the bounds of the configuration allow, as a sum that is told at the start and by `--check`.

Every queue, cache and table has a bound, most in bytes, some in entries; here each is a line in bytes, with
what an entry costs besides its bytes (measured, rounded up). The sum is what there would be if *every* bound
were reached at once, by clients that want that:

    wheel          66 MiB    64MiB and 50,000 entries
    unsent      60,000 MiB   10,000 connections x 6 x 1MiB: none of them reads

With the defaults it is absurd, and told all the same: nothing else says which setting to lower on a small
machine. What does not depend on the number of connections and sessions (`is_per_client` false) is what a
server of clients that read and ack comes near. How far RSS may lie above the sum is the allocator's matter.

A setting of [limits], [wheel], [tail] or [sessions] either belongs to a line (`keys`) or is named in
NOT_COUNTED with the reason.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from shards.log.chained import BATCH_BYTES
from shards.rocks import CACHE_BYTES as BLOCK_CACHE_BYTES
from shards.rocks import MEMTABLES_BYTES
from timeline.structures import CACHE_BYTES, NODES_MAX, PATTERN_BYTES

from ..auth.aside import CHECK_BYTES, THREADS
from ..auth.backoff import ENTRIES_MAX
from ..auth.keyring import REMEMBERED, WRONG_REMEMBERED
from ..codec.publish import CONNECT_BYTES
from ..delivery.owed import PUT_OFF_BYTES
from ..delivery.owners import REMEMBERED_BYTES
from ..delivery.publishing import HOLD_BYTES, WISH_BYTES
from ..delivery.router import PAIR_BYTES
from ..engine.writer import ENTRY_OVERHEAD, ENTRY_PAYLOAD_BYTES
from ..engine.writer import GROUP_BYTES as GROUP_COMMIT_BYTES
from ..http.selection import PAGE_BYTES
from ..mqtt.forms import ALIAS_BYTES as ALIAS_OUT_BYTES
from ..mqtt.inbound import ALIAS_BYTES as ALIAS_IN_BYTES
from ..mqtt.inbound import RECEIVED_FACTOR
from ..mqtt.link import UNREAD_FACTOR
from ..settings.config import Config
from ..settings.kinds import show_size
from ..webhook.origins import MOST
from ..webhook.sender import ANSWER_BYTES

MIB = 1 << 20

KEY_BYTES = 400
"""A key that was right or wrong, or a network and a name that wrong ones have come with."""
PROCESS_BYTES = 60 * MIB
"""The interpreter, its modules, what is made once."""
STALE_BYTES = 40
"""A position in a slot of the wheel whose entry was cancelled."""
BODY_COPIES = 3
"""A request as it came, what was read out of it, the batch that is written."""
CONNECTION_BYTES = 12 << 10
"""With its socket: 7.6 KB before its CONNECT, 11.5 with a session and a subscription, which are lines too."""
HTTP_CONNECTION_BYTES = 12 << 10
"""One that has been answered and is idle: with aiohttp's side and its task."""
POST_COPIES = 2
"""A payload that is posted, and what of it the socket has not taken."""
PAGE_COPIES = 4
"""A page of a list as it was read, as JSON, on its way to the socket, and before it counts as buffered."""
TLS_BYTES = 256 << 10
"""What the event loop reads a TLS connection into: 26 KB of it are touched by a client that says little."""
SESSION_BYTES = 4_500
"""One that is away, as it comes from disk, takes 4,050."""
GROUP_BYTES = 7_000
"""One without members, as it comes from disk, and what it is subscribed to, takes 6,170."""
SUBSCRIPTION_BYTES = 900
"""Besides its filter, which lies there twice: in the session and, level by level, in the trie."""
FLIGHT_BYTES = 400
"""A delivery that is not acked, and its place among those to be sent again. Its message is not kept."""
LENT_BYTES = 760
"""The same of a member of a group: in flight twice, with a lease; or once, at QoS 2, with its lost tries."""
RECEIVED_BYTES = 70
"""A packet id that a client has not released."""
SPAN_BYTES = 10 << 10
"""An ended one with its attributes, link and context, all as long as they may be."""
PULL_BYTES = 4_000
"""A call that waits for messages: its task, its request, its places with groups."""
SCHEDULE_BYTES = 700
ENDPOINT_BYTES = 16 << 10
"""With a URL and headers as long as they may be, its group and its door."""
ORIGIN_BYTES = 500
RECORD_COPIES = 6
"""Of two groups as values; one of them encoded, in its frame, and at the driver twice."""
READ_COPIES = 3
"""Frames as they come, and their data as bytes and as values."""
SLICE_BYTES = 1_200
"""With two shards."""
NODE_BYTES = 300

NOT_COUNTED = {
    "limits.max_delay": "a time",
    "limits.max_payload": "part of what is queued, kept, unsent",
    "limits.connections_per_address": "limits.connections bounds all of them",
    "limits.connect_rate": "connections in a second: limits.connections bounds their number",
    "limits.connect_timeout": "a time",
    "limits.trusted_proxies": "networks",
    "limits.subscriptions_per_session": "limits.subscriptions bounds all of them",
    "limits.subscription_bytes_per_session": "limits.subscription_bytes bounds all of them",
    "limits.topic_levels": "the bytes of filters are counted",
    "limits.hash_on_persistent": "a permission",
    "limits.user_properties": "one packet is read at a time; what is kept of it is counted as it was sent",
    "limits.pending": "pending messages lie on disk",
    "limits.retained": "retained messages lie on disk",
    "sessions.expiry_max": "a time",
    "sessions.max_inflight_bytes": "the messages in flight are not kept",
    "sessions.max_attempts": "a number that each delivery has",
    "sessions.ack_timeout": "a time",
    "sessions.ack_timeout_max": "a time",
    "sessions.backoff": "times",
}
"""`section.key` -> why it is not in the sum."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One line of the sum. `how`: what makes the bytes; `keys`: the settings that do, as `section.key`."""

    name: str
    bytes: int
    how: str
    keys: tuple[str, ...] = ()
    is_per_client: bool = False


def bounds(config: Config, spans: int = 0) -> list[Bound]:
    """All lines, those that grow with connections and sessions last. `spans`: of traces, that may wait to be
    exported; that is said by the environment."""
    shared = [*_shared(config), *(_spans(spans) if spans else ())]
    return [*shared, *_of_http(config), *_of_connections(config), *_of_sessions(config)]


def in_all(config: Config, spans: int = 0) -> int:
    """The sum of all lines, bytes."""
    return _sum(bounds(config, spans))


def told(config: Config, spans: int = 0) -> list[str]:
    """The sum line by line, for `--check`: name, MiB, how."""
    lines = [(one.name, _mib(one.bytes), one.how) for one in bounds(config, spans)]
    lines.append(("in all", _mib(in_all(config, spans)), f"if all are reached at once; {_machine()}"))
    names, amounts = (max(len(line[column]) for line in lines) for column in (0, 1))
    return [f"{name:<{names}}  {amount:>{amounts}} MiB  {how}" for name, amount, how in lines]


def told_short(config: Config, spans: int = 0) -> str:
    """The sum in one line, for the log."""
    lines = bounds(config, spans)
    shared = [one for one in lines if not one.is_per_client]
    parts = ", ".join(f"{one.name} {_mib(one.bytes)}" for one in lines)
    return (
        f"memory: at most {_mib(_sum(lines))} MiB if every bound is reached at once, "
        f"{_mib(_sum(shared))} without what grows with connections and sessions ({_machine()}): {parts}"
    )


_KEYS = (
    Bound("owners", REMEMBERED_BYTES, f"answers {show_size(REMEMBERED_BYTES)}"),
    Bound(
        "keys",
        CHECK_BYTES * THREADS + KEY_BYTES * (REMEMBERED + WRONG_REMEMBERED + ENTRIES_MAX),
        f"{THREADS} that are being checked x {show_size(CHECK_BYTES)}, {REMEMBERED:,} that were right, "
        f"{WRONG_REMEMBERED:,} wrong ones and {ENTRIES_MAX:,} names that wait x {KEY_BYTES}",
    ),
)
"""Where somebody is asked for a key."""


def _shared(config: Config) -> list[Bound]:
    limits, wheel, tail = config.limits, config.wheel, config.tail
    entries = wheel.max_entries * (ENTRY_PAYLOAD_BYTES + ENTRY_OVERHEAD)
    answer = max(limits.route_cache_bytes // 2, PAIR_BYTES * limits.subscriptions)
    waiting = limits.queued_bytes + min(HOLD_BYTES, limits.queued_bytes // 2) + config.http.max_body
    queued = BODY_COPIES * waiting + WISH_BYTES * limits.queued
    return [
        Bound("process", PROCESS_BYTES, "measured"),
        Bound(
            "store",
            MEMTABLES_BYTES + BLOCK_CACHE_BYTES,
            f"memtables {show_size(MEMTABLES_BYTES)}, block cache {show_size(BLOCK_CACHE_BYTES)}",
        ),
        Bound(
            "wheel",
            min(wheel.max_bytes, entries) + STALE_BYTES * wheel.max_entries,
            f"{show_size(wheel.max_bytes)}, {wheel.max_entries:,} entries",
            ("wheel.max_bytes", "wheel.max_entries"),
        ),
        Bound("tail", tail.max_bytes, show_size(tail.max_bytes), ("tail.max_bytes",)),
        Bound(
            "owed",
            tail.max_bytes + PUT_OFF_BYTES * tail.max_entries,
            f"{show_size(tail.max_bytes)}: what is not stored and waits for the horizon or for room; "
            f"{tail.max_entries:,} x {PUT_OFF_BYTES}",
            ("tail.max_bytes", "tail.max_entries"),
        ),
        Bound(
            "queued",
            queued,
            f"{BODY_COPIES} x ({show_size(limits.queued_bytes)} + what cannot be refused below MQTT 5 + one "
            f"body of {show_size(config.http.max_body)}), {limits.queued:,} messages x {WISH_BYTES}",
            ("limits.queued_bytes", "limits.queued", "http.max_body"),
        ),
        Bound(
            "wills kept",
            limits.queued_bytes,
            f"{show_size(limits.queued_bytes)}: those that the writer has no room for",
            ("limits.queued_bytes",),
        ),
        Bound(
            "HTTP buffered",
            config.http.buffered_bytes,
            f"{show_size(config.http.buffered_bytes)}: sent ahead or not read",
            ("http.buffered_bytes",),
        ),
        Bound(
            "HTTP pages",
            config.http.buffered_bytes + PAGE_COPIES * PAGE_BYTES,
            f"{show_size(config.http.buffered_bytes)} of pages and batches that are being read, "
            f"{PAGE_COPIES} x {show_size(PAGE_BYTES)} of one that is sent",
            ("http.buffered_bytes",),
        ),
        Bound(
            "pulled",
            config.http.buffered_bytes + PULL_BYTES * limits.waiting_pulls + LENT_BYTES * limits.leases,
            f"{show_size(config.http.buffered_bytes)} of leased messages that are not sent yet, "
            f"{limits.waiting_pulls:,} calls that wait x {PULL_BYTES}, "
            f"{limits.leases:,} leases x {LENT_BYTES}",
            ("http.buffered_bytes", "limits.waiting_pulls", "limits.leases"),
        ),
        Bound("in_bytes", limits.in_bytes, show_size(limits.in_bytes), ("limits.in_bytes",)),
        Bound(
            "route cache",
            limits.route_cache_bytes // 2 + answer,
            f"{show_size(limits.route_cache_bytes)}; all subscriptions may be in one answer, x {PAIR_BYTES}",
            ("limits.route_cache_bytes", "limits.subscriptions"),
        ),
        *((_records(config),) if config.cluster.log else ()),
        *(_KEYS if config.auth.keys_file or config.mqtt.password_file or config.mqtt.acl_file else ()),
        Bound(
            "schedules",
            SCHEDULE_BYTES * limits.schedules,
            f"{limits.schedules:,} x {SCHEDULE_BYTES}",
            ("limits.schedules",),
        ),
        *_of_endpoints(config),
        Bound(
            "slices",
            SLICE_BYTES * config.slices.max,
            f"{config.slices.max:,} x {SLICE_BYTES}",
            ("slices.max",),
        ),
        Bound(
            "structures",
            PATTERN_BYTES + 2 * CACHE_BYTES + NODE_BYTES * NODES_MAX,
            f"patterns {show_size(PATTERN_BYTES)}, caches 2 x {show_size(CACHE_BYTES)}, {NODES_MAX:,} nodes",
        ),
    ]


def _spans(spans: int) -> list[Bound]:
    return [Bound("spans", SPAN_BYTES * spans, f"{spans:,} x {SPAN_BYTES}")]


def _of_endpoints(config: Config) -> list[Bound]:
    endpoints = config.limits.endpoints
    return [
        Bound(
            "endpoints",
            ENDPOINT_BYTES * endpoints + ORIGIN_BYTES * MOST,
            f"{endpoints:,} x {show_size(ENDPOINT_BYTES)}, {MOST:,} origins x {ORIGIN_BYTES}",
            ("limits.endpoints",),
        ),
    ]


def _records(config: Config) -> Bound:
    """Of a node of a cluster."""
    record = GROUP_COMMIT_BYTES + config.http.max_body
    return Bound(
        "records",
        RECORD_COPIES * record + READ_COPIES * BATCH_BYTES,
        f"{RECORD_COPIES} x {show_size(record)} that becomes a record, "
        f"{READ_COPIES} x {show_size(BATCH_BYTES)} of records that are read",
        ("http.max_body",),
    )


def _of_http(config: Config) -> list[Bound]:
    connections = config.http.connections
    each = HTTP_CONNECTION_BYTES + bool(config.http.tls_cert) * TLS_BYTES
    posts = config.webhook.connections + config.webhook.url_connections
    post = POST_COPIES * config.limits.max_payload + ANSWER_BYTES + 2 * (HTTP_CONNECTION_BYTES + TLS_BYTES)
    return [
        Bound(
            "webhook posts",
            post * posts,
            f"{posts:,} x ({POST_COPIES} x {show_size(config.limits.max_payload)}, an answer, a connection "
            "and one that rests): all under way with the largest payload",
            ("webhook.connections", "webhook.url_connections"),
            is_per_client=True,
        ),
        Bound(
            "HTTP connections",
            each * connections,
            f"{connections:,} x {show_size(each)}",
            ("http.connections",),
            is_per_client=True,
        ),
    ]


def _of_connections(config: Config) -> list[Bound]:
    limits, mqtt = config.limits, config.mqtt
    connections, unsent = limits.connections, UNREAD_FACTOR + 2
    will = max(mqtt.maximum_packet_size, CONNECT_BYTES)
    aliases = ALIAS_IN_BYTES * mqtt.topic_alias_maximum + ALIAS_OUT_BYTES
    is_tls = any(listener.scheme in ("mqtts", "wss") for listener in mqtt.listen)
    each = CONNECTION_BYTES + is_tls * TLS_BYTES
    return [
        Bound(
            "out_bytes x connections",
            unsent * limits.out_bytes * connections,
            f"{connections:,} x {unsent} x {show_size(limits.out_bytes)}: on the socket "
            f"{UNREAD_FACTOR}, of one turn, and behind a sync; when nobody reads",
            ("limits.out_bytes", "limits.connections"),
            is_per_client=True,
        ),
        Bound(
            "connections",
            each * connections,
            f"{connections:,} x {show_size(each)}",
            ("limits.connections",),
            is_per_client=True,
        ),
        Bound(
            "wills x connections",
            will * connections,
            f"{connections:,} x {show_size(will)}: a will as large as a packet",
            ("mqtt.maximum_packet_size", "limits.connections"),
            is_per_client=True,
        ),
        Bound(
            "aliases x connections",
            aliases * connections,
            f"{connections:,} x {show_size(aliases)}",
            ("mqtt.topic_alias_maximum", "limits.connections"),
            is_per_client=True,
        ),
    ]


def _of_sessions(config: Config) -> list[Bound]:
    limits, sessions, window = config.limits, config.limits.sessions, config.sessions.max_in_flight
    received = RECEIVED_FACTOR * config.mqtt.receive_maximum
    return [
        Bound(
            "sessions",
            SESSION_BYTES * sessions,
            f"{sessions:,} x {SESSION_BYTES}",
            ("limits.sessions",),
            is_per_client=True,
        ),
        Bound(
            "subscriptions",
            SUBSCRIPTION_BYTES * limits.subscriptions + 2 * limits.subscription_bytes,
            f"{limits.subscriptions:,} x {SUBSCRIPTION_BYTES}, "
            f"filters 2 x {show_size(limits.subscription_bytes)}",
            ("limits.subscriptions", "limits.subscription_bytes"),
            is_per_client=True,
        ),
        Bound(
            "groups",
            GROUP_BYTES * limits.groups + 2 * limits.subscription_bytes + 2 * FLIGHT_BYTES * limits.returned,
            f"{limits.groups:,} x {GROUP_BYTES}, filters 2 x {show_size(limits.subscription_bytes)}, "
            f"2 x {limits.returned:,} x {FLIGHT_BYTES} that no member has",
            ("limits.groups", "limits.subscription_bytes", "limits.returned"),
            is_per_client=True,
        ),
        Bound(
            "in flight x sessions",
            LENT_BYTES * window * sessions,
            f"{sessions:,} x {window:,} x {LENT_BYTES}: nobody acks what comes by groups",
            ("sessions.max_in_flight", "limits.sessions"),
            is_per_client=True,
        ),
        Bound(
            "QoS 2 received x sessions",
            RECEIVED_BYTES * received * sessions,
            f"{sessions:,} x {received:,} x {RECEIVED_BYTES}: nobody releases",
            ("mqtt.receive_maximum", "limits.sessions"),
            is_per_client=True,
        ),
    ]


def _sum(lines: Sequence[Bound]) -> int:
    return sum(one.bytes for one in lines)


def _mib(size: int) -> str:
    return f"{-(-size // MIB):,}"


def _machine() -> str:
    """What there is, for comparison."""
    try:
        return f"this machine has {_mib(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))}"
    except (ValueError, OSError):
        return "of what this machine has nothing is known"
