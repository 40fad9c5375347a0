"""`$SYS/#`: what the server says of itself, under the names that broker users know."""

from shards.record import Record

from .core import Core

PREFIX = "$SYS/broker/"


def sys_records(core: Core, version: str, uptime_s: int) -> list[Record]:
    """One record a figure; payloads are decimal text."""
    traffic = core.broker.traffic
    connected = sum(1 for subscriber in core.sessions if subscriber.link is not None)
    figures = {
        "version": f"fasti {version}",
        "uptime": f"{uptime_s} seconds",
        "clients/connected": connected,
        "clients/disconnected": len(core.sessions) - connected,
        "clients/total": len(core.sessions),
        "subscriptions/count": len(core.router),
        "shared_subscriptions/count": len(core.broker.groups),
        "retained messages/count": core.retained.count,
        "messages/received": traffic.received,
        "messages/sent": traffic.sent,
        "publish/messages/dropped": traffic.dropped,
        "fasti/pending": core.opened.commit.pending,
        "fasti/dispatched": core.dispatch.counts.dispatched,
        "fasti/slices": len(core.directory),
    }
    return [Record((PREFIX + name).encode(), str(value).encode(), qos=0) for name, value in figures.items()]
