"""Which record was so many bytes ago: how far back the log is kept for those who are behind.

Marks are set every so many bytes, 64 of them to what is kept: the answer is late by a 64th, and by what comes
in the second between two notes. What was before the process began is not known and counts as kept.
"""

from collections import deque

MARKS = 64


class Trail:
    """Marks (record, bytes up to it) of a log that is followed or written; `keep_bytes` of it matter."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._marks: deque[tuple[int, int]] = deque()

    def note(self, seq: int, passed_bytes: int) -> None:
        """So many bytes have passed, up to record `seq`; both only grow."""
        if not self._marks or passed_bytes - self._marks[-1][1] >= self._keep_bytes // MARKS:
            self._marks.append((seq, passed_bytes))
        while len(self._marks) > 1 and passed_bytes - self._marks[1][1] >= self._keep_bytes:
            self._marks.popleft()

    def oldest(self, passed_bytes: int) -> int:
        """Up to here the log is given up, whoever lacks it; 0: nothing is."""
        if not self._marks:
            return 0
        seq, at = self._marks[0]
        return seq if passed_bytes - at >= self._keep_bytes else 0
