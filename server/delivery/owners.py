"""Rights of a message's owner at delivery: it is handed out only if the owner may send it now.

The owner is the name of the key that sent the message (shards/record.py). Days may lie between sending and
delivery: the message is delayed, retained, missed, replayed. Rules change meanwhile and keys are revoked. So
a message is handed out only if the key of that name may now publish to the topic; `%c` stands for the client
that published it. A key that no longer exists may do nothing. A new key of the same name takes over the
messages of the old one. A message with `deliver_to` also needs the right to `$deliver/{endpoint}`, or
`$deliver/*` for a URL.

What is not handed out is *withheld*: nobody gets it, it is not retained, read positions pass it. It waits
until its owner may send it: a message that dispatch passes as a row of its own (shards/withheld.py), what one
place alone has still to get as a delivery (beside.py). Both are given again by settling/releasing.py.

Without an owner the server made it, or no key was needed: then it is handed out. But a retained message of an
MQTT client without a name is judged by what such clients may publish now, as mosquitto does (CVE-2018-12546):
it would come to each new subscriber for ever.

Answers are remembered, REMEMBERED_BYTES of them, until the files change (`forget`). A new answer takes a
while where there are many rules, and a thousand clients may each have a message due at once. So the cost of
new answers is summed up (`cost`) for callers with a budget. The usual case, no owner, comes first.
"""

import logging
from typing import Protocol

from shards.fields import Record
from shards.owned import Quota
from shards.withheld import Withheld

from ..auth.rights import Rights
from ..fair import Bounds
from ..observe.logs import by, clean
from .message import Message
from .router import posting_topic

log = logging.getLogger(__name__)

REMEMBERED_BYTES = 4 << 20
ALERTS = b"$alerts/"
"""Topic prefix of the server's alerts (alerts.py): their owners need only the right to the endpoint."""
ANSWER_OVERHEAD = 300
"""Bytes of a remembered answer besides its names and topic."""
ANSWER_COST = 10
"""Cost of an answer that was not remembered. The unit is some 2 us."""
COST_RULES = 16
"""Rules that add 1 to this cost."""


def owner_of(rights: Rights | None) -> bytes:
    """The owner of what a client with these rights sends; empty: nobody's."""
    return b"" if rights is None else rights.name.encode()


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

    def __init__(self, auth: Auth, noted: Withheld) -> None:
        """`noted`: messages that nobody is given where they stand, whatever their owners may send by now."""
        self._auth = auth
        self.noted = noted
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
        if not message.is_judged:
            return True
        if self.is_noted(message):
            self.withheld += 1
            return False
        return self.is_known(message) or self.allow_record(message.record)

    def is_noted(self, message: Message) -> bool:
        """Whether dispatch has withheld it: it comes again at another position, if its owner may send it."""
        return message.is_stored and not message.is_again and self.noted.has(message.position)

    def is_known(self, message: Message) -> bool:
        """Whether it is remembered that a usual message may be handed out: nothing is asked or counted."""
        return message.is_usual and self._known.get(message.sender, False)

    def allow_record(self, record: Record) -> bool:
        """`allow` of a record."""
        is_allowed = self._refused(record) is None
        self.withheld += not is_allowed
        return is_allowed

    def why_not(self, record: Record) -> str:
        """Why its owner may not send it now, in words; empty: it may."""
        topic = self._refused(record)
        return "" if topic is None else self._in_words(record.owner, topic)

    def _in_words(self, owner: bytes, topic: bytes) -> str:
        name, text = owner.decode(errors="replace"), clean(topic)
        if not name:
            return f"clients without a name may not publish to '{text}'"
        if self._auth.is_absent(name):
            return f"key '{clean(name)}' does not exist"
        is_revoked = self._auth.is_revoked(name)
        return f"key '{clean(name)}' " + ("is revoked" if is_revoked else f"may not publish to '{text}'")

    def _refused(self, record: Record) -> bytes | None:
        """The topic that its owner may not send to; None: it may send it."""
        owner, topic = record.owner, record.topic
        if not owner and not self._is_anonymous(record):
            return None
        key = owner, record.publisher, topic
        answer = topic.startswith(ALERTS) or self._known.get(key)
        if answer is None:
            answer = self._find(*key)
        if answer and record.deliver_to:
            topic = posting_topic(record.deliver_to)
            key = owner, record.publisher, topic
            answer = self._known.get(key) or self._find(*key)
        return None if answer else topic

    def may_receive(self, name: str, topic: bytes) -> bool:
        """Whether the key of that name may receive the topic; empty: no key was needed."""
        rights = self._auth.rights_of(name, "") if name else None
        return rights is None or rights.may_receive(topic)

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
            what = clean(topic), self._in_words(owner, topic)
            log.warning("message to %s withheld: %s", *what, extra=by(name, key=name, topic=topic))
        self._known[owner, publisher, topic] = answer
        self._bytes += size
        return answer
