"""Moves retries of a filter without members to a group of the same name.

Say a deployment changes the filter of a handler: `$share/workers/jobs/#` has no members,
`$share/workers/jobs/+/run` has the workers. Unread messages stay with the filter that asked for them. A retry
belongs to the *name*: a worker had the message already, and it must be tried again. So when it is due and its
own group has no member, it becomes a retry of a group of that name that has members and whose filter matches
its topic. That group never asked for the message itself (it began later), so nobody gets the message twice.

    jobs/1/run   retry of $share/workers/jobs/#, due    ──>   retry of $share/workers/jobs/+/run

Each LOOK_S a look takes ROWS retries of a group, then of the next group, for BUDGET_S in all; the next look
continues there. So retries that fit no group do not block others, however many there are.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial

from timeline.filters import matches
from timeline.position import START, Position

from ...engine.clock import Clock
from ..membership import Membership
from ..retries import Retries
from ..shared import Group
from .events import Events
from .lives import Outcome

LOOK_S = 1.0
ROWS = 100
BUDGET_S = 0.005
"""Time of one look, except its last retry: 10,000 filters of one name take 15 ms for that."""


class Siblings:
    """Moves such retries."""

    def __init__(self, groups: Membership, retries: Retries, events: Events, clock: Clock) -> None:
        self._groups = groups
        self._retries = retries
        self._events = events
        self._clock = clock
        self._look_at = 0.0
        self._round: deque[Group] = deque()
        """Groups still to be looked at in this round."""
        self._from: dict[Group, Position] = {}
        """Where the next look at a group begins, if the last one did not finish it."""
        self._requested: set[tuple[Group, Position]] = set()
        """Retries that the writer is asked to move."""

    def step(self) -> None:
        """Look for due retries of groups without members."""
        now_s = self._clock.mono()
        if now_s < self._look_at:
            return
        self._look_at = now_s + LOOK_S
        if not self._round:
            due = {one for one in self._retries.places_due if isinstance(one, Group)}
            due.update(one for one in self._groups if one.picker.put_by)
            self._round = deque([one for one in due if _is_left(one)])
            self._from = {one: self._from[one] for one in self._round if one in self._from}
        is_in_time = True
        while self._round and is_in_time:
            group = self._round.popleft()
            for root, to in self._moves(group, now_s + BUDGET_S):
                if (group, root) not in self._requested:
                    self._requested.add((group, root))
                    may = partial(_may_move, group, root, to)
                    self._events.move(group, root, to, may, partial(self._answered, group, root))
            is_in_time = self._clock.mono() < now_s + BUDGET_S

    def _moves(self, group: Group, until_s: float) -> Iterator[tuple[Position, Group]]:
        """Roots of its retries, and where each goes."""
        others = [one for one in self._groups.of_name(group.name) if one is not group and one.is_reachable]
        if not others:
            return
        start, order = self._from.pop(group, START), group.session.order
        for count, message in enumerate(self._retries.waiting(group, start)):
            if count >= ROWS or (count and self._clock.mono() >= until_s):
                self._from[group] = message.at
                return
            if order.key_of(message.ordering_key) in order.held:
                continue  # it waits for the key, whoever is there
            if not _is_left(group, message.topic):
                continue
            to = next((one for one in others if _fits(one, message.topic, message.position)), None)
            if to is not None:
                yield message.position, to

    def _answered(self, group: Group, root: Position, _: Outcome) -> None:
        self._requested.discard((group, root))


def _may_move(group: Group, root: Position, to: Group, topic: bytes) -> bool:
    """Whether it may still."""
    return _is_left(group, topic) and _fits(to, topic, root)


def _is_left(group: Group, topic: bytes | None = None) -> bool:
    """Whether a filter is not paused and no member, connected or not, may receive the topic. None: whether
    there may be such a topic."""
    if group.is_paused or group.is_endpoint:
        return False
    if topic is None:
        return group.is_restricted or not group.members
    return not any(member.may_receive(topic) for member in group.members)


def _fits(group: Group, topic: bytes, place: Position) -> bool:
    """Whether a group may get a message that it has not asked for itself."""
    own = group.session.subscriptions.items()
    fits = any(matches(text, topic.decode()) and one.since >= place for text, one in own)
    return fits and any(member.may_receive(topic) for member in group.picker.present)
