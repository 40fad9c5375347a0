"""Commit hooks: parts that write along with each group commit, or keep its decisions in RAM.

A separate file: the writer may be compiled and not every hook is, and a class that extends a compiled one
must be compiled too.
"""

from collections.abc import Callable
from typing import Any

from shards.commit import Commit

Done = Callable[[Any], None]
"""Called with the answer, or with the exception that a request raised or StoreFailed."""


def ignore(*_: object) -> None:
    """A callback that does nothing."""


class CommitHook:
    """A commit hook of the writer. A subclass implements the calls that it needs."""

    def write(self, commit: Commit) -> Done | None:
        """Called with each group before it is sealed. Its result is called when the group is durable or
        failed."""

    def retract(self, first_seq: int, last_seq: int) -> None:
        """Do not send messages with a seq above the first and up to the last: they were answered with an
        error."""

    def recover(self) -> None:
        """The store is readable again, after decisions were lost: read or write the state in RAM again.
        Raises StoreFailed, Corrupt."""
