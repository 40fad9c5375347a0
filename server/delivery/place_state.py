"""What is known of a place, in parts by who writes them."""

from dataclasses import dataclass

from timeline.position import Position

from .publish_request import Will

_NONE = Position(-1)


@dataclass(slots=True, eq=False)
class CursorState:
    """What its rows on disk say, and when they are next written (cursors.py)."""

    is_stored: bool = False
    """Whether it has rows on disk."""
    written_at: float = 0.0
    """Time of the last cursor write, s of monotonic time."""
    changes: int = -1
    """`session.changes` when the subscriptions were last written; -1: not as they are now."""
    read: Position = _NONE
    """The read position in the cursor that was last written; -1: none."""
    even_at: float = 0.0
    """When its writes will be paid for, s of monotonic time."""
    is_entangled: bool = False
    """Its cursor is next written together with those of its shared subscriptions, whichever is first."""
    has_given_back: bool = False
    """Their cursors are next written with its own, so that a kill loses no count of tries."""


@dataclass(slots=True, eq=False)
class WillState:
    """The wills of a session (wills.py)."""

    current: Will | None = None
    """Published if the connection ends without DISCONNECT."""
    former: Will | None = None
    """The delayed will of the connection before, until the client is back for certain."""
    unplaced: Will | None = None
    """A will to publish at once that has no place yet: stored until it has."""
    delayed_id: int = 0
    """Message id of the delayed will on the timeline, while the client is away."""


@dataclass(slots=True, eq=False)
class Presence:
    """When its client came and went (clients.py)."""

    connected_ms: int = 0
    ended_ms: int = 0
    """When its last connection ended, wall ms; 0: it has had none, or the server was killed meanwhile."""
    left_ms: int = 0
    left_running_ms: int = 0
    """When its last connection ended, by the wall clock and in running time; 0: it is there."""
