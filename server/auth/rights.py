"""Principals: who somebody is, and which topics they may publish to, subscribe to and be sent.

A rule is a topic filter that may hold `%c` (the client id), `%u` (the principal's name) and `%%` (a `%`):

    publish   meters/%u/#      the key `meter-7` publishes to meters/meter-7/power, and to no other's
    deliver   orders/+/state   of what it subscribes to, it is sent these only

A value that holds `/`, `+` or `#`, or begins with `$`, would widen the rule that it is put into: such a rule
allows nothing. So does one with `%c` where there is no client, over HTTP, and for a client whose id is longer
than VALUE_BYTES_MAX: a message says no more of it, by which it is judged on its way. What is denied comes
before what is allowed.

Three questions, as three things are done: `may_publish` a topic, `may_subscribe` to a filter (all that it can
match has to be allowed), `may_receive` a topic, which is asked when a message is on its way and not when it
was subscribed to: a rule that is made later holds for what is retained, delayed or replayed too. By then
`may_publish` is asked again of who has sent it (server/delivery/owners).

A principal lives as long as its key, and its `grant` is replaced when the file says something else; `Rights`
are its rules for one client, with the answers remembered until then. Who asks for one topic each of very many
clients (`Principal.may_send`) has nothing made ready for each: of the rules only those are put in words that
begin like the topic.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from timeline.filters import covers, matcher, matches

from .bucket import Bucket

SCHEDULE, READ, ADMIN = "schedule", "read", "admin"
SCOPES = (SCHEDULE, READ, ADMIN)
EVERY_SCOPE = frozenset(SCOPES)
REMEMBERED = 32
"""Topics that one client publishes to whose answers are remembered; at the bound all are forgotten. What it
is sent is remembered by who asks (server/delivery/router.py)."""
REMEMBERED_BYTES = 4 << 10
"""Of these topics; a longer one is not remembered."""
_MARK = re.compile("%[cu%]")
_VALUE = re.compile("%[cu]")
VALUE_BYTES_MAX = 255
"""Of a name or client id that is put into a rule."""
_WIDENING = frozenset("/+#\0")
_BEGIN = re.compile("[^%+#]*")
_MADE_ID = re.compile("fasti-[0-9a-f]+")
"""What the server calls a client that has no id (server/mqtt/state.py); it may come again under that."""
Fits = Callable[[str], bool]
"""Whether a rule matches a topic."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What `allow` matches but for what `deny` does; `allow` None: every topic, the server's own too."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    otherwise: "Rules | None" = None
    """What is asked where neither says anything: the patterns of a mosquitto (`Rights._patterns`)."""

    @property
    def is_every(self) -> bool:
        """Whether nothing is left out."""
        return self.allow is None and not self.deny


EVERY = Rules()
NOTHING = Rules(())


class Bound(NamedTuple):
    """A number that the keys file may give a key."""

    name: str
    most: int
    of_what: str
    otherwise: str
    """What counts without it, or with 0."""


BOUNDS = (
    Bound("rate", 1_000_000, "messages a second", "any number"),
    Bound("pending", 1_000_000_000, "messages that may wait", "its share of limits.pending"),
    Bound("pending_bytes", 1 << 50, "bytes of messages that may wait", "any number"),
    Bound("groups", 1_000_000, "groups and endpoints of its own", "its share of limits.memory"),
    Bound("schedules", 10_000_000, "schedules of its own", "its share of limits.memory"),
    Bound("connections", 1_000_000, "connections at a time, of MQTT and HTTP", "any number"),
    Bound("sessions", 10_000_000, "MQTT sessions", "its share of limits.sessions"),
    Bound("subscriptions", 10_000_000, "subscriptions of its sessions", "its share of limits.memory"),
    Bound("retained", 100_000_000, "topics with a retained message", "its share of 100,000"),
)
"""What a key may have. A share: timeline/shares.py."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a key may do. Numbers: `BOUNDS`; 0: not said. `client_ids`: patterns of those that its clients may
    have, `*` for any text; none: any."""

    scopes: frozenset[str] = EVERY_SCOPE
    publish: Rules = EVERY
    subscribe: Rules = EVERY
    deliver: Rules = EVERY
    rate: int = 0
    pending: int = 0
    pending_bytes: int = 0
    groups: int = 0
    schedules: int = 0
    connections: int = 0
    sessions: int = 0
    subscriptions: int = 0
    retained: int = 0
    client_ids: tuple[str, ...] = ()


NO_GRANT = Grant(frozenset(), NOTHING, NOTHING, NOTHING)


class Principal:
    """The rights of a client, with or without a key. Only the keyring changes them."""

    __slots__ = ("_sends", "_shared", "bucket", "grant", "here", "is_live", "last_used_ms", "name")

    def __init__(self, name: str, grant: Grant, mono: Callable[[], float]) -> None:
        """`name`: empty for who has shown nothing. `mono`: seconds that elapse."""
        self.name = name
        self.grant = grant
        self.is_live = True
        """False: the key has been revoked or changed; it may nothing any more."""
        self.last_used_ms = 0
        self.bucket = Bucket(grant.rate, mono)
        self.here = Rights(self, "")
        """Its rights where there is no client id."""
        self._sends: _Sends | None = None
        self._shared: dict[str, Fits] | None = None

    def replace(self, grant: Grant) -> None:
        """The file says something else of it now."""
        if grant != self.grant:
            self.grant = grant
            self._sends = None
            self._shared = None
            self.bucket.resize(grant.rate)

    def revoke(self) -> None:
        """The key is no longer valid."""
        self.is_live = False
        self.replace(NO_GRANT)

    def has(self, scope: str) -> bool:
        return scope in self.grant.scopes

    def may_be(self, client_id: str) -> bool:
        """Whether its clients may have this client id. All may have one that the server has made."""
        patterns = self.grant.client_ids
        if not patterns or _MADE_ID.fullmatch(client_id):
            return True
        return any(_is_like(client_id, pattern) for pattern in patterns)

    def fits(self, text: str) -> "Fits":
        """What a rule of a client matches, as it is with its name put in. Those without a mark are the same
        for all clients, of which there may be 100,000."""
        if self._shared is None:
            self._shared = {one: matcher(one) for one in _unmarked(self.grant)}
        return self._shared.get(text) or matcher(text)

    def may_send(self, client_id: str, topic: bytes) -> tuple[bool, int]:
        """What `may_publish` of that client's rights says, and how many rules have been looked at."""
        rules = self.grant.publish
        if SCHEDULE not in self.grant.scopes or rules.is_every:
            return SCHEDULE in self.grant.scopes, 0
        if self._sends is None:
            self._sends = _Sends(rules)
        text = topic.decode()
        return _match(Rights(self, client_id).bound(self._sends.narrowed(text)), text), self._sends.count


class Rights:
    """What a principal may do as one client."""

    __slots__ = ("_client_id", "_deliver", "_grant", "_publish", "_subscribe", "principal")

    def __init__(self, principal: Principal, client_id: str) -> None:
        """`client_id`: empty where there is none."""
        self.principal = principal
        self._client_id = client_id
        self._grant: Grant | None = None
        self._publish = self._deliver = _Answers(NOTHING, matcher)
        self._subscribe = NOTHING

    @property
    def name(self) -> str:
        return self.principal.name

    @property
    def is_live(self) -> bool:
        return self.principal.is_live

    @property
    def may_connect(self) -> bool:
        """Whether the key counts, and its clients may have this client id."""
        return self.principal.is_live and self.principal.may_be(self._client_id)

    @property
    def sees_all(self) -> bool:
        """Whether it may look at every message."""
        grant = self.principal.grant
        return (grant.publish.is_every and SCHEDULE in grant.scopes) or (
            grant.deliver.is_every and READ in grant.scopes
        )

    def may_publish(self, topic: bytes) -> bool:
        """Whether it may send to the topic, now or later, and call back what it has sent there."""
        if self._grant is not self.principal.grant:
            self._learn()
        return self._publish.of(topic)

    def may_receive(self, topic: bytes) -> bool:
        """Whether it may be sent what is published to the topic."""
        if self._grant is not self.principal.grant:
            self._learn()
        return self._deliver.match(topic)

    def may_see(self, topic: bytes) -> bool:
        """Whether it may look at messages to the topic: what it may send there, or be sent."""
        return self.may_receive(topic) or self.may_publish(topic)

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether all that the filter, without `$share/group/`, can match may be subscribed to."""
        if self._grant is not self.principal.grant:
            self._learn()
        rules = self._subscribe
        if any(covers(denied, topic_filter) for denied in rules.deny):
            return False
        return rules.allow is None or any(_admits(allowed, topic_filter) for allowed in rules.allow)

    def _learn(self) -> None:
        grant = self.principal.grant
        self._grant = grant
        publish = self.bound(grant.publish) if SCHEDULE in grant.scopes else NOTHING
        deliver = self.bound(grant.deliver) if READ in grant.scopes else NOTHING
        self._publish = _Answers(publish, self.principal.fits)
        self._deliver = _Answers(deliver, self.principal.fits)
        self._subscribe = self.bound(grant.subscribe) if READ in grant.scopes else NOTHING

    def bound(self, rules: Rules) -> Rules:
        """The rules with client id and name put in. Of a denial that cannot be said everything is denied."""
        if rules.otherwise is not None:
            return replace(rules, otherwise=self._patterns(rules.otherwise))
        allow = rules.allow
        if allow is not None:
            allow = tuple(text for text in map(self._filled, allow) if text is not None)
        deny = tuple(text for text in map(self._filled, rules.deny) if text is not None)
        return Rules(allow, deny) if len(deny) == len(rules.deny) else NOTHING

    def _filled(self, text: str) -> str | None:
        """In one pass, so that a value which holds a mark itself says nothing."""
        values = {"%c": self._client_id, "%u": self.principal.name, "%%": "%"}
        if not all(mark == "%%" or _is_level(values[mark]) for mark in _MARK.findall(text)):
            return None
        return _MARK.sub(lambda found: values[found[0]], text)

    def _patterns(self, rules: Rules) -> Rules:
        """As mosquitto does: a value may be several levels; one with `+` or `#` has no patterns at all.

        A pattern with a value that is not there says nothing. Unlike there, none allows topics that begin
        with `$` because a value does: clients choose their ids.
        """
        values = {"%c": self._client_id, "%u": self.principal.name}
        values = {mark: value if _is_short(value) else "" for mark, value in values.items()}
        if any(mark in value for value in values.values() for mark in "+#\0"):
            return NOTHING

        def filled(text: str) -> str | None:
            if not all(values[mark] for mark in _VALUE.findall(text)):
                return None
            return _VALUE.sub(lambda found: values[found[0]], text)

        allow = {text: filled(text) for text in rules.allow or ()}
        deny = [filled(text) for text in rules.deny]
        return Rules(
            tuple(new for old, new in allow.items() if new and new.startswith("$") <= old.startswith("$")),
            tuple(text for text in deny if text),
        )


class _Answers:
    """Topic -> whether the rules allow it; `of` remembers."""

    __slots__ = ("_allow", "_bytes", "_deny", "_known", "_otherwise")

    def __init__(self, rules: Rules, fits: Callable[[str], Fits]) -> None:
        self._otherwise = None if rules.otherwise is None else _Answers(rules.otherwise, fits)
        self._allow = None if rules.allow is None else [fits(text) for text in rules.allow]
        self._deny = [fits(text) for text in rules.deny]
        self._known: dict[bytes, bool] = {}
        self._bytes = 0

    def of(self, topic: bytes) -> bool:
        if self._allow is None and not self._deny:
            return True
        answer = self._known.get(topic)
        if answer is None:
            answer = self.match(topic)
            if len(topic) > REMEMBERED_BYTES:
                return answer
            self._bytes += len(topic)
            if len(self._known) >= REMEMBERED or self._bytes > REMEMBERED_BYTES:
                self._known.clear()
                self._bytes = len(topic)
            self._known[topic] = answer
        return answer

    def match(self, topic: bytes) -> bool:
        if self._allow is None and not self._deny:
            return True
        text = topic.decode()
        if any(fits(text) for fits in self._deny):
            return False
        if self._allow is None or any(fits(text) for fits in self._allow):
            return True
        return self._otherwise is not None and self._otherwise.match(topic)


class _Sends:
    """Rules by what they begin with. `count`: how many there are."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._allow = _begun(rules.allow or ())
        self._deny = _begun(rules.deny)
        self._otherwise = None if rules.otherwise is None else _Sends(rules.otherwise)
        self.count: int = len(self._allow) + len(self._deny)
        if self._otherwise is not None:
            self.count += self._otherwise.count

    def narrowed(self, topic: str) -> Rules:
        """Without those that cannot match the topic; a denial with a mark in it stays, as it may deny all."""
        allow = tuple(text for begin, text in self._allow if topic.startswith(begin))
        deny = tuple(text for begin, text in self._deny if topic.startswith(begin) or "%" in text)
        otherwise = None if self._otherwise is None else self._otherwise.narrowed(topic)
        return Rules(None if self._rules.allow is None else allow, deny, otherwise)


def _unmarked(grant: Grant) -> Iterator[str]:
    """The rules that say the same for every client."""
    for rules in (grant.publish, grant.deliver, grant.publish.otherwise, grant.deliver.otherwise):
        if rules is not None:
            yield from (text for text in (*(rules.allow or ()), *rules.deny) if "%" not in text)


def _begun(rules: Iterable[str]) -> list[tuple[str, str]]:
    """Each with what every topic begins with that it matches; `a/#` matches `a` too."""
    found = ((_BEGIN.match(text), text) for text in rules)
    return [(begin[0].removesuffix("/"), text) for begin, text in found if begin is not None]


def _match(rules: Rules, topic: str) -> bool:
    """As `_Answers.match`, for once."""
    if any(matches(denied, topic) for denied in rules.deny):
        return False
    if rules.allow is None or any(matches(allowed, topic) for allowed in rules.allow):
        return True
    return rules.otherwise is not None and _match(rules.otherwise, topic)


def _is_like(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern, in which `*` stands for any text."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    if not text.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(text) - len(rest[-1]) >= at and text.endswith(rest[-1])


def _is_level(value: str) -> bool:
    """Whether a value is one level of a topic, and nothing more."""
    is_one = bool(value) and not value.startswith("$") and _WIDENING.isdisjoint(value)
    return is_one and _is_short(value)


def _is_short(value: str) -> bool:
    return len(value) <= VALUE_BYTES_MAX and len(value.encode()) <= VALUE_BYTES_MAX


def _admits(allowed: str, topic_filter: str) -> bool:
    """Whether everything that the filter can match is matched by `allowed`; `#` does not match `$SYS`."""
    if topic_filter.startswith("$") and allowed[0] in "+#":
        return False
    return covers(allowed, topic_filter)
