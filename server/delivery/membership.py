"""Who is a member of which shared subscription: groups made, joined, left, restored."""

from collections.abc import Iterator

from timeline.filters import parse_share
from timeline.horizon import Horizon
from timeline.position import Position
from timeline.session import Flight, Session, Subscription, Terms

from ..config import Sessions as SessionSettings
from .cursors import Cursors
from .leases import Leases
from .owed import Owed
from .ready import Ready
from .router import Router
from .sessions import Sessions
from .shared import KEY_PREFIX, Group
from .subscriber import Inside, Link, Rights, Subscriber
from .terms import UNSAID, Keeping

GROUP_WINDOW = 65_535


class Membership:
    """Shared subscriptions by the text that was subscribed to, `$share/group/filter`."""

    def __init__(
        self,
        sessions: Sessions,
        cursors: Cursors,
        horizon: Horizon,
        router: Router,
        owed: Owed,
        ready: Ready,
        leases: Leases,
        settings: SessionSettings,
    ) -> None:
        self._sessions = sessions
        self._cursors = cursors
        self._horizon = horizon
        self._router = router
        self._owed = owed
        self._ready = ready
        self._leases = leases
        self._settings = settings
        self._by_text: dict[str, Group] = {}

    def __len__(self) -> int:
        return len(self._by_text)

    def __contains__(self, text: str) -> bool:
        return text in self._by_text

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_text.values())

    def get(self, text: str) -> Group | None:
        return self._by_text.get(text)

    def named(self, name: str) -> Subscriber | None:
        """The session or group whose rows have that name, if there is one."""
        if name.startswith(KEY_PREFIX):
            return self._by_text.get(name.removeprefix(KEY_PREFIX))
        return self._sessions.get(name)

    def restore(self) -> None:
        """At start: every stored session that holds a shared subscription is a member, away.

        A group that was not stored yet begins where its first member joined.
        """
        shared = [
            (text, subscription, member)
            for member in list(self._sessions)
            for text, subscription in member.session.subscriptions.items()
            if parse_share(text)[0] is not None
        ]
        since: dict[str, Position] = {}
        for text, subscription, _ in shared:
            since[text] = min(since.get(text, subscription.since), subscription.since)
        for text, subscription, member in shared:
            if text not in self._by_text:
                self._open(text, since[text], is_stored=True)
            self.join(member, text, subscription)
        for member in self._sessions:
            for flight in member.session.flights.values():
                group = self._by_text.get(flight.loan.share) if flight.loan is not None else None
                if group is None:
                    flight.loan = None
                else:
                    group.note_loan(member, flight)

    def open(self, text: str, since: Position, terms: Terms, keeping: Keeping) -> Group:
        """A group that is there with nobody in it, made or changed. The rest as the settings say."""
        group = self._by_text.get(text)
        if group is None:
            group = self._open(text, since, is_stored=False)
        stays = Keeping(self._settings.group_expiry_ms // 1_000)
        group.agree(terms, stays.changed_by(keeping))
        return group

    def enlist(
        self, group: Group, link: Link, name: str, rights: Rights | None, *, keeps_overdue: bool
    ) -> Inside:
        """A member that is a part of the server. It reads nothing by itself: it is always at the horizon."""
        read = self._horizon.position
        session = Session(name, read=read, expiry_s=0, window=GROUP_WINDOW)
        session.join(read)
        owner = "" if rights is None else rights.name
        member = Inside(
            session, self._cursors.secure, keeps_overdue=keeps_overdue, owner=owner, rights=rights
        )
        member.link = link
        self.join(member, group.text, Subscription(group.text, 1, read))
        group.rota.meet(member)
        self._ready.wake(group)
        return member

    def join(
        self, member: Subscriber, text: str, subscription: Subscription, keeping: Keeping = UNSAID
    ) -> bool:
        """Make a session a member; True if it was not one before."""
        group = self._by_text.get(text)
        if group is None:
            group = self._open(text, subscription.since, is_stored=False)
        is_new = member not in group.members
        group.join(member, subscription)
        group.hear(subscription.terms, keeping)
        if member.is_restricted:
            self._router.forget()
        member.groups[text] = group
        self._ready.wake(group)
        return is_new

    def leave(self, member: Subscriber, text: str, *, is_given_up: bool) -> None:
        """The member holds the subscription no more; what it has in flight is still its own to finish.

        `is_given_up`: because it has unsubscribed, not because its session is over. With the last one that
        does so the group ends.
        """
        group = self._by_text.get(text)
        if group is None or member.groups.pop(text, None) is None:
            return
        was_persistent = group.session.is_persistent
        is_last = group.leave(member) and (is_given_up or not group.session.is_persistent)
        if member.is_restricted:
            self._router.forget()
        if is_last:
            del self._by_text[text]
            self._router.discard_all(group)
            self._owed.forget(group)
        heirs: list[Subscriber] = []
        if is_last or (was_persistent and not group.session.is_persistent):
            heirs = group.bequeath(is_last=is_last)
        if was_persistent and not group.session.is_persistent:
            self._cursors.drop_group(group, heirs)
        if not is_last:
            self._pause(group)

    def meet(self, member: Subscriber) -> None:
        """A member has a connection, or room: its groups may have something for it."""
        for text in member.groups:
            group = self._by_text[text]
            group.rota.meet(member)
            self._ready.wake(group)

    def read_on(self, subscriber: Subscriber) -> None:
        """The session, or a group that it is a member of, may have room again."""
        self._ready.wake(subscriber)
        if subscriber.groups:
            self.meet(subscriber)

    def part(self, member: Subscriber, *, is_clean: bool) -> list[tuple[Group, Flight]]:
        """The member's connection has ended. What it has not acked goes to another at once, if it left in
        order (`is_clean`); else it has failed, and is returned: each with the group that it is in flight in.
        """
        touched = {self._by_text[text] for text in member.groups}
        for group in touched:
            group.rota.part(member)
        failed: list[tuple[Group, Flight]] = []
        for lent in list(member.session.flights.values()):
            loan = lent.loan
            lender = self._by_text.get(loan.share) if loan is not None else None
            if lender is None or not lent.is_of_group:
                continue
            member.session.ack(lent.packet_id)
            touched.add(lender)
            flight = lender.taken_back(member, lent)
            if flight is not None and is_clean:
                lender.give_back(flight)
            elif flight is not None:
                failed.append((lender, flight))
        for group in touched:
            self._pause(group)
        return failed

    def take_back(self, member: Subscriber, lent: Flight) -> tuple[Group, Flight] | None:
        """The member's client says that it cannot do the message: the group's own flight of it, if that was
        the member's still."""
        member.session.ack(lent.packet_id)
        member.dirty.add(member)
        group = self._by_text.get(lent.loan.share) if lent.loan is not None else None
        flight = None if group is None else group.taken_back(member, lent)
        return None if group is None or flight is None else (group, flight)

    def over(self, member: Subscriber, lent: Flight, *, is_acked: bool) -> Group | None:
        """A member's client has the message, whoever else was given it meanwhile, or will never take it.

        The group has room for one more then, even if it was no member's any more. It is returned if it has
        gone on already: the message waits to come again, is with another, or dead.
        """
        group = self._by_text.get(lent.loan.share) if lent.loan is not None else None
        if group is None:
            return None
        is_late = False
        if is_acked:
            is_late = not group.acked(member, lent)
        else:
            group.returned(member, lent)
        self._ready.wake(group)
        return group if is_late else None

    def put_back(self, member: Subscriber, lent: Flight) -> None:
        """Nobody was sent what the member has: it goes to another, and was no attempt."""
        held = self.take_back(member, lent)
        if held is not None:
            group, flight = held
            flight.attempts -= 1
            group.give_back(flight)
            self._pause(group)

    def forget(self, member: Subscriber) -> None:
        """Its session is over, with what it still has in flight."""
        for flight in member.session.flights.values():
            lender = self._by_text.get(flight.loan.share) if flight.loan is not None else None
            if lender is not None:
                lender.forget(member)
        for text in list(member.groups):
            self.leave(member, text, is_given_up=False)

    def give_up(self, subscriber: Subscriber, flight: Flight) -> None:
        """End a flight that its client has not acked and will not be sent again."""
        subscriber.session.give_up(flight)
        if flight.loan is not None:
            self.over(subscriber, flight, is_acked=False)

    def _open(self, text: str, since: Position, *, is_stored: bool) -> Group:
        _, topic_filter = parse_share(text)
        session = Session(KEY_PREFIX + text, read=since, expiry_s=0, window=GROUP_WINDOW)
        group = Group(
            session, self._cursors.dirty, self._cursors.secure, self._leases, self._settings, UNSAID
        )
        if is_stored:
            self._sessions.restore_cursor(group)
        # Who joined later does not move the group's beginning: it wants all that it has not read.
        session.subscribe(Subscription(topic_filter, 2, session.read), session.read)
        for flight in session.flights.values():
            group.give_back(flight)
        self._by_text[text] = group
        self._router.add(group, session.subscriptions[topic_filter])
        return group

    def _pause(self, group: Group) -> None:
        """When nobody is there the group's read position stands still; else somebody else goes on."""
        if not group.is_reachable or group.session.resends:
            group.session.fall_behind(self._horizon.position)
        self._ready.wake(group)
