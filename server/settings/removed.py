"""Settings removed in the last release, and their replacements: they cause a warning, not an error."""

from .memory import UNITS

REMOVED = {
    "sessions.group_expiry": "a group stays until it is deleted, or as long as its `expiry` says; one of a"
    " plain SUBSCRIBE as long as sessions.expiry_max",
    "sessions.max_inflight_bytes": "sessions.max_in_flight bounds what is in flight",
    "sessions.ack_timeout_max": "fixed at 12 h",
    "limits.subscriptions_per_session": "fixed at 1,000",
    "limits.subscription_bytes_per_session": "fixed at 256 KiB",
    "limits.in_bytes": "limits.memory gives it its part, with what is not read",
    "limits.connect_timeout": "fixed at 10 s",
    "limits.topic_levels": "fixed at 128",
    "limits.hash_on_persistent": "the rules of a key say which filters it may subscribe to",
    "limits.user_properties": "fixed at 1,000",
    "limits.retained": "fixed at 100,000; the bound of a key may be lower",
    "http.max_batch": "fixed at 10,000",
    "http.connections_per_address": "fixed at 1,000",
    "http.head_timeout": "fixed at 10 s",
    "http.body_timeout": "fixed at 10 s",
    "http.event_streams": "fixed at 100",
    "mqtt.upgrade_outgoing_qos": "the lower QoS of message and subscription counts",
    "mqtt.allow_zero_length_clientid": "a client without an id gets one of the server's making",
    "mqtt.ws_origins": "http.origins counts for websockets too",
    "shards.cap_bytes": "fixed at 64 MiB",
    "shards.max_structures": "fixed at 1,024",
    "shards.structure_above": "fixed at 10,000",
    "dead.max_messages": "fixed at 100,000; dead.max_bytes bounds their bytes",
    "webhook.timeout": "fixed at 15 s; an endpoint may have a `timeout` of its own",
    "webhook.concurrency": "fixed at 10; an endpoint may have a `concurrency` of its own",
    "webhook.connections": "fixed at 1,000",
    "webhook.url_connections": "fixed at 400",
    "metrics.top": "fixed at 20",
    "cluster.clock_skew": "fixed at 5 s",
    "cluster.url": "http.public_url took its place",
    "cluster.mqtt": 'mqtt.public_urls took its place, a list of URLs: ["mqtt://a.example:1883"]',
    **{
        name: "limits.memory gives it its part"
        for name in UNITS
        if name not in ("limits.sessions", "limits.connections", "limits.pool_bytes", "limits.ordering_keys")
        and not name.startswith("store.")
    },
}
"""`section.key` -> its replacement."""
