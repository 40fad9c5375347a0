"""Backlog of one client: unhandled packets wait here, and their bytes count until they are handled.

Packets are cut out of the stream many at a time, and take more RAM than their bytes. What a connection may
keep is counted in the bytes of the stream. So the packets of one read are a *stretch*, which counts whole
until the last of them is handled:

    read       1 2 3 4 5 | 6 7 8 9     two stretches, of 700 and of 500 bytes
    handled    1 2 3 4 5   6           500 bytes are kept
"""

from collections import deque
from collections.abc import Callable

from ..codec.errors import MqttError
from ..codec.packets import Packet


class Backlog:
    """Packets in their order, and before all of them the work on the one that was begun."""

    def __init__(self) -> None:
        self.packets: deque[Packet | MqttError] = deque()
        self.work: Callable[[], None] | None = None
        """Work that continues in a later round; counts as one packet."""
        self._stretches: deque[tuple[int, int]] = deque()
        """Number of the last packet in each, and its bytes."""
        self._read = 0
        """Number of the last packet read."""
        self._bytes = 0
        """Bytes of all stretches."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self.work is None and not self.packets

    @property
    def is_noted(self) -> bool:
        """`note` has to be told what is read: something waits, or what waited may still be counted."""
        return self.work is not None or bool(self.packets) or bool(self._stretches)

    @property
    def kept_bytes(self) -> int:
        """Bytes that what waits came in, with the handled part of its first stretch."""
        return self._bytes if self.packets or self.work is not None else 0

    def note(self, count: int, size: int) -> None:
        """So many packets of so many bytes have been read, and those that wait are the last of all."""
        self._read += count
        stretches = self._stretches
        if not stretches or stretches[-1][0] < self._read:
            self._bytes += size
            stretches.append((self._read, size))
        handled = self._read - len(self.packets) - (self.work is not None)
        while stretches and stretches[0][0] <= handled:
            self._bytes -= stretches.popleft()[1]

    def skip(self) -> None:
        """One of the packets that `note` will be told of next is handled now: it is not among the last."""
        self._read -= 1

    def clear(self) -> None:
        """Drop the backlog."""
        self.packets.clear()
        self.work = None
