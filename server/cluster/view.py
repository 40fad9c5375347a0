"""Types of the answer of `/v1/cluster`, and the addresses of a node."""

from typing import NamedTuple, Self, TypedDict


class Leader(TypedDict):
    """Addresses of the leader. `mqtt`: the first of `mqtt_urls`, as host:port where that is plain MQTT."""

    node: str
    url: str
    mqtt: str
    mqtt_urls: list[str]


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
    """The cluster as this node sees it. `why`: what keeps it from following or leading, if anything, and what
    is wrong beside. `fit`: whether it leads, or could. `clock_offset_ms`: how far its clock is ahead of the
    others'; null: unknown. `timeline`: its id, 32 hex digits; empty: it has not begun. `scrubbed_at`: when it
    had read all its rows and none was damaged; null: not yet."""

    name: str
    timeline: str
    node: str
    state: str
    epoch: int
    applied: int
    leader: Leader | None
    log: LogBounds | None
    takeovers: int
    why: str
    fit: bool
    clock_offset_ms: int | None
    scrubbed_at: str | None
    keys_digest: str
    tzdata: Zones
    nodes: list[NodeRow]


class Places(NamedTuple):
    """Where clients reach a node: the base URL of HTTP, the URLs of MQTT."""

    http: str
    mqtt: tuple[str, ...]

    def __str__(self) -> str:
        """As a claim has them."""
        return " ".join((self.http, *self.mqtt))

    @classmethod
    def of(cls, claimed: str) -> Self:
        """The addresses in a claim."""
        http, *mqtt = claimed.split(" ")
        return cls(http, tuple(mqtt))

    @property
    def first_mqtt(self) -> str:
        """The first of MQTT, as host:port where it is plain."""
        return self.mqtt[0].removeprefix("mqtt://") if self.mqtt else ""
