"""Which message a late ack names, and whether who names it may end it.

A member names a message by its id after a reconnect, since its packet id has no meaning on the new
connection. Then it is checked that the message belongs to the group. Whoever names a message by its id, or by
a lease that it does not hold, must be allowed to receive it.
"""

import logging

from shards.commit import Commit
from shards.delivery_rows import of_message_in
from shards.errors import Corrupt
from shards.read import Found
from shards.record import decode, is_stub, topic_of
from timeline.filters import matches, parse_share
from timeline.position import MessageId, Position, at_of

from ..place import Rights
from ..shared import Group
from ..subscriber import Subscriber

log = logging.getLogger(__name__)


def root_of(commit: Commit, message: MessageId, group: Group, member: Subscriber) -> Position | None:
    """The position of a due message that the group may have given the member; else None."""
    if member.groups.get(group.text) is not group:
        return None
    found = _found(commit, message)
    if found is None or found.shard is None or at_of(found.position) > commit.open_batch.wall_ms:
        return None
    topic = topic_of(found.value)
    is_theirs = matches(parse_share(group.text)[1], topic.decode()) and member.may_receive(topic)
    return found.position if is_theirs else None


def may_end(commit: Commit, message: MessageId | None, group: Group, rights: Rights | None) -> bool:
    """Whether these rights allow to receive a message, as its row says, or its retries and dead letters.
    Raises Corrupt."""
    if rights is None or rights.may_receive_all(group.filter):
        return True
    if message is None:
        return False
    found = commit.find(message)
    topics = [] if found is None or is_stub(found.value) else [topic_of(found.value)]
    rows = of_message_in(commit.open_batch, message)
    topics += [topic_of(row.record) for row in rows if not row.is_dropped]
    return bool(topics) and all(map(rights.may_receive, topics))


def key_of(commit: Commit, message: MessageId | None) -> bytes:
    """The ordering key of a message; empty: none, or it cannot be read."""
    found = None if message is None else _found(commit, message)
    return b"" if found is None else decode(found.value).ordering_key


def _found(commit: Commit, message: MessageId) -> Found | None:
    """None: it is gone, or unreadable."""
    try:
        found = commit.find(message)
        if found is None or is_stub(found.value):
            return None
        decode(found.value)
    except Corrupt as error:
        log.error("late ack: message unreadable: %s", error)
        return None
    return found
