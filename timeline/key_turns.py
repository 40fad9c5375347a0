"""Whose turn it is to give messages: the reader's, or that of the keys that are behind.

Both take turns, counted in messages, so that neither starves the other. A round is 8 messages of the reader
and 8 of the keys. In a fair group it is 16 and 1: keys that ask for little hardly wait for one that has
dumped a million.

What somebody gives when it is not their turn counts for nothing: the other had nothing to give.
"""

TURNS, FAIR_TURNS = (8, 8), (16, 1)
"""Messages of a round: of the reader, and of the keys that are behind."""


class KeyTurns:
    """The turns of one group."""

    __slots__ = ("_given", "_keys", "_reader")

    def __init__(self, *, is_fair: bool) -> None:
        self._reader, self._keys = FAIR_TURNS if is_fair else TURNS
        self._given = 0
        """Messages that were given in this round."""

    @property
    def is_reader(self) -> bool:
        """Whether it is the reader's turn."""
        return self._given < self._reader

    @property
    def left(self) -> int:
        """Messages that are left of this turn."""
        return self._reader + (0 if self.is_reader else self._keys) - self._given

    def gave(self, count: int, *, is_reader: bool) -> None:
        """The reader, or the keys that are behind, gave so many."""
        if count and is_reader == self.is_reader:
            self._given = (self._given + min(count, self.left)) % (self._reader + self._keys)
