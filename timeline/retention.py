"""Slices that may be dropped. Returns a plan; the caller acts on it.

A slice's retention begins when the horizon has passed its end and counts server running time. Slices are
dropped oldest first and without gaps, so that one position, the retention floor, bounds what is gone.
"""

from .position import END, Position, before
from .slices import Directory, Slice


def passed_slices(directory: Directory, horizon: Position) -> list[Slice]:
    """Slices that the horizon has passed since this was last asked, oldest first."""
    passed = []
    for piece in directory:
        if before(piece.end_ms) > horizon:
            break
        if piece.passed_s is None:
            passed.append(piece)
    return passed


def expired_slices(
    directory: Directory, running_s: int, retention_s: int, needed: Position = END
) -> list[Slice]:
    """Slices whose retention is over at `running_s` seconds of running time, oldest first.

    `needed`: messages from there on are still needed.
    """
    plan = []
    for piece in directory:
        if piece.passed_s is None or running_s - piece.passed_s < retention_s:
            break
        if before(piece.end_ms) > needed:
            break
        plan.append(piece)
    return plan
