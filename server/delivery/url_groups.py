"""The groups of full URLs: one for each origin and key, and a common one for those without room.

Dispatch makes the group of an origin with the first message that falls due for it. Its rows go with the next
batch, and with each until one is durable, so no stored horizon is behind a message whose group is not stored.
A group without undone messages is forgotten. If there is no room for one more group, the message belongs to
the common one of its key.
"""

from shards.commit import Commit
from shards.fields import Record
from timeline.horizon import Horizon
from timeline.position import Position

from .burials import GROUP_EXPIRED, Burials
from .cursors import Cursors
from .membership import Membership
from .router import URLS, endpoint_names
from .shared import Group, endpoint_text


class UrlGroups:
    """Makes and forgets the groups of URLs."""

    def __init__(self, groups: Membership, cursors: Cursors, burials: Burials, horizon: Horizon) -> None:
        self._groups = groups
        self._cursors = cursors
        self._burials = burials
        self._horizon = horizon
        self.fresh: list[Group] = []
        """Groups without a poster yet. Whoever opens one removes its group."""

    def meet(self, record: Record, place: Position) -> int:
        """In dispatch: make the group of a message at `place`, if it goes to a URL. Returns the number of new
        groups, 0 or 1."""
        if b"://" not in record.deliver_to:
            return 0
        before = len(self._groups)
        self.find(record, Position(place - 1))
        return len(self._groups) - before

    def find(self, record: Record, since: Position | None = None) -> Group:
        """The group for this owner and URL: that of the origin, or without room for one more the common one.
        A new group begins behind `since`; None: now."""
        groups = self._groups
        names, owner = endpoint_names(record.deliver_to, record.owner), record.owner.decode(errors="replace")
        text = endpoint_text(names[0])
        group = groups.get(text)
        if group is None and "://" in text and not groups.has_spare(text, owner):
            text = endpoint_text(names[1])
            group = groups.get(text)
        if group is None:
            group = groups.add(text, self._horizon.position if since is None else since, owner)
            self.fresh.append(group)
        return group

    def forget(self, commit: Commit, group: Group) -> bool:
        """In the writer: end a group if nothing of it is undone; False: it stays for now.

        Not while a common group is behind: it would take messages that this group has done for its own. Its
        stored position goes with the same batch, so that this holds after a kill too.
        """
        groups, session, horizon = self._groups, group.session, self._horizon.position
        common = {f"{group.owner}@{URLS}", URLS} - {group.endpoint}
        behind = [one for name in common if (one := groups.get(endpoint_text(name))) is not None]
        is_idle = (
            groups.get(group.text) is group
            and all(one.session.read_at(horizon) >= horizon for one in (group, *behind))
            and not (session.flights or session.finished or group.lent)
        )
        if is_idle and group in self._cursors.dirty:
            self._cursors.store(commit, group)  # with it go the rows of retries that are over
            return False
        is_idle = is_idle and not self._burials.has_retries(group)
        if is_idle:
            for one in behind:
                self._cursors.store(commit, one)
            groups.end(group, GROUP_EXPIRED)
        return is_idle
