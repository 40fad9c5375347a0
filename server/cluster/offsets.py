"""Retained log offsets: the record that was so many bytes ago, up to which the log is kept for nodes behind.

64 marks divide the kept bytes. So the answer lags by a 64th, and by the bytes of the second between two
notes. Records from before the process began are unknown and count as kept.
"""

from collections import deque

MARKS = 64


class RetainedOffsets:
    """Marks (record, bytes up to it) of a log that is followed or written; the last `keep_bytes` are kept."""

    def __init__(self, keep_bytes: int) -> None:
        self.keep_bytes = keep_bytes
        self._marks: deque[tuple[int, int]] = deque()

    def note(self, seq: int, passed_bytes: int) -> None:
        """Note that the log up to record `seq` has `passed_bytes`; both only grow."""
        if not self._marks or passed_bytes - self._marks[-1][1] >= self.keep_bytes // MARKS:
            self._marks.append((seq, passed_bytes))
        while len(self._marks) > 1 and passed_bytes - self._marks[1][1] >= self.keep_bytes:
            self._marks.popleft()

    def oldest(self, passed_bytes: int) -> int:
        """The record up to which the log may be trimmed, whichever node lacks it; 0: none."""
        if not self._marks:
            return 0
        seq, at = self._marks[0]
        return seq if passed_bytes - at >= self.keep_bytes else 0
