"""Members as the nodes know each other, for display and for trimming the log.

Each second a node reports to each other, which answers with all its reports. So every node can show the
table, and a new leader begins with it. Two things of this have a say in who leads: the clocks (clocks.py),
and the last records, since a log that ends before one of them has lost its end.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from shards.log.record import VERSION

MEMBERS_MAX = 16
"""Maximum number of members; beyond it the least recently heard one is forgotten."""
ALIVE_S = 5.0
GONE = "gone"
"""The state of an unheard node: whether it leads or follows is unknown."""
GIVEN_UP_S = 600.0
"""How long the log is kept for an unheard node; it may be in an upgrade."""
TEXT_MAX = 300
DOUBLED_S = 10.0
"""How long two nodes of one name are told after both were heard."""


class Member(msgspec.Struct, frozen=True):
    """A node's report about itself. `applied`: the last record that is durable in its own store."""

    node: str
    url: str
    mqtt: str
    state: str
    epoch: int
    applied: int
    version: str
    reads: int = VERSION
    """The newest version of the log's records that it reads: one that comes later is written once all do."""
    clocks: dict[str, tuple[int, int]] = {}
    """How far other nodes' clocks are ahead of its own, ms: at least, and at most."""
    keys_digest: str = ""
    settings_digest: str = ""
    timeline: str = ""
    fit: bool = True
    """Whether it leads, or could."""
    process: str = ""
    """Tells two nodes of one name."""
    takeover_ms: int = 0
    """Its `cluster.takeover_after`; 0: not told."""
    damage: str = ""
    """Damage that it has found in its data, as text; empty: none."""
    scrubbed_ms: int = 0
    """When it had read all its rows; 0: never."""

    @property
    def is_plausible(self) -> bool:
        texts = [self.node, self.url, self.mqtt, self.state, self.version, *self.clocks]
        texts += [self.keys_digest, self.settings_digest, self.timeline, self.process, self.damage]
        return bool(self.node) and len(self.clocks) <= MEMBERS_MAX and max(map(len, texts)) <= TEXT_MAX


class Row(msgspec.Struct, frozen=True):
    """A member, and how long ago it was heard."""

    member: Member
    heard_ms: int

    @property
    def is_alive(self) -> bool:
        return self.heard_ms < ALIVE_S * 1000

    @property
    def state(self) -> str:
        """Its state; GONE if it is not heard."""
        return self.member.state if self.is_alive else GONE


class Members:
    """All nodes that have been heard, including this one."""

    def __init__(self, mono: Callable[[], float], timeline: Callable[[], str] = str) -> None:
        """`timeline`: this node's; empty: it has none yet."""
        self._mono = mono
        self._timeline = timeline
        self._heard: dict[str, tuple[Member, float]] = {}
        self._processes: dict[str, tuple[str, str]] = {}
        """The process that reported last under a name, and the one before it."""
        self._doubled: dict[str, float] = {}

    def hear(self, member: Member, ago_ms: int = 0) -> None:
        """Note a report. `ago_ms`: another node heard it then. A later report stays."""
        if not ago_ms and member.is_plausible:
            self._tell_apart(member)
        at = self._mono() - ago_ms / 1000
        known = self._heard.get(member.node)
        if not member.is_plausible or (known is not None and known[1] > at):
            return
        self._heard[member.node] = member, at
        if len(self._heard) > MEMBERS_MAX:
            oldest = min(self._heard, key=lambda node: self._heard[node][1])
            del self._heard[oldest]
            self._processes.pop(oldest, None)
            self._doubled.pop(oldest, None)

    def _tell_apart(self, member: Member) -> None:
        """A node that was started again is another process, too, but its former one does not come back."""
        name, process = member.node, member.process
        last, before = self._processes.get(name, ("", ""))
        if process != last:
            self._processes[name] = process, last
            if process == before:
                self._doubled[name] = self._mono()

    @property
    def doubled(self) -> list[str]:
        """Names that two nodes have."""
        return sorted(name for name, at in self._doubled.items() if self._mono() - at < DOUBLED_S)

    def hear_all(self, rows: Sequence[Row], took_s: float = 0.0) -> None:
        """Note another node's table. `took_s`: the time its answer took, which the rows' ages lack."""
        for row in rows[:MEMBERS_MAX]:
            self.hear(row.member, max(0, row.heard_ms) + int(took_s * 1000))

    def __iter__(self) -> Iterator[Row]:
        """Rows by name."""
        now = self._mono()
        for _, (member, at) in sorted(self._heard.items()):
            yield Row(member, int((now - at) * 1000))

    @property
    def ours(self) -> Iterator[Row]:
        """Rows of nodes of this timeline, or of none yet. Only these count."""
        timeline = self._timeline()
        for row in self:
            if not is_other(row.member.timeline, timeline):
                yield row

    @property
    def strangers(self) -> list[str]:
        """Names of live nodes of another timeline: `cluster.peers` has an address of another cluster with the
        same key, or they have another cluster's data."""
        timeline = self._timeline()
        return [row.member.node for row in self if row.is_alive and is_other(row.member.timeline, timeline)]

    def next_leader(self) -> str:
        """The follower that is to lead next: a fit one, with the most of the log. Empty: none is heard."""
        rows = [row.member for row in self.ours if row.state == "follower" and row.member.fit]
        return max(rows, key=lambda member: member.applied).node if rows else ""

    def beyond(self, last: int) -> str:
        """Which live node has a record behind `last`, in words; empty: none has."""
        for row in self.ours:
            name, applied = row.member.node, row.member.applied
            if row.is_alive and applied > last:
                return f"the log ends at {last}, node {name} has record {applied}"
        return ""

    def lowest(self, within_s: float = GIVEN_UP_S) -> int:
        """The lowest record applied by any node that was heard within this time; 0 if none was."""
        applied = [row.member.applied for row in self.ours if row.heard_ms < within_s * 1000]
        return min(applied, default=0)


def is_other(timeline: str, mine: str) -> bool:
    """Whether these are ids of two timelines; empty: of none yet."""
    return bool(timeline and mine) and timeline != mine
