"""Decisions that RAM has already and the store does not have yet.

A later decision in the writer builds on an earlier one, so RAM changes with each at once. The batch says what
becomes of it:

    durable     `done` of each is called, in the order of deciding
    failed      `undo` of each, the last one first: all later batches have failed with it. They may be stored
                all the same: when the store can be read again, `reread` of each is called
    given up    both at once, of the batch that was open. What was written before is under way, and stays
                decided
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from shards.commit import Commit

from .commit_hook import CommitHook, Done, ignore
from .writer import Writer

Call = Callable[[], object]


class _Decision(NamedTuple):
    undo: Call
    done: Call
    reread: Call


class Decisions(CommitHook):
    """The decisions of one server that are not durable yet."""

    def __init__(self, writer: Writer) -> None:
        self._open: list[_Decision] = []
        """In the open batch."""
        self._written: deque[list[_Decision]] = deque()
        """In batches that are not durable yet, the oldest first."""
        self._unsure: list[Call] = []
        """`reread` of those that were undone, the last one first."""
        writer.add_hook(self)

    def note(self, undo: Call, done: Call = ignore, reread: Call = ignore) -> None:
        """In the writer: something is decided. Either `undo` or `done` is called, once.

        `reread`: called after `undo`, to see what is stored of it. If it raises StoreFailed or Corrupt, it is
        called again.
        """
        self._open.append(_Decision(undo, done, reread))

    def write(self, _: Commit) -> Done | None:
        if not self._open:
            return None
        self._written.append(self._open)
        self._open = []
        return self._ended

    def _ended(self, answer: object) -> None:
        """The oldest batch is durable, or all have failed."""
        if not isinstance(answer, Exception):
            for one in self._written.popleft():
                one.done()
            return
        while self._written:
            self._open[:0] = self._written.pop()
        self._undo()

    def recover(self) -> None:
        self._undo()
        while self._unsure:
            self._unsure[-1]()
            self._unsure.pop()

    def _undo(self) -> None:
        lost, self._open = self._open, []
        for one in reversed(lost):
            one.undo()
        self._unsure += [one.reread for one in reversed(lost) if one.reread is not ignore]
