"""Decisions that RAM has already and the store does not have yet.

A later decision in the writer builds on an earlier one, so RAM changes with each at once. The batch says what
becomes of it:

    durable     `done` of each is called, in the order of deciding
    failed      `undo` of each, the last one first: all later batches have failed with it
    given up    the same, of the batch that was open. What was written before is under way, and stays decided
"""

from collections import deque
from collections.abc import Callable

from shards.commit import Commit

from .commit_hook import CommitHook, Done, ignore
from .writer import Writer

Call = Callable[[], object]


class Decisions(CommitHook):
    """The decisions of one server that are not durable yet."""

    def __init__(self, writer: Writer) -> None:
        self._open: list[tuple[Call, Call]] = []
        """In the open batch."""
        self._written: deque[list[tuple[Call, Call]]] = deque()
        """In batches that are not durable yet, the oldest first."""
        writer.add_hook(self)

    def note(self, undo: Call, done: Call = ignore) -> None:
        """In the writer: something is decided. One of the two is called, once."""
        self._open.append((undo, done))

    def write(self, _: Commit) -> Done | None:
        if not self._open:
            return None
        self._written.append(self._open)
        self._open = []
        return self._ended

    def _ended(self, answer: object) -> None:
        """The oldest batch is durable, or all have failed."""
        if not isinstance(answer, Exception):
            for _, done in self._written.popleft():
                done()
            return
        while self._written:
            self._open[:0] = self._written.pop()
        self.recover()

    def recover(self) -> None:
        lost, self._open = self._open, []
        for undo, _ in reversed(lost):
            undo()
