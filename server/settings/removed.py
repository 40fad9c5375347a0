"""Settings that went in the release before, and what took their place: they are warned of, not refused."""

from .memory import UNITS

REMOVED = {
    "sessions.group_expiry": "a group stays until it is deleted, or as long as its `expiry` says; one of a"
    " plain SUBSCRIBE as long as sessions.expiry_max",
    "sessions.max_inflight_bytes": "sessions.max_in_flight bounds what is in flight",
    "limits.subscriptions_per_session": "1,000 are fixed",
    "limits.subscription_bytes_per_session": "256 KiB are fixed",
    "limits.in_bytes": "it is a part of limits.memory, with what is not read",
    "http.event_streams": "100 are fixed",
    "shards.cap_bytes": "64 MiB are fixed",
    "shards.max_structures": "1,024 are fixed",
    **{
        name: "it is a part of limits.memory"
        for name in UNITS
        if name not in ("limits.sessions", "limits.connections", "http.connections", "limits.pool_bytes")
        and not name.startswith("store.")
    },
}
"""`section.key` -> what took its place."""
