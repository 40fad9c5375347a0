"""What the nodes know of each other, for people and for trimming the log.

Each second a node that follows reports to the one that leads, which answers with all that it has heard; so
every node can show the table, and one that comes to lead begins with it. Nothing of this decides who leads.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

MEMBERS_MAX = 16
"""Maximum number of members; beyond it the least recently heard one is forgotten."""
ALIVE_S = 5.0
GONE = "gone"
"""The state of a node that is not heard: whether it leads or follows nobody knows."""
GIVEN_UP_S = 600.0
"""So long the log is kept for a node that is not heard; it may be upgraded meanwhile."""
TEXT_MAX = 300


class Member(msgspec.Struct, frozen=True):
    """What a node says of itself. `applied`: the last record that is durable in its own store."""

    node: str
    url: str
    mqtt: str
    state: str
    epoch: int
    applied: int
    version: str

    @property
    def is_plausible(self) -> bool:
        texts = (self.node, self.url, self.mqtt, self.state, self.version)
        return bool(self.node) and all(len(text) <= TEXT_MAX for text in texts)


class Row(msgspec.Struct, frozen=True):
    """A member, and how long ago it was heard."""

    member: Member
    heard_ms: int

    @property
    def is_alive(self) -> bool:
        return self.heard_ms < ALIVE_S * 1000

    @property
    def state(self) -> str:
        """What it is; of one that is not heard nobody knows."""
        return self.member.state if self.is_alive else GONE


class Members:
    """All nodes that have been heard, this one included."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._heard: dict[str, tuple[Member, float]] = {}

    def hear(self, member: Member, ago_ms: int = 0) -> None:
        """`ago_ms`: another has heard it then. What was heard later stays."""
        at = self._mono() - ago_ms / 1000
        known = self._heard.get(member.node)
        if not member.is_plausible or (known is not None and known[1] > at):
            return
        self._heard[member.node] = member, at
        if len(self._heard) > MEMBERS_MAX:
            del self._heard[min(self._heard, key=lambda node: self._heard[node][1])]

    def hear_all(self, rows: Sequence[Row]) -> None:
        """What another node has heard."""
        for row in rows[:MEMBERS_MAX]:
            self.hear(row.member, max(0, row.heard_ms))

    def __iter__(self) -> Iterator[Row]:
        """By name."""
        now = self._mono()
        for _, (member, at) in sorted(self._heard.items()):
            yield Row(member, int((now - at) * 1000))

    def lowest(self) -> int:
        """The lowest record that somebody has applied who is not given up; 0 if nobody was heard."""
        applied = [row.member.applied for row in self if row.heard_ms < GIVEN_UP_S * 1000]
        return min(applied, default=0)
