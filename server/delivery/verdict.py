"""The outcome of a publish, for its sender."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum


class Verdict(IntEnum):
    """Outcome of a publish."""

    TAKEN = 0
    """Durable, or handed to the current subscribers."""
    UNWANTED = 1
    """Accepted, but nobody subscribes to it."""
    OVER_QUOTA = 2
    """Refused: a limit of the server is reached."""
    REFUSED = 3
    """Refused: its key belongs to another message, or cannot be read."""
    UNAVAILABLE = 4
    """Not accepted: nothing can be made durable now."""
    CANCELLED = 5
    """The message under its key was cancelled: nobody gets it."""


OnVerdict = Callable[[Verdict, int], None]
"""Called with the verdict and, if the message is stored, its id."""
RunAnswer = Callable[[Sequence[int], Mapping[int, Verdict]], None]
"""Called with the ids of a run of publishes in their order, and what became of those that were not taken, by
index; these have no id."""
