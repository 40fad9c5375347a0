"""The groups of full URLs: one for each origin and key, and a common one for what finds no room.

The group of an origin is made in dispatch, with the first message that falls due for it. It is forgotten when
it has nothing undone. Its rows go with the next batch, and with each until one is durable: so no stored
horizon is behind a message whose group is not stored. Where there is no room for one more group, the message
belongs to the common one of its key.
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
        """In dispatch, of a message that stands at `place`: how many groups had to be made for where it is
        delivered to, 0 or 1."""
        if b"://" not in record.deliver_to:
            return 0
        before = len(self._groups)
        self.find(record, Position(place - 1))
        return len(self._groups) - before

    def find(self, record: Record, since: Position | None = None) -> Group:
        """The group that has what the owner of this message has delivered to its URL from now on: that of the
        origin, or without room for one more the common one. A new one begins behind `since`; None: now."""
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

        Not while a common group is behind: what it comes to would seem to be its own when the group that has
        done it is gone. Nor may its stored position be behind after a kill: it goes with the same batch.
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
