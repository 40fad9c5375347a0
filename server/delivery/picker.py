"""Picker: chooses a member of a shared subscription for each message or run, by least outstanding requests.

The next member is the one with the fewest outstanding messages in proportion to its *capacity*, which is
proven by acks: CAPACITY_FIRST at first, one more with each ack, its window at most. Nobody is given more, so
that a member that has stalled holds no more than it has proven, however large its window. Among equals the
one that has waited longest is next.

Four things decide, in this order: whether a member has *room*, its *share* of its capacity, whether its
client takes a message of this *size*, and whose *turn* it is. Members that may have room stand in two lines,
each a heap by share and turn: those whose clients take everything, and those that may have to be passed over.
So the next one is the first of its line, in 0.9 us with four members and 1.8 with a thousand; a look at
eight of them for each message took 2.5.

    lent 3 of 16     share 0.19, turn 41     is next
    lent 3 of 16     share 0.19, turn 43
    lent 9 of 40     share 0.23, turn 40

A backlog is given out in runs. The next member gets several messages in a row, as many as it would get one by
one. They fill it up to the *level*: the share that the members have when the whole run is given out.

    10 messages    lent 0 of 16 and 4 of 16     level 0.44: 7 in a row, and 3

At QoS 0 a member has nothing in flight, and its share stays as it is. If all get a run at QoS 0, they get
equal parts; if only some do, the run is given one by one.

A member without room leaves its line, and comes back when it acks, drains or connects. A member whose client
does not accept a message of its size, or may not have it, is passed over: LOOKED_AT of them before one that
takes everything, UNABLE_MAX otherwise. More than LOOKED_AT of them come after the others, until they are
given something. If the message is too large for all of them, one gets it and drops it. If none may have it,
nobody gets it (`barred`).
"""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice

from timeline.position import START
from timeline.session import Flight, Subscription

from .message import Message
from .subscriber import Subscriber

CAPACITY_FIRST = 16
LOOKED_AT = 8
UNABLE_MAX = 100
"""Members checked for one message whether their clients accept its size, if nobody accepts all sizes."""
LAST = 0.99
"""Share of a member that was passed over together with many others. It sorts after all members with room."""
STALE_MAX = 16
"""Stale heap entries tolerated before a rebuild, in addition to one per member."""
ROUNDING = 1e-6
"""Error of a computed number of messages."""
PART_MIN = 4
"""Messages of a run for each member, at least. Fewer are given one by one."""

Entry = tuple[float, int, Subscriber]
"""(share, turn, member). Share and turn are unique in a line; a tuple has no identity in the compiled
build."""


class Line:
    """Members that may have room, the next one first. Of a member's places the last one counts."""

    __slots__ = ("_heap", "_places")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._places: dict[Subscriber, Entry] = {}

    def __contains__(self, member: Subscriber) -> bool:
        return member in self._places

    def place(self, member: Subscriber) -> Entry | None:
        return self._places.get(member)

    def put(self, place: Entry) -> None:
        """Have the member stand there, and nowhere else."""
        heap, places, member = self._heap, self._places, place[2]
        if heap and heap[0] == places.get(member):
            heapreplace(heap, place)
        else:
            heappush(heap, place)
        places[member] = place
        if len(heap) > 2 * len(places) + STALE_MAX:
            self._heap = list(places.values())
            heapify(self._heap)

    def __len__(self) -> int:
        return len(self._places)

    def places(self) -> Iterable[Entry]:
        """In no order."""
        return self._places.values()

    def discard(self, member: Subscriber) -> None:
        """Remove a member, if present."""
        self._places.pop(member, None)
        if not self._places:
            self._heap.clear()

    def first(self) -> Entry | None:
        """The entry of the next member; None if there is no member."""
        heap, places = self._heap, self._places
        while heap:
            place = heap[0]
            if places.get(place[2]) == place:
                return place
            heappop(heap)
        return None


class Picker:
    """The members of one group that are connected, and which of them is next."""

    __slots__ = (
        *("_capacities", "_last", "_lent", "_members", "_picky", "_turn", "_unlimited", "_usual"),
        *("barred", "has_new", "present", "put_by"),
    )

    def __init__(
        self,
        members: Mapping[Subscriber, Subscription],
        lent: Mapping[Subscriber, Mapping[int, Flight]],
    ) -> None:
        """`members`, `lent`: the group's own, which it goes on changing: who there is, and what each has."""
        self._members = members
        self._lent = lent
        self.present: set[Subscriber] = set()
        """Members that are connected."""
        self._unlimited: set[Subscriber] = set()
        """Present members that accept messages of any size and may receive all topics."""
        self._capacities: dict[Subscriber, int] = {}
        """Messages that each member has proven it can take."""
        self._last: set[Subscriber] = set()
        """Members that were passed over with many others and have got no message since."""
        self._usual = Line()
        """Unlimited members that may have room."""
        self._picky = Line()
        """Other members that may have room."""
        self.barred = START
        """The last message that nobody got, because no examined member may receive it."""
        self.put_by = START
        """The first due retry that waits for a member that may receive it; START: none does."""
        self.has_new = False
        """True once a member has joined or has got more rights. Its reader sets it to False."""
        self._turn = 0

    @property
    def looks_again(self) -> bool:
        """Whether a due retry is put by, and a member has joined since."""
        return self.has_new and bool(self.put_by)

    def meet(self, member: Subscriber) -> None:
        """The member may have room."""
        link = member.link
        if link is None:
            return
        if member not in self.present:
            self.present.add(member)
            self.has_new = True
        if member.is_inside:
            self._capacities[member] = member.session.window
        if link.is_limited or member.is_restricted:
            self._line_up(member, self._picky)
        else:
            self._unlimited.add(member)
            self._line_up(member, self._usual)

    def remove(self, member: Subscriber) -> None:
        """The member's connection has ended: the next one must prove its capacity again."""
        self.present.discard(member)
        self._unlimited.discard(member)
        self._usual.discard(member)
        self._picky.discard(member)
        self._last.discard(member)
        self._capacities.pop(member, None)

    def acked(self, member: Subscriber, count: int) -> None:
        """The member has proven that it can take so many more, and has room for them."""
        if member in self.present:
            proven = self._capacities.get(member, CAPACITY_FIRST) + count
            self._capacities[member] = min(proven, member.session.window)
            self._line_up(member, self._line_of(member))

    def find_room(self, most: int) -> int:
        """How many messages members may have room for, up to `most`. Looks at `most` members of a line; those
        without room leave it, so that they are looked at once."""
        room = 0
        for line in (self._usual, self._picky):
            for share, _, member in list(islice(line.places(), most)):
                if share >= 1.0 or not _is_free(member):
                    line.discard(member)
                    continue
                room += self._room(member)
                if room >= most:
                    return most
        return room

    def part(self, count: int, qos: int) -> int:
        """Messages of `count` that each member gets in a row, if all get QoS 0; 0: they do not, or too few
        each."""
        places = self._sharing(count)
        if not places or any(self._has_in_flight(place, qos) for place in places):
            return 0
        return count // len(places)

    def level(self, count: int, qos: int) -> float:
        """The share that members reach when `count` messages go one by one to the least busy. 0.0: give them
        one by one, as each would get very few, or a member gets QoS 0 and is next again and again."""
        places = self._sharing(count)
        if not all(self._has_in_flight(place, qos) for place in places):
            return 0.0
        lent, capacity = count, 0
        for share, _, member in sorted(places):
            if share * capacity >= lent:
                break
            lent += self._lent_to(member)
            capacity += self._capacity(member)
        return lent / capacity if capacity else 0.0

    def portion(self, member: Subscriber, level: float) -> int:
        """Messages in a row for the next member, to reach the level; 0: it has reached it."""
        wanted = level * self._capacity(member) - self._lent_to(member)
        return min(max(1, int(wanted + ROUNDING)), self._room(member)) if wanted > ROUNDING else 0

    def gave(self, member: Subscriber) -> None:
        """The member has been given messages: it waits for its next turn."""
        self._turn += 1
        self._last.discard(member)
        self._line_of(member).put((self._share(member), self._turn, member))

    def next(self, message: Message | None, attempt: int = 1) -> Subscriber | None:
        """The member that gets a message, or any; None if no member with room takes it. The same one until it
        has been given something."""
        usual = self._first(self._usual)
        if len(self._unlimited) == len(self.present):
            return None if usual is None else usual[2]
        return self._first_able(usual, message, attempt)

    def _first_able(self, usual: Entry | None, message: Message | None, attempt: int) -> Subscriber | None:
        """The same if some members do not take every message."""
        line, best = self._picky, usual
        unable: list[Entry] = []
        most = UNABLE_MAX if usual is None else LOOKED_AT
        while len(unable) < most:
            place = self._first(line)
            if place is None or (usual is not None and usual < place):
                break
            if message is None or self._takes(place[2], message, attempt):
                best = place
                break
            line.discard(place[2])
            unable.append(place)
        if len(unable) > LOOKED_AT:
            self._last.update([member for _, _, member in unable])
        for _, _, member in unable:
            self._turn += 1
            line.put((self._share(member), self._turn, member))
        if best is not None:
            return best[2]
        if unable and message is not None and not self._is_another_s(message, attempt):
            able = next((place[2] for place in unable if place[2].may_receive(message.topic)), None)
            if able is None:
                self.barred = message.position
            return able
        return None

    @property
    def is_crowded(self) -> bool:
        """Whether more members are connected than are examined for one message."""
        return len(self.present) > UNABLE_MAX

    def _first(self, line: Line) -> Entry | None:
        """The next member of a line with room; those without leave it."""
        while True:
            place = line.first()
            if place is None or (place[0] < 1.0 and _is_free(place[2])):
                return place
            line.discard(place[2])

    def _line_of(self, member: Subscriber) -> Line:
        return self._usual if member in self._unlimited else self._picky

    def _line_up(self, member: Subscriber, line: Line) -> None:
        """Put a member in its place, if it is not in one as good."""
        share, place = self._share(member), line.place(member)
        if place is None:
            self._turn += 1
            line.put((share, self._turn, member))
        elif share < place[0]:
            line.put((share, place[1], member))

    def _share(self, member: Subscriber) -> float:
        """Which part of its capacity it has in flight."""
        lent = self._lent.get(member)
        share = 0.0 if lent is None else len(lent) / self._capacity(member)
        return max(share, LAST) if member in self._last else share

    def _lent_to(self, member: Subscriber) -> int:
        lent = self._lent.get(member)
        return 0 if lent is None else len(lent)

    def _capacity(self, member: Subscriber) -> int:
        """Messages that it has proven it can take."""
        return self._capacities.get(member) or min(CAPACITY_FIRST, member.session.window)

    def _sharing(self, count: int) -> list[Entry]:
        """Members that may share `count` messages; none if each would get very few."""
        if count < PART_MIN * (len(self._usual) + len(self._picky)):
            return []
        return [*self._usual.places(), *self._picky.places()]

    def _has_in_flight(self, place: Entry, qos: int) -> bool:
        """Whether a member has messages of this QoS in flight until it acks them."""
        return min(qos, self._members[place[2]].qos) > 0

    def _room(self, member: Subscriber) -> int:
        """How many more it may be given, as far as that is known."""
        left = self._capacity(member) - self._lent_to(member)
        return min(left, member.session.window - len(member.session.flights))

    def _takes(self, member: Subscriber, message: Message, attempt: int) -> bool:
        """Whether a member's client may have the message and accepts its size."""
        own = self._members[member]
        link, qos = member.link, min(message.qos, own.qos)
        if link is None or not member.may_receive(message.topic):
            return False
        return not link.is_limited or link.takes(message, qos, (own,), attempt)

    def _is_another_s(self, message: Message, attempt: int) -> bool:
        """Whether a member without room takes the message, which then waits."""
        if self._unlimited:
            return True
        some = islice(self.present, UNABLE_MAX)
        return any(m not in self._picky and self._takes(m, message, attempt) for m in some)


def _is_free(member: Subscriber) -> bool:
    """Whether a member can be sent one more message; its resends go first."""
    link, session = member.link, member.session
    if link is None or not link.has_room or session.resends:
        return False
    barrier = member.barrier
    return session.has_room and (barrier is None or not barrier.is_full)
