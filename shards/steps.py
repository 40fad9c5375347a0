"""A decision that takes long, in steps: between two of them the loop may turn, and nothing else is decided.

A batch of 10,000 messages with keys takes 60 ms to decide: each key is looked up, each message given its
place. It has to be all or nothing, so one group holds all of it; but it need not be decided in one go. What
decides in steps is a generator that yields between two of them and returns its answer:

    def place_all(commit, drafts):
        known = yield from keys_in_steps(...)       128 keys, yield, 128 keys, yield ...
        ...                                         refused here: nothing has been placed
        ids = yield from group.place_in_steps(...)
        return ids

The writer (server/engine/writer.py) takes as many steps as it has time for in a turn of the loop. What a
step has found out still holds in the next one, because only requests change what is stored, and those wait.
Two things do move on meanwhile, the clock and the horizon; so the horizon is kept below whatever has been
reserved.
"""

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
Bits = Generator[None, None, T]
"""Yields between two steps, returns the answer."""

STEP = 128
"""Messages that are looked at in a step: 0.2 to 4 ms, the latter if their keys have to be read from disk."""


class Steps:
    """The answer of a request that is still to be decided."""

    __slots__ = ("_bits", "answer")

    def __init__(self, bits: Bits[Any]) -> None:
        self._bits = bits
        self.answer: Any = None
        """When no step is left."""

    def step(self) -> bool:
        """Take one; whether there are more. Raises what the request raises."""
        try:
            next(self._bits)
        except StopIteration as end:
            self.answer = end.value
            return False
        return True


def at_once(bits: Bits[T]) -> T:
    """All steps in one go."""
    while True:
        try:
            next(bits)
        except StopIteration as end:
            answer: T = end.value
            return answer
