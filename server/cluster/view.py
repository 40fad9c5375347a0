"""Types of the answer of `/v1/cluster`."""

from typing import TypedDict


class Leader(TypedDict):
    """Addresses of the leader. `mqtt`: host:port."""

    node: str
    url: str
    mqtt: str


class LogBounds(TypedDict):
    """The log: its address without a password, its first and last record."""

    url: str
    first: int
    last: int


class Zones(TypedDict):
    """The time zone databases of this node and of the pending messages. `retime`: they differ, so this node
    recomputes dues when it takes the lead."""

    node: str
    store: str
    retime: bool


class NodeRow(TypedDict):
    """A node as this one has heard of it; `lag`: records that it lacks."""

    node: str
    url: str
    mqtt: str
    state: str
    epoch: int
    applied: int
    lag: int
    heard_ms: int
    version: str
    is_alive: bool


class View(TypedDict):
    """The cluster as this node sees it. `why`: what keeps it from following or leading, if anything."""

    name: str
    node: str
    state: str
    epoch: int
    applied: int
    leader: Leader | None
    log: LogBounds | None
    takeovers: int
    why: str
    tzdata: Zones
    nodes: list[NodeRow]


def urls_of(url: str, mqtt: str) -> str:
    """The addresses in a claim: HTTP and MQTT."""
    return f"{url} mqtt://{mqtt}"


def places_in(urls: str) -> tuple[str, str]:
    """The URL and MQTT host:port of a claim; empty where missing."""
    http, _, mqtt = urls.partition(" mqtt://")
    return http, mqtt
