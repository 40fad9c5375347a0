"""Long decisions in steps: between two steps the loop may turn, but nothing else is decided.

A batch of 10,000 messages with keys takes 60 ms to decide: each key is looked up, each message given its
place. It is all or nothing, so one group holds all of it, but it need not be decided at once. A decision in
steps is a generator that yields between steps and returns its answer:

    def place_all(commit, drafts):
        known = yield from keys_in_steps(...)       128 keys, yield, 128 keys, yield ...
        ...                                         refused here: nothing has been placed
        ids = yield from group.place_in_steps(...)
        return ids

The writer (server/engine/writer.py) takes as many steps as it has time for in a turn of the loop. What one
step found still holds in the next, because only requests change what is stored, and those wait. The clock and
the horizon do move on meanwhile, so the horizon is kept below everything reserved.
"""

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
Bits = Generator[None, None, T]
"""Yields between two steps, returns the answer."""

STEP = 128
"""Messages handled in a step: 0.2 to 4 ms, the latter if their keys have to be read from disk."""


class Steps:
    """A request that is decided in steps."""

    __slots__ = ("_bits", "answer")

    def __init__(self, bits: Bits[Any]) -> None:
        self._bits = bits
        self.answer: Any = None
        """Set after the last step."""

    def step(self) -> bool:
        """Take one step. Returns whether there are more. Raises what the request raises."""
        try:
            next(self._bits)
        except StopIteration as end:
            self.answer = end.value
            return False
        return True


def at_once(bits: Bits[T]) -> T:
    """Run all steps at once."""
    while True:
        try:
            next(bits)
        except StopIteration as end:
            answer: T = end.value
            return answer
