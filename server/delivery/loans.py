"""Messages that members have in flight for their groups, and their return (shared.py lends them)."""

from collections.abc import Iterable, Mapping, Sequence

from shards.kept import NO_STORY, Story
from timeline.delivery_rows import Keep
from timeline.session import SETTLED, Flight, Loan, Returned

from .drain import Drain
from .place import Place
from .ready import Ready
from .settling.leases import Leases
from .shared import Group
from .subscriber import Subscriber
from .tries import tries_of_flight


class Loans:
    """Loans of all groups."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        ready: Ready,
        leases: Leases,
        returned: Returned,
        *,
        notes_ends: bool,
    ) -> None:
        """`groups`: by text; their owner goes on changing them. `returned`: messages that no member holds.
        `notes_ends`: whether there is an archive."""
        self._groups = groups
        self._notes_ends = notes_ends
        self._ready = ready
        self.leases = leases
        self.returned = returned
        self._alike: tuple[object, ...] | None = None
        """What the last story was made of: those of a run are one, and are encoded once."""
        self._story = NO_STORY
        self.drain = Drain(groups, ready, leases)

    def lender(self, flight: Flight) -> Group | None:
        """The group that lent it, if there is one."""
        return None if flight.loan is None else self._groups.get(flight.loan.share)

    def place_of(self, one: Place, flight: Flight) -> Place:
        """The place whose delivery a flight is: the group that lent it, or the session or group itself."""
        return self.lender(flight) or one

    def lend_again(self, group: Group, member: Subscriber, flight: Flight, term_ms: int) -> Flight:
        """At start: the member has the message for `term_ms` from now. Returns the member's flight."""
        loan = Loan(group.text, flight)
        lent = member.session.launch(flight.position, flight.shard, 1)
        lent.loan = loan
        group.lent.setdefault(member, {})[lent.packet_id] = lent
        self.leases.resume(group, member, lent, loan, term_ms)
        if flight.number:
            self.leases.name(group, member, lent, loan, flight.number)
        return lent

    def acked(self, member: Subscriber, ended: Iterable[Flight]) -> list[tuple[Group, Flight]]:
        """A member's client has acked these; loans make room in their groups. Returns late acks, where the
        group has gone on: the message waits to come again, is with another member, or dead."""
        runs: dict[str, list[Flight]] = {}
        late: list[tuple[Group, Flight]] = []
        for lent in ended:
            if lent.loan is not None:
                runs.setdefault(lent.loan.share, []).append(lent)
        for share, run in runs.items():
            group = self._groups.get(share)
            if group is not None:
                too_late = self._acked(group, member, run)
                group.rows.ends["done"] += len(run) - len(too_late)
                late += [(group, lent) for lent in too_late]
                self._ready.look(group)
        return late

    def _acked(self, group: Group, member: Subscriber, run: Sequence[Flight]) -> list[Flight]:
        """Which of a group's are late."""
        session, theirs = group.session, group.lent.get(member, {})
        own, resends, keep, out = session.flights, session.resends, group.keeping.keep, group.rows.out
        is_all, is_any = keep is Keep.ALL, keep is not Keep.NONE  # `keeps`, inlined: it runs for each ack
        late: list[Flight] = []
        held = len(own)
        for lent in run:
            loan = lent.loan
            assert loan is not None, "only what is lent comes back"
            if loan.until_s:
                self.leases.end(loan)
            theirs.pop(lent.packet_id, None)
            flight = loan.flight
            if flight is None:
                flight = lent  # at QoS 2 there is no other
            elif own.get(flight.packet_id) is flight and flight.fate != SETTLED:
                del own[flight.packet_id]
                if resends:
                    resends.discard(flight.packet_id)
                if flight.key:
                    session.land(flight)
            else:
                late.append(lent)
                continue
            if is_all or (is_any and (flight.attempts > 1 or flight.position in out)):
                self.tell(group, member, flight, loan)
        if not theirs:
            group.lent.pop(member, None)
        if member in group.members:
            group.picker.acked(member, len(run))
        if len(own) < held:
            group.dirty.add(group)
        elif group.rows.out or self._notes_ends:
            # Of QoS 2: that it is done stands in the member's cursor, and its row and count are the group's.
            group.dirty.add(group)
            member.cursor.is_entangled = True
        return late

    def tell(
        self, group: Group, member: Subscriber, flight: Flight, loan: Loan, result: bytes | None = None
    ) -> None:
        """The story of what is acked goes with the group's next cursor, once."""
        if loan.is_told:
            return
        loan.is_told = self.leases.is_unwritten = True
        shard = flight.shard if self._notes_ends else -1
        alike = (member, loan.since_s, self.leases.turn_s, loan.answer, flight.attempts, shard)
        if alike != self._alike or flight.attempts > 1 or result is not None:
            lost = tries_of_flight((), flight, group.name) if flight.attempts > 1 else ()
            counts, times = (flight.attempts, flight.attempts), self.leases.held(loan)
            self._story = Story(*counts, lost, member.name, *times, loan.answer, result, shard)
            self._alike = alike if result is None else None
        group.rows.note_ended(flight.position, self._story)
        group.dirty.add(group)

    def take_back(self, member: Subscriber, lent: Flight) -> tuple[Group, Flight] | None:
        """The member's client cannot do the message, or is gone. Returns the group's own flight, if the
        member held it."""
        member.session.ack(lent.packet_id)
        member.dirty.add(member)
        group = self.lender(lent)
        if group is None:
            return None
        is_held, flight = group.is_held(lent), self._returned(group, member, lent)
        return (group, flight) if flight is not None and is_held else None

    def _returned(self, group: Group, member: Subscriber, lent: Flight) -> Flight | None:
        """The member no longer has the message in flight. Returns the group's own flight of it, if any."""
        loan = lent.loan
        assert loan is not None, "only what is lent comes back"
        if loan.until_s:
            self.leases.end(loan)
        theirs = group.lent.get(member)
        if theirs is not None:
            theirs.pop(lent.packet_id, None)
            if not theirs:
                del group.lent[member]
        if group.rows.out:
            group.dirty.add(group)
        flight = loan.flight
        return flight if flight is not None and group.session.has(flight) else None

    def give_back(self, group: Group, flight: Flight) -> bool:
        """Another member gets the message, before anything new, in position order; the delivery was no try.
        False: too many wait so."""
        has_room = self.await_member(group, flight)
        flight.attempts -= has_room
        group.dirty.add(group)
        self._ready.pause(group)
        return has_room

    def await_member(self, group: Group, flight: Flight) -> bool:
        """The same for who has counted the try, and wakes the group."""
        if not self.returned.has_room:
            return False
        if flight.is_leased:
            flight.end_lease()
        group.session.resends.add(flight, flight.position)
        return True

    def give_up(self, one: Place, flight: Flight) -> None:
        """Give up an unacked flight that will not be sent again."""
        one.session.give_up(flight)
        self.over(one, flight)

    def over(self, member: Place, lent: Flight) -> None:
        """The member's client will never take the message: free its slot in the group."""
        group = self.lender(lent)
        if group is not None and isinstance(member, Subscriber):
            self._returned(group, member, lent)
            self._ready.look(group)

    def is_working(self, group: Group) -> bool:
        """Whether a member, or a former one, has a message of the group in hand."""
        return any(group.is_held(lent) for theirs in group.lent.values() for lent in theirs.values())

    def forget(self, member: Subscriber) -> None:
        """The member's session is over, with what it still has in flight."""
        for flight in member.session.flights.values():
            group = self.lender(flight)
            if group is not None and member in group.lent:
                del group.lent[member]
                if group.rows.out:
                    group.dirty.add(group)

    def release(self, group: Group, *, is_last: bool) -> list[Subscriber]:
        """The group ends (`is_last`), or its rows do. Loans of persistent sessions become their own; returns
        these sessions. Other loans stay the group's, to be settled. O(loans)."""
        heirs = [heir for heir in group.lent if heir.session.is_persistent]
        for holder in [*group.lent] if is_last else heirs:
            is_heir = holder.session.is_persistent
            for lent in group.lent.pop(holder).values():
                loan, lent.loan = lent.loan, None
                if loan is not None:
                    self.leases.end(loan)
                if lent.position in group.rows.out:
                    holder.session.ack(lent.packet_id)  # its row is the group's
                elif is_heir and loan is not None and loan.flight is not None and not loan.is_overdue:
                    group.session.ack(loan.flight.packet_id)
            holder.dirty.add(holder)
        return heirs
