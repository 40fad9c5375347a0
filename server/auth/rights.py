"""Principals: identities, and the topics that they may publish to, subscribe to and receive.

A rule is a topic filter that may hold `%c` (the client id), `%u` (the principal's name) and `%%` (a `%`):

    publish   meters/%u/#      the key `meter-7` publishes to meters/meter-7/power, and to no other's
    deliver   orders/+/state   of its subscriptions, it receives only these

A value with `/`, `+` or `#`, or one that begins with `$`, would widen its rule: such a rule allows nothing.
Neither does one with `%c` without a client (over HTTP), or with a client id longer than VALUE_BYTES_MAX: a
message stores no more of it for later checks. Denials come before permissions.

There are three checks: `may_publish` for a topic, `may_subscribe` for a filter (everything that it can match
must be allowed), `may_receive` for a topic. The last is checked at delivery, not at subscription: a later
rule also applies to retained, delayed and replayed messages. At that time `may_publish` of the sender is
checked again (server/delivery/owners).

A principal lives as long as its key, and its `grant` is replaced when the file changes. `Rights` are its
rules for one client, with answers cached until then. A check of one topic each for very many clients
(`Principal.may_send`) prepares nothing per client: it fills in only rules that begin like the topic.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from timeline.filters import covers, matcher, matches
from timeline.structures import overlap

from .rate_limit import RateLimiter

SCHEDULE, READ, ADMIN = "schedule", "read", "admin"
SCOPES = (SCHEDULE, READ, ADMIN)
EVERY_SCOPE = frozenset(SCOPES)
REMEMBERED = 32
"""Maximum publish topics of a client whose answers are cached; at the bound the cache is cleared. Received
topics are cached elsewhere (server/delivery/router.py)."""
REMEMBERED_BYTES = 4 << 10
"""Maximum bytes of a cached topic."""
_MARK = re.compile("%[cu%]")
_VALUE = re.compile("%[cu]")
VALUE_BYTES_MAX = 255
"""Maximum bytes of a name or client id in a rule."""
_WIDENING = frozenset("/+#\0")
_BEGIN = re.compile("[^%+#]*")
_MADE_ID = re.compile("fasti-[0-9a-f]+")
"""Client ids made by the server (server/mqtt/state.py); a client may return with one."""
Fits = Callable[[str], bool]
"""Whether a rule matches a topic."""
Relation = Callable[[str, str], bool]
"""Whether a rule applies to a filter or topic."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Topics that `allow` matches and `deny` does not; `allow` None: every topic, also the server's own."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    otherwise: "Rules | None" = None
    """Rules if these decide nothing: mosquitto's patterns (`Rights._patterns`)."""

    @property
    def is_every(self) -> bool:
        """Whether every topic is allowed."""
        return self.allow is None and not self.deny


EVERY = Rules()
NOTHING = Rules(())


class Bound(NamedTuple):
    """A number that the keys file may give a key."""

    name: str
    most: int
    of_what: str
    otherwise: str
    """What applies without it, or with 0."""


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
"""The bounds of a key. A share: timeline/shares.py."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a key. Numbers: `BOUNDS`; 0: not set. `client_ids`: patterns of allowed client ids, `*`
    for any text; none: any id."""

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
    """A client's identity, with or without a key. Only the keyring changes it."""

    __slots__ = (
        *("__weakref__", "_sends", "_shared", "grant", "here", "is_live", "is_proven", "last_used_ms"),
        *("name", "rate_limiter"),
    )

    def __init__(self, name: str, grant: Grant, mono: Callable[[], float], *, is_proven: bool = True) -> None:
        """`name`: empty without a key. `is_proven`: by a key, password or certificate. `mono`: monotonic
        seconds."""
        self.name = name
        self.is_proven = is_proven
        self.grant = grant
        self.is_live = True
        """False: the key was revoked or replaced; nothing is allowed."""
        self.last_used_ms = 0
        self.rate_limiter = RateLimiter(grant.rate, mono)
        self.here = Rights(self, "")
        """Its rights without a client id."""
        self._sends: _Sends | None = None
        self._shared: dict[str, Fits] | None = None

    def replace(self, grant: Grant) -> None:
        """Replace the grant: the file has changed."""
        if grant != self.grant:
            self.grant = grant
            self._sends = None
            self._shared = None
            if self.is_live:  # another key of its name may go on with the same one
                self.rate_limiter.resize(grant.rate)

    def revoke(self) -> None:
        """Invalidate: the key is revoked."""
        self.is_live = False
        self.replace(NO_GRANT)

    def has(self, scope: str) -> bool:
        return scope in self.grant.scopes

    def may_be(self, client_id: str) -> bool:
        """Whether its clients may have this client id. All may have one made by the server."""
        patterns = self.grant.client_ids
        if not patterns or _MADE_ID.fullmatch(client_id):
            return True
        return any(_is_like(client_id, pattern) for pattern in patterns)

    def fits(self, text: str) -> "Fits":
        """The matcher of a client's rule with its values filled in. Rules without placeholders are shared by
        all clients, of which there may be 100,000."""
        if self._shared is None:
            self._shared = {one: matcher(one) for one in _unmarked(self.grant)}
        return self._shared.get(text) or matcher(text)

    def may_send(self, client_id: str, topic: bytes) -> tuple[bool, int]:
        """`may_publish` of that client's rights, and the number of rules checked."""
        rules = self.grant.publish
        if SCHEDULE not in self.grant.scopes or rules.is_every:
            return SCHEDULE in self.grant.scopes, 0
        if self._sends is None:
            self._sends = _Sends(rules)
        text = topic.decode()
        rules = Rights(self, client_id).bound(self._sends.narrowed(text))
        return _permit(rules, text, matches, matches), self._sends.count


class Rights:
    """The rights of a principal as one client."""

    __slots__ = ("_client_id", "_deliver", "_grant", "_publish", "_receive", "_subscribe", "principal")

    def __init__(self, principal: Principal, client_id: str) -> None:
        """`client_id`: empty without one."""
        self.principal = principal
        self._client_id = client_id
        self._grant: Grant | None = None
        self._publish = self._deliver = _Answers(NOTHING, matcher)
        self._subscribe = self._receive = NOTHING

    @property
    def name(self) -> str:
        return self.principal.name

    @property
    def key(self) -> str:
        """The name, if it is proven; else empty: what the client takes counts for its network."""
        return self.principal.name if self.principal.is_proven else ""

    @property
    def is_live(self) -> bool:
        return self.principal.is_live

    @property
    def may_connect(self) -> bool:
        """Whether the key is valid, and its clients may have this client id."""
        return self.principal.is_live and self.principal.may_be(self._client_id)

    @property
    def sees_all(self) -> bool:
        """Whether it may see every message."""
        grant = self.principal.grant
        return self.sends_all or (grant.deliver.is_every and READ in grant.scopes)

    @property
    def sends_all(self) -> bool:
        """Whether it may publish to every topic."""
        grant = self.principal.grant
        return grant.publish.is_every and SCHEDULE in grant.scopes

    def may_publish(self, topic: bytes) -> bool:
        """Whether it may publish to the topic, now or later, and cancel its messages there."""
        if self._grant is not self.principal.grant:
            self._learn()
        return self._publish.of(topic)

    def may_receive(self, topic: bytes) -> bool:
        """Whether it may receive messages published to the topic."""
        if self._grant is not self.principal.grant:
            self._learn()
        return self._deliver.match(topic)

    def may_see(self, topic: bytes) -> bool:
        """Whether it may see messages to the topic: those that it may publish or receive."""
        return self.may_receive(topic) or self.may_publish(topic)

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether it may subscribe to everything that the filter, without `$share/group/`, can match."""
        if self._grant is not self.principal.grant:
            self._learn()
        return _permit(self._subscribe, topic_filter, covers, _admits)

    def may_receive_all(self, topic_filter: str) -> bool:
        """Whether it may receive everything that the filter can match."""
        if self._grant is not self.principal.grant:
            self._learn()
        return _permit(self._receive, topic_filter, _overlap, _admits)

    def may_receive_some(self, topic_filter: str) -> bool:
        """Whether it may receive something that the filter can match, judged by the filters alone."""
        if self._grant is not self.principal.grant:
            self._learn()
        return _permit(self._receive, topic_filter, covers, _overlap)

    def _learn(self) -> None:
        grant = self.principal.grant
        self._grant = grant
        publish = self.bound(grant.publish) if SCHEDULE in grant.scopes else NOTHING
        self._receive = self.bound(grant.deliver) if READ in grant.scopes else NOTHING
        self._publish = _Answers(publish, self.principal.fits)
        self._deliver = _Answers(self._receive, self.principal.fits)
        self._subscribe = self.bound(grant.subscribe) if READ in grant.scopes else NOTHING

    def bound(self, rules: Rules) -> Rules:
        """The rules with client id and name filled in. A denial that cannot be filled in denies
        everything."""
        if rules.otherwise is not None:
            return replace(rules, otherwise=self._patterns(rules.otherwise))
        allow = rules.allow
        if allow is not None:
            allow = tuple(text for text in map(self._filled, allow) if text is not None)
        deny = tuple(text for text in map(self._filled, rules.deny) if text is not None)
        return Rules(allow, deny) if len(deny) == len(rules.deny) else NOTHING

    def _filled(self, text: str) -> str | None:
        """In one pass, so that a placeholder in a value has no effect."""
        values = {"%c": self._client_id, "%u": self.principal.name, "%%": "%"}
        if not all(mark == "%%" or _is_level(values[mark]) for mark in _MARK.findall(text)):
            return None
        return _MARK.sub(lambda found: values[found[0]], text)

    def _patterns(self, rules: Rules) -> Rules:
        """Patterns as in mosquitto: a value may be several levels; one with `+` or `#` disables all patterns.

        A pattern with a missing value has no effect. Unlike in mosquitto, a value cannot give access to
        topics that begin with `$`: clients choose their ids.
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
    """Cached answers: topic -> whether the rules allow it."""

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
    """Rules by their first part. `count`: number of rules."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._allow = _begun(rules.allow or ())
        self._deny = _begun(rules.deny)
        self._otherwise = None if rules.otherwise is None else _Sends(rules.otherwise)
        self.count: int = len(self._allow) + len(self._deny)
        if self._otherwise is not None:
            self.count += self._otherwise.count

    def narrowed(self, topic: str) -> Rules:
        """Only rules that may match the topic; denials with placeholders stay, since they may deny
        everything."""
        allow = tuple(text for begin, text in self._allow if topic.startswith(begin))
        deny = tuple(text for begin, text in self._deny if topic.startswith(begin) or "%" in text)
        otherwise = None if self._otherwise is None else self._otherwise.narrowed(topic)
        return Rules(None if self._rules.allow is None else allow, deny, otherwise)


def _permit(rules: Rules, text: str, denies: Relation, allows: Relation) -> bool:
    """Whether the rules permit a topic or filter. `denies` and `allows` say whether a rule applies to it. For
    a topic this is `_Answers.match` without a cache."""
    if any(denies(denied, text) for denied in rules.deny):
        return False
    if rules.allow is None or any(allows(allowed, text) for allowed in rules.allow):
        return True
    return rules.otherwise is not None and _permit(rules.otherwise, text, denies, allows)


def _overlap(one: str, other: str) -> bool:
    """Whether both filters match some topic; a first `+` or `#` does not match `$SYS`."""
    if any(a[0] == "$" and b[0] in "+#" for a, b in ((one, other), (other, one))):
        return False
    return overlap(one.split("/"), other.split("/"))


def _unmarked(grant: Grant) -> Iterator[str]:
    """Rules that are the same for every client."""
    for rules in (grant.publish, grant.deliver, grant.publish.otherwise, grant.deliver.otherwise):
        if rules is not None:
            yield from (text for text in (*(rules.allow or ()), *rules.deny) if "%" not in text)


def _begun(rules: Iterable[str]) -> list[tuple[str, str]]:
    """Each rule with the common beginning of its topics; `a/#` matches `a` too."""
    found = ((_BEGIN.match(text), text) for text in rules)
    return [(begin[0].removesuffix("/"), text) for begin, text in found if begin is not None]


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
    """Whether a value is exactly one level of a topic."""
    is_one = bool(value) and not value.startswith("$") and _WIDENING.isdisjoint(value)
    return is_one and _is_short(value)


def _is_short(value: str) -> bool:
    return len(value) <= VALUE_BYTES_MAX and len(value.encode()) <= VALUE_BYTES_MAX


def _admits(allowed: str, topic_filter: str) -> bool:
    """Whether `allowed` matches everything that the filter can match; `#` does not match `$SYS`."""
    if topic_filter.startswith("$") and allowed[0] in "+#":
        return False
    return covers(allowed, topic_filter)
