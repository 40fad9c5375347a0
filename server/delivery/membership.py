"""Who is a member of which shared subscription: groups made, joined, left, restored.

A group belongs to the key that created it. It passes to the key of the last member that leaves it, if that
key may receive all that the filter matches; not if the group is lasting and the key of its creator lives. If
its owner may receive nothing of it, it passes to the first who may receive all. How many groups and endpoints
there are is shared by owner (server/fair.py).
"""

from collections.abc import Callable, Iterator
from itertools import islice

from shards.commit import Commit, Refused
from shards.delivery_rows import DeliveryRow
from shards.tables import GroupRow
from timeline.filters import parse_share
from timeline.horizon import Horizon
from timeline.key_rows import NO_RULE, KeyBound
from timeline.position import Position
from timeline.session import USUAL, Flight, Loan, Returned, Session, Subscription, Terms

from ..auth.rights import Rights
from ..engine.commit_hook import ignore
from ..engine.decisions import Decisions
from ..fair import Bounds, Share
from ..settings.config import Config
from .ahead import Ahead, SharedNotes
from .burials import ENDPOINT_DELETED, GROUP_DELETED, GROUP_EXPIRED, Burials
from .link import Closing, Link
from .loans import Loans
from .place import Place
from .quota import LEVELS_MAX, Forms
from .rate_limit import RateLimited
from .ready import Ready
from .router import Router, is_unnamed, posting_topic
from .session_rows import doubt_of, subscription_of
from .sessions import Sessions
from .settling.leases import Leases
from .shared import ENDPOINT_PREFIX, KEY_PREFIX, Group, endpoint_text
from .subscriber import Inside, Subscriber
from .terms import HOLD, LASTING, UNSAID, InForce, Keeping, TermsError, TermsForbidden, in_force

GROUP_WINDOW = 65_535
RESERVED = 8
"""One RESERVED-th of `limits.groups` is for groups that clients create: origins of URLs may not use it."""
END_MEMBERS = 500
"""Members that leave a group in one step when the group is deleted."""


class UnknownGroup(LookupError):
    """No group has this text."""


class TooManyGroups(Refused):
    """The limit of `limits.memory` or of a key is reached."""

    def __init__(self, detail: str) -> None:
        super().__init__("over-quota", detail)


class Membership:
    """Shared subscriptions by the text that was subscribed to, `$share/group/filter`."""

    def __init__(
        self,
        sessions: Sessions,
        horizon: Horizon,
        router: Router,
        ready: Ready,
        leases: Leases,
        burials: Burials,
        decisions: Decisions,
        config: Config,
        mono: Callable[[], float],
        bounds: Bounds,
    ) -> None:
        self._sessions = sessions
        self._cursors = sessions.cursors
        self._horizon = horizon
        self._router = router
        self._ready = ready
        limits = config.limits
        self.returned = Returned(limits.returned)
        """Returned messages that no member holds."""
        notes_ends = bool(config.slices.archive)
        self.loans = Loans(sessions.groups, ready, leases, self.returned, notes_ends=notes_ends)
        self._burials = burials
        self._decisions = decisions
        self._settings = config.sessions
        self._limits = limits
        self._share = Share("groups", limits.groups, "groups and endpoints", bounds, "limits.memory")
        self._rate_limited = RateLimited(mono)
        self.key_bound = KeyBound(limits.ordering_keys)
        """Numbers of ordering keys that are behind or in trouble, and of groups that wait because of them."""
        self._by_text = sessions.groups
        self._by_name: dict[str, dict[str, Group]] = {}
        """Groups of clients by name, the text between `$share/` and the filter; none is empty."""
        self._filter_bytes = 0
        """Bytes of the filters of all groups."""
        self._forms = Forms()
        self._notes = SharedNotes()
        self.refused = 0

    def __len__(self) -> int:
        return len(self._by_text)

    def __contains__(self, text: str) -> bool:
        return text in self._by_text

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_text.values())

    def get(self, text: str) -> Group | None:
        return self._by_text.get(text)

    def of_name(self, name: str) -> list[Group]:
        """Groups with this name, each with a different filter."""
        return list(self._by_name.get(name, {}).values())

    def named(self, name: str) -> Place | None:
        """The session or group with this row name, or None."""
        return self._cursors.named(name)

    def place_of(self, row: DeliveryRow) -> Place | None:
        """The session or group that the row is of; None: it has ended, whoever has its name now."""
        place = self.named(row.addressee)
        return None if place is None or place.incarnation != row.incarnation else place

    def terms_in_force(self, place: Place, topic: bytes) -> InForce:
        """The terms of messages of that topic for a session or group. They count at the next event, and are
        never stored with a delivery."""
        if isinstance(place, Group):
            return place.in_force
        own = self._router.route(topic).get(place, ())
        terms = next((one.terms for one in own if one.terms != USUAL), USUAL)
        return in_force(terms, self._settings, is_group=False)

    def called(self, name: str) -> list[Group]:
        """The groups and the endpoint that people call so; a whole subscription names one group."""
        exact = [self._by_text.get(text) for text in (name, ENDPOINT_PREFIX + name)]
        return [*self.of_name(name), *[group for group in exact if group is not None]]

    def restore(self) -> list[tuple[Group, Flight]]:
        """At start: restore every group with a row, and its stored sessions as members that are away.

        A group without a row (of an older version) begins at its cursor, else where its first member joined.
        Returns flights for which there is no room to wait for a member; leased ones do not wait
        (settling/settling.py).
        """
        for text, row in self._sessions.stored_groups():
            self._restore(text, row)
        shared = [
            (text, subscription, member)
            for member in list(self._sessions.stored.sharing)
            for text, subscription in member.session.subscriptions.items()
            if parse_share(text)[0] is not None
        ]
        since: dict[str, Position] = {}
        for text, subscription, _ in shared:
            since[text] = min(since.get(text, subscription.since), subscription.since)
        for text, subscription, member in shared:
            if text not in self._by_text:
                self._sessions.restore_cursor(self._open(text, since[text], 0))
            self._take_in(self._by_text[text], member, subscription)
        for member in self._sessions:
            for flight in member.session.flights.values():
                group = self.loans.lender(flight)
                if group is None:
                    flight.loan = None
                else:
                    group.lent.setdefault(member, {})[flight.packet_id] = flight
        for group in list(self._by_text.values()):
            if not group.session.is_persistent:
                self.end(group, GROUP_EXPIRED)  # the settings are others now
        return [
            (group, flight)
            for group in self._by_text.values()
            for flight in group.session.flights.values()
            if not self._is_leased(flight) and not self.loans.await_member(group, flight)
        ]

    def _is_leased(self, flight: Flight) -> bool:
        """At start: whether its lease goes on. Without an end it does, for a while."""
        return flight.until_ms > self._sessions.running_ms or (flight.holder > 0 and not flight.until_ms)

    def _restore(self, text: str, row: GroupRow) -> None:
        """Restore a group from its row."""
        stored = subscription_of(row.subscription)
        group = self._open(text, stored.since, row.incarnation)
        group.session.subscriptions[stored.filter] = stored
        _agree_as_stored(group, row)
        group.session.read = self._horizon.position  # from now on, if what it has read cannot be read
        self._give(group, row.owner, self._sessions.rights_of(row.owner, row.client), row.client)
        group.presence.left_ms = row.left_ms or group.presence.left_ms
        group.presence.left_running_ms = row.left_running_ms or group.presence.left_running_ms
        group.doubt = doubt_of(row) if row.left_ms else self._horizon.reach
        self._cursors.restored(group, is_whole=row.left_ms > 0)
        self._sessions.restore_cursor(group)

    def review(self) -> None:
        """The keys file has changed: give a group of an old key the rights of the new key of that name."""
        for group in self._by_text.values():
            if group.rights is not None and not group.rights.is_live:
                group.rights = self._sessions.rights_of(group.owner, group.client)
            group.picker.has_new = True
            self._ready.look(group)

    def refusal(self, text: str, owner: str) -> str:
        """Why the key may not create a group with this text; empty: it may, or the group exists. Counts
        refusals."""
        limits, size = self._limits, len(text.encode())
        if text in self._by_text:
            return ""
        why = self._share.refusal(owner)
        if not self._forms.has_room(owner, parse_share(text)[1]):
            why = f"the filters of one key may have at most {LEVELS_MAX} levels, over all their forms"
        if self._filter_bytes + size > limits.subscription_bytes:
            why = "the limit on the total size of group filters is reached"
        self.refused += bool(why)
        return why

    def _give(self, group: Group, owner: str, rights: Rights | None, client: str) -> None:
        """Give the group to another key, or to none. Rights do not limit what is posted to an endpoint."""
        self._share.move(group.owner, owner)
        self._forms.move(group.owner, owner, group.filter)
        group.owner, group.client = owner, client
        if group.session.order.is_on:
            group.session.order.room.belong_to(owner)
        group.rights = None if group.is_endpoint else rights

    def claim(self, group: Group, rights: Rights | None, client: str = "") -> bool:
        """If the owner may receive nothing, make a client the owner that may receive all. Returns whether it
        did."""
        own = group.rights
        if own is None or rights is None or own.may_receive_some(group.filter):
            return False
        is_given = rights.may_receive_all(group.filter)
        if is_given:
            self._give(group, rights.name, rights, client)
            self._router.forget()
        return is_given

    def is_over(self, group: Group) -> bool:
        """Whether the group has expired: no member, or for an endpoint paused, and no lease."""
        is_held = group.is_served if group.is_endpoint else bool(group.members)
        return not is_held and self._sessions.is_over(group) and not self.loans.is_working(group)

    def make(
        self,
        commit: Commit,
        text: str,
        terms: Terms = USUAL,
        keeping: Keeping = UNSAID,
        rights: Rights | None = None,
    ) -> Group:
        """In the writer: create a group without members at the horizon, or change its terms; durable with
        this batch. `rights`: of its creator; they count like those of its last member. Raises
        TooManyGroups, TermsError."""
        keeping = self.signed(keeping, rights)
        owner = "" if rights is None else rights.name
        why = self.refusal(text, owner)
        if why:
            raise TooManyGroups(why)
        group = self._by_text.get(text)
        if group is None:
            group = self._open(text, self._horizon.position)
            self._give(group, owner, rights, "")
            self._router.forget()
        group.agree(terms, keeping)
        self._agreed(group)
        self._store(commit, group)
        return group

    def signed(self, keeping: Keeping, rights: Rights | None) -> Keeping:
        """The terms with the name of the key that sets `alerts`. Raises TermsForbidden if it may not deliver
        there, TermsError if there is no such endpoint."""
        target = keeping.alerts
        if target and rights is not None and not rights.may_publish(posting_topic(target.encode())):
            raise TermsForbidden("alerts", f"needs the right to $deliver/{target[:128]}")
        if target and (is_unnamed(target) or endpoint_text(target) not in self._by_text):
            raise TermsError("alerts", f"endpoint {target[:128]!r} not found")
        return keeping if target is None else keeping._replace(alerts_by=rights.name if rights else "")

    def add(self, text: str, since: Position, owner: str) -> Group:
        """A new group of that key without members, which nobody has asked for. The next batch stores it."""
        group = self._open(text, since)
        self._give(group, owner, None, "")
        group.agree(USUAL, LASTING)
        self._cursors.store_next(group)
        return group

    def has_spare(self, text: str, owner: str) -> bool:
        """Whether there may be one more group that nobody has asked for."""
        limits = self._limits
        return (
            self._share.taken < limits.groups - limits.groups // RESERVED
            and self._filter_bytes + len(text.encode()) <= limits.subscription_bytes
            and not self._share.refusal(owner)
        )

    def enlist(
        self, link: Link, text: str, *, name: str, rights: Rights | None = None, keeps_overdue: bool = True
    ) -> Inside:
        """Make a part of the server a member of a group; `name` is shown to people.

        The group sends it messages while `link` has room, stored ones at QoS 1 at least. It acks like a
        client and calls `read_on` when it has room again. It is always at the horizon, and nothing of it is
        stored. `rights` may limit its messages. Not `keeps_overdue`: after its lease has lapsed it acks by
        position (a late ack). Raises UnknownGroup.
        """
        group = self._by_text.get(text)
        if group is None:
            raise UnknownGroup(f"group {text[:128]!r} not found")
        read = self._horizon.position
        session = Session(name, read=read, expiry_s=0, window=GROUP_WINDOW)
        session.join(read)
        member = Inside(session, self._cursors.persist, keeps_overdue, rights)
        member.link = link
        self.join(member, group.text, Subscription(group.text, 1, read))
        group.picker.meet(member)
        self._ready.wake(group)
        return member

    def join(
        self, member: Subscriber, text: str, subscription: Subscription, keeping: Keeping = UNSAID
    ) -> bool:
        """Add a session as a member; True if it was not one before."""
        group = self._by_text.get(text)
        if group is None:
            group = self._open(text, subscription.since)
            self._give(group, member.owner, member.rights, member.session.client_id)
        is_new = member not in group.members
        self._take_in(group, member, subscription)
        if group.is_news(subscription.terms, keeping):
            group.agree(group.terms.changed_by(subscription.terms), group.keeping.changed_by(keeping))
        self._agreed(group)
        return is_new

    def _agreed(self, group: Group) -> None:
        """Apply changed terms: wake the group, and delete its rows if it is no longer stored."""
        if group.cursor.is_stored and not group.session.is_persistent:
            self._cursors.drop_group(group, self.loans.release(group, is_last=False))
        self._ready.look(group)

    def _take_in(self, group: Group, member: Subscriber, subscription: Subscription) -> None:
        self.claim(group, member.rights, member.session.client_id)
        group.join(member, subscription)
        member.groups[group.text] = group
        if member.is_restricted or group.rights is not None:
            self._router.forget()
        self._look(group)

    def _look(self, group: Group) -> None:
        """Start or stop the group's expiry, which elapses while no member is connected. That of an endpoint,
        whose poster is always connected, elapses while it is paused."""
        if group.is_served if group.is_endpoint else group.is_here:
            group.presence.left_ms = group.presence.left_running_ms = 0
        elif not group.presence.left_ms:
            self._sessions.leave(group)
        else:
            return
        self._cursors.mark_dirty(group)
        self._cursors.dirty.add(group)

    def leave(self, member: Subscriber, text: str, *, is_given_up: bool) -> None:
        """The member leaves; it may still finish its messages in flight. `is_given_up`: it unsubscribed, its
        session has not ended. When the last member does so the group ends, unless it is lasting."""
        group = self._by_text.get(text)
        if group is None or member.groups.pop(text, None) is None:
            return
        is_last = group.leave(member)
        if member.is_restricted:
            self._router.forget()
        may = member.owner == group.owner or group.obeys(member.rights)
        is_given_up = is_given_up and may and not group.keeping.is_lasting
        if is_last and (is_given_up or not group.session.is_persistent):
            self.end(group, GROUP_DELETED)
            return
        is_kept = group.keeping.is_lasting and group.rights is not None and group.rights.is_live
        if is_last and may and not (is_kept or member.is_inside):
            self._give(group, member.owner, member.rights, member.session.client_id)
        self._look(group)
        self._ready.pause(group)
        self._agreed(group)

    def disband(self, commit: Commit, group: Group, *, is_dead: bool = True) -> bool:
        """In the writer: delete a group that may have members; True: it is gone. END_MEMBERS leave in each
        step, and clients are not told.

        Persistent sessions keep their messages in flight. The others become dead letters, or are dropped (not
        `is_dead`).
        """
        group.is_buried_dead = is_dead
        for member in list(islice(group.members, END_MEMBERS)):
            if member.session.unsubscribe(group.text):
                self._sessions.quota.discard((group.text,), member.owner)
            self.leave(member, group.text, is_given_up=not member.is_inside)
            if not member.is_inside:
                self._cursors.store(commit, member)
            elif member.link is not None:
                member.link.close(Closing.DROPPED)
        if self._by_text.get(group.text) is group and not group.members:
            self.end(group, GROUP_DELETED)
        return self._by_text.get(group.text) is not group

    def end(self, group: Group, reason: str) -> None:
        """Delete the group; its members leave. Its unfinished messages become dead letters with that reason,
        or are dropped."""
        for member in group.members:
            member.groups.pop(group.text, None)
        del self._by_text[group.text]
        self._share.add(group.owner, -1)
        self._forms.discard(group.owner, group.filter)
        if group.is_endpoint:
            self._router.discard_endpoint(group.endpoint)
        else:
            self._router.discard_all(group)
            named = self._by_name[group.name]
            del named[group.text]
            if not named:
                del self._by_name[group.name]
        self._filter_bytes -= len(group.text.encode())
        self._sessions.spill.forget(group)
        over = group.over()
        heirs = self.loans.release(group, is_last=True)
        is_deleted_endpoint = group.is_endpoint and reason == GROUP_DELETED
        why = ENDPOINT_DELETED if is_deleted_endpoint else reason
        self._burials.end_group(group, why, over, is_dead=group.is_buried_dead)
        group.session.resends.clear()
        self._rate_limited.forget(group)
        if group.ahead is not None:
            group.ahead.forget()
        if group.cursor.is_stored:
            self._cursors.drop_group(group, heirs)
        else:
            self._cursors.part(group)

    def meet(self, member: Subscriber) -> None:
        """A member has a connection, or room: its groups may have something for it."""
        for text in member.groups:
            group = self._by_text[text]
            group.picker.meet(member)
            if group.presence.left_ms:
                self._look(group)
            if group.picker.looks_again:
                group.session.fall_behind(self._horizon.position)
            self._ready.wake(group)

    def read_on(self, subscriber: Place) -> None:
        """Continue reading: the session, or one of its groups, may have room again."""
        if isinstance(subscriber, Subscriber):
            self._ready.wake(subscriber)
            if subscriber.groups:
                self.meet(subscriber)
        elif isinstance(subscriber, Group):
            self._ready.look(subscriber)

    def disconnected(self, member: Subscriber, *, keeps: bool) -> list[tuple[Group, Flight, Loan]]:
        """The member's connection has ended. Returns its unacked messages of groups: the group, the group's
        own flight, and the loan. `keeps`: they stay leased to its client, as the server stops."""
        member.session.fall_behind(self._horizon.position)
        touched = {self._by_text[text] for text in member.groups}
        for group in touched:
            group.picker.remove(member)
            self._look(group)
        left: list[tuple[Group, Flight, Loan]] = []
        for lent in () if keeps else list(member.session.flights.values()):
            if lent.loan is None or not lent.is_of_group:
                continue
            lender = self.loans.lender(lent)
            if lender is not None:
                touched.add(lender)
                if (held := self.loans.take_back(member, lent)) is not None:
                    left.append((*held, lent.loan))
        for group in touched:
            self._ready.pause(group)
        return left

    def forget(self, member: Subscriber) -> None:
        """Its session is over, with what it still has in flight."""
        self.loans.forget(member)
        for text in list(member.groups):
            self.leave(member, text, is_given_up=False)

    def step(self) -> None:
        """Wake groups that were held back by their rate, when they may have more."""
        for group in self._rate_limited.due():
            if isinstance(group, Group) and self._by_text.get(group.text) is group:
                self._ready.look(group)
                self._rate_limited.await_tokens(group)
        returned = self.returned
        if returned.is_missed and returned.failing < returned.most:
            returned.is_missed = False
            for group in self._by_text.values():
                self._ready.wake(group)
        if self.key_bound.is_freed:
            self.key_bound.is_freed = False
            for group in self._by_text.values():
                if group.session.order.is_on:
                    self._ready.look(group)

    def wait_s(self) -> float:
        """Seconds until `step` has work."""
        return self._rate_limited.wait_s()

    def pause(self, commit: Commit, group: Group, *, is_paused: bool) -> None:
        """In the writer: pause or resume the group. Members keep what they have."""
        group.is_paused = is_paused
        self._look(group)
        self._cursors.mark_dirty(group)
        self._ready.pause(group)
        self._store(commit, group)

    def _store(self, commit: Commit, group: Group) -> None:
        """Write its terms and its pause with this batch."""
        self._cursors.store(commit, group)
        self._decisions.note(ignore, reread=lambda: self._reread(group))

    def _reread(self, group: Group) -> None:
        """A change of its terms, or a pause, has failed: what is stored of it counts."""
        if self._by_text.get(group.text) is not group:
            return
        row = self._sessions.stored_group(group.text)
        if row is not None and row.incarnation == group.incarnation:
            _agree_as_stored(group, row)
            self._look(group)
            self._agreed(group)

    def _open(self, text: str, since: Position, incarnation: int | None = None) -> Group:
        """`incarnation`: as it is stored; None: it is a new one."""
        _, topic_filter = parse_share(text)
        returned, cursors = self.returned, self._cursors
        session = Session(KEY_PREFIX + text, read=since, expiry_s=0, window=GROUP_WINDOW, returned=returned)
        number = self._horizon.issue() if incarnation is None else incarnation
        common = self.loans.leases, self._settings, self._rate_limited, returned, self.key_bound
        group = Group(session, cursors.dirty, *common, incarnation=number)
        # Who joined later does not move the group's beginning: it wants all that it has not read.
        own = Subscription(topic_filter, 2, session.read)
        session.subscribe(own, session.read)
        if group.is_endpoint:
            self._router.add_endpoint(group.endpoint, group, own)
            group.ahead = Ahead(self._notes)
            if incarnation is None:
                group.ahead.begin()
        else:
            self._router.add(group, own)
            self._by_name.setdefault(group.name, {})[text] = group
        self._by_text[text] = group
        self._share.add(group.owner)
        self._forms.add(group.owner, topic_filter)
        self._filter_bytes += len(text.encode())
        self._sessions.leave(group)
        self._cursors.dirty.add(group)
        return group


def _agree_as_stored(group: Group, row: GroupRow) -> None:
    """Set its terms and its pause to those of its row."""
    order, on_dead = (row.order == 1 if row.order else None), (HOLD if row.holds_dead else None)
    of_keys = row.concurrency or None, row.key_rate or None, row.is_fair or None
    keeping = Keeping(row.expiry_s, row.rate, order, on_dead, *of_keys, row.keep_ms, row.result_ttl_ms)
    keeping = keeping._replace(alerts=row.alerts or None, alerts_by=row.alerts_by or None)
    group.agree(subscription_of(row.subscription).terms, keeping)
    if row.order == 2:
        group.begin_order(NO_RULE)
    group.is_paused = row.is_paused
