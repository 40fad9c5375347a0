"""What becomes of a publish, for who has sent it."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum


class Verdict(IntEnum):
    """What has become of a publish."""

    TAKEN = 0
    """It is durable, or has been handed to whoever subscribes now."""
    UNWANTED = 1
    """It has been handed on, and nobody subscribes to it."""
    OVER_QUOTA = 2
    """Refused: one of the server's bounds is reached."""
    REFUSED = 3
    """Refused: its key belongs to another message, or cannot be read."""
    UNAVAILABLE = 4
    """Not taken: nothing can be made durable at the moment."""
    CANCELLED = 5
    """It was there under its key, and has been cancelled: nobody gets it."""


Answer = Callable[[Verdict, int], None]
"""Called with the verdict and, if the message is stored, its id."""
RunAnswer = Callable[[Sequence[int], Mapping[int, Verdict]], None]
"""Called with the ids of a run of publishes in their order, and what became of those that were not taken, by
index; these have no id."""
