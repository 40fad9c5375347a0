"""The values of a group commit: what it wrote, and its bounds."""

from dataclasses import dataclass, field

from timeline.position import Position

from .read import Row


@dataclass(slots=True)
class GroupCommit:
    """One atomic batch: written, not yet durable."""

    bound_ms: int = 0
    placed: list[Row] = field(default_factory=list)
    """New rows, for the wheel once they are durable."""
    gone: list[Position] = field(default_factory=list)
    """Cancelled or moved: out of the wheel at once, the floor keeps dispatch below them."""
    floor: Position | None = None
    rows: int = 0
    first_seq: int = 0
    last_seq: int = 0
    """What was placed with it, stored or not, has a seq above the first and up to the last."""

    def touch(self, place: Position) -> None:
        if self.floor is None or place < self.floor:
            self.floor = place


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds of a shard and of what may be pending."""

    messages: int
    bytes: int
    pending: int
    structure_above: int
    is_shared: bool = False
    """Owners share `pending`: its last part is for those that have less than an equal share."""
