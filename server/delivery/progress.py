"""How far workers say that they are: JSON with an extension, the last one for each message in flight.

It stands in the group's own flight, and so in the group's next cursor: a restart leaves it. It goes with the
flight, or when another member is given the message. Each cursor of the group has it again, so a group has
room for GROUP_BYTES. `ring` has the newest of all groups, for `/v1/tail`.
"""

from typing import NamedTuple

from timeline.position import START
from timeline.session import Flight
from timeline.tail import Tail

from ..engine.clock import Clock
from ..engine.writer import Busy
from .place import Place

BYTES_MAX = 4 << 10
"""Maximum bytes of one, as it came."""
GROUP_BYTES = 256 << 10
RING_ENTRIES, RING_BYTES = 1_000, 1 << 20


class Said(NamedTuple):
    group: Place
    flight: Flight
    value: bytes
    at_ms: int


class Progress:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ring: Tail[Said] = Tail(START, max_entries=RING_ENTRIES, max_bytes=RING_BYTES)

    def note(self, group: Place, flight: Flight, value: bytes) -> None:
        """Note what a member says. `flight`: the group's. Raises Busy. O(1), at the bound O(flights)."""
        session, more = group.session, len(value) - len(flight.progress)
        if session.progress_bytes + more > GROUP_BYTES:
            session.progress_bytes = sum(len(one.progress) for one in session.flights.values())
        if session.progress_bytes + more > GROUP_BYTES:
            raise Busy(f"the progress of the group's messages would have more than {GROUP_BYTES:,} bytes")
        session.progress_bytes += more
        flight.progress, flight.stored_as = value, -1
        group.dirty.add(group)
        self.ring.append(START, Said(group, flight, value, self._clock.wall_ms()), len(value))
