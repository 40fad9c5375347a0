"""Rights of a message's owner at delivery: it is handed out only if the owner may send it now.

The owner is the name of the key that sent the message (shards/record.py). Days may lie between sending and
delivery: the message is delayed, retained, missed, replayed. Rules change meanwhile and keys are revoked. So
a message is handed out only if the key of that name may now publish to the topic; `%c` stands for the client
that published it. A key that no longer exists may do nothing. A new key of the same name takes over the
messages of the old one. A message with `deliver_to` also needs the right to `$deliver/{endpoint}`, or
`$deliver/*` for a URL.

A key that the files do not even have as revoked is *absent*: its messages wait (awaited.py).

What is not handed out is *withheld*: nobody gets it, it is not retained, read positions pass it. Its row
stays, for readers that come to it when the owner may send again.

Without an owner the server made it, or no key was needed: then it is handed out. But a retained message of an
MQTT client without a name is judged by what such clients may publish now, as mosquitto does (CVE-2018-12546):
it would come to each new subscriber for ever.

Answers are remembered, REMEMBERED_BYTES of them, until the files change (`forget`). A new answer takes a
while where there are many rules, and a thousand clients may each have a message due at once. So the cost of
new answers is summed up (`cost`) for callers with a budget. The usual case, no owner, comes first.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from shards.fields import Record
from shards.owned import Quota
from timeline.position import Position

from ..auth.rights import Rights
from ..fair import Bounds
from ..observe.logs import by, clean
from .message import Message
from .router import URLS

log = logging.getLogger(__name__)

REMEMBERED_BYTES = 4 << 20
ANSWER_OVERHEAD = 300
"""Bytes of a remembered answer besides its names and topic."""
ANSWER_COST = 10
"""Cost of an answer that was not remembered. The unit is some 2 us."""
COST_RULES = 16
"""Rules that add 1 to this cost."""


def owner_of(rights: Rights | None) -> bytes:
    """The owner of what a client with these rights sends; empty: nobody's."""
    return b"" if rights is None else rights.name.encode()


def posting_topic(deliver_to: bytes) -> bytes:
    """The topic that who has something delivered there may send to, and that of what says no other."""
    return b"$deliver/" + (URLS.encode() if b"://" in deliver_to else deliver_to)


def manages(rights: Rights | None, endpoint: str, owner: str) -> bool:
    """Whether a key may see and change an endpoint: the key owns it, or may send messages to it."""
    return rights is None or rights.name == owner or rights.may_publish(posting_topic(endpoint.encode()))


class Auth(Bounds, Protocol):
    """Current rights, as the files define them."""

    def rights_of(self, name: str, client_id: str) -> Rights | None: ...

    def may_send(self, name: str, client_id: str, topic: bytes) -> tuple[bool, int]:
        """Whether a client may publish to a topic, and how many rules have been looked at."""

    def binds_anonymous(self) -> bool:
        """Whether clients without a name may not publish everything."""

    def is_absent(self, name: str) -> bool:
        """Whether the files have no key or user of that name, nor a revoked one."""

    def is_revoked(self, name: str) -> bool:
        """Whether the files have a revoked key of that name, and no other."""

    def quota_of(self, owner: bytes) -> Quota: ...


class Open:
    """Rights on a server without keys."""

    is_open = True

    def rights_of(self, name: str, client_id: str) -> None:
        """No restriction."""

    def may_send(self, name: str, client_id: str, topic: bytes) -> tuple[bool, int]:  # noqa: ARG002
        return True, 0

    def binds_anonymous(self) -> bool:
        return False

    def bound_of(self, owner: str, name: str) -> int:  # noqa: ARG002
        return 0

    def is_proven(self, owner: str) -> bool:  # noqa: ARG002
        return True

    def is_absent(self, name: str) -> bool:  # noqa: ARG002
        return False

    def is_revoked(self, name: str) -> bool:  # noqa: ARG002
        return False

    def quota_of(self, owner: bytes) -> Quota:  # noqa: ARG002
        return Quota()


OPEN = Open()


class Owners:
    """Asked by dispatch and by replay. `withheld`: how often the answer was no."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth
        self.held: dict[bytes, Callable[[Position], bool]] = {}
        """Owners that are there again, and whether nobody gets what they have sent there: it is being moved
        to now. Only server/delivery/awaited.py writes it."""
        self._known: dict[tuple[bytes, bytes, bytes], bool] = {}
        """Remembered answers, by owner, publisher and topic."""
        self._bytes = 0
        self.cost = 0
        """Cost of the answers since `take_cost` that were not remembered."""
        self.withheld = 0

    def take_cost(self) -> int:
        """`cost`, which begins anew."""
        cost, self.cost = self.cost, 0
        return cost

    def allow(self, message: Message) -> bool:
        """Whether a message may be handed out; if not, that is counted."""
        if self.held and self._is_held(message):
            self.withheld += 1
            return False
        return not message.is_judged or self.is_known(message) or self.allow_record(message.record)

    def is_absent(self, owner: bytes) -> bool:
        """Whether no key of that name exists, and none was revoked: a keys file may lack it by mistake."""
        return bool(owner) and self._auth.is_absent(owner.decode(errors="replace"))

    def is_revoked(self, owner: bytes) -> bool:
        """Whether the key of that name was revoked."""
        return self._auth.is_revoked(owner.decode(errors="replace"))

    def _is_held(self, message: Message) -> bool:
        has = self.held.get(message.sender[0]) if message.is_judged else None
        return has is not None and message.is_stored and not message.is_again and has(message.position)

    def is_known(self, message: Message) -> bool:
        """Whether it is remembered that a usual message may be handed out: nothing is asked or counted."""
        return message.is_usual and self._known.get(message.sender, False)

    def allow_record(self, record: Record) -> bool:
        """`allow` of a record."""
        owner = record.owner
        if not owner and not self._is_anonymous(record):
            return True
        key = owner, record.publisher, record.topic
        answer = self._known.get(key)
        if answer is None:
            answer = self._find(*key)
        if answer and record.deliver_to:
            key = owner, record.publisher, posting_topic(record.deliver_to)
            answer = self._known.get(key) or self._find(*key)
        if not answer:
            self.withheld += 1
        return answer

    def _is_anonymous(self, record: Record) -> bool:
        """Whether a client without a name has retained it, and such clients may not publish everything.
        Topics with `$` are the server's, which reports what others have sent, under their client ids."""
        is_client_s = bool(record.retain and record.publisher) and record.topic[:1] != b"$"
        return is_client_s and self._auth.binds_anonymous()

    def forget(self) -> None:
        """The files say something else now."""
        self._known = {}
        self._bytes = 0

    def _find(self, owner: bytes, publisher: bytes, topic: bytes) -> bool:
        """Said in the log when it is no, and not again before it is forgotten."""
        size = ANSWER_OVERHEAD + len(owner) + len(publisher) + len(topic)
        if self._bytes + size > REMEMBERED_BYTES:
            self._known = {}
            self._bytes = 0
        names = owner.decode(errors="replace"), publisher.decode(errors="replace")
        answer, rules = self._auth.may_send(*names, topic)
        self.cost += ANSWER_COST + rules // COST_RULES
        if not answer:
            name = clean(owner) or "a client without a name"
            cause = by(name, key=name, topic=topic)
            if self.is_absent(owner):
                log.warning("message waits: there is no key %s", name, extra=cause)
            else:
                log.warning("message withheld: %s may not send to %s", name, clean(topic), extra=cause)
        self._known[owner, publisher, topic] = answer
        self._bytes += size
        return answer
