"""Riders (commit hooks): parts that write along with each group commit, or keep its decisions in RAM.

A file of its own, because the writer may be compiled and not every rider is: what extends a compiled class is
compiled too.
"""

from collections.abc import Callable
from typing import Any

from shards.commit import Commit

Done = Callable[[Any], None]
"""Called with the answer, or with the exception that a request raised or StoreFailed."""


class Rider:
    """A commit hook of the writer. A rider implements the calls that it needs."""

    def write(self, commit: Commit) -> Done | None:
        """Called with each group before it is sealed. What it returns is called when that group is durable,
        or has failed."""

    def retract(self, first_seq: int, last_seq: int) -> None:
        """What was placed with a seq above the first and up to the last has been answered with an error, and
        is not to be sent."""

    def recover(self) -> None:
        """Something that was decided has not been written, and the store can be read: what RAM keeps of rows,
        noted when it was decided, has to be read or written again. Raises StoreFailed, Corrupt."""
