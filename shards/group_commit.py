"""A group commit (what it wrote), and its bounds."""

from dataclasses import dataclass, field

from timeline.position import Position

from .read import Row


@dataclass(slots=True)
class GroupCommit:
    """One atomic batch: written, not yet durable."""

    bound_ms: int = 0
    placed: list[Row] = field(default_factory=list)
    """New rows; they enter the wheel once they are durable."""
    gone: list[Position] = field(default_factory=list)
    """Cancelled or moved: out of the wheel at once; the floor keeps dispatch below them."""
    floor: Position | None = None
    rows: int = 0
    begun: float = 0.0
    """Monotonic time at which it was written."""
    first_seq: int = 0
    last_seq: int = 0
    """Messages placed with this group, stored or not, have a seq above `first_seq` and up to this."""
    results: dict[bytes, int] = field(default_factory=dict)
    """Bytes of results that it is to have, by place: `kept.keep` writes them as it is sealed."""
    kept: dict[bytes, Position] = field(default_factory=dict)
    """The first root of what is done and kept with it, by place."""

    def touch(self, place: Position) -> None:
        if self.floor is None or place < self.floor:
            self.floor = place


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds of a shard, and of pending messages."""

    messages: int
    bytes: int
    pending: int
    structure_above: int
    is_shared: bool = False
    """Owners share `pending`: its last part is for owners below an equal share."""
