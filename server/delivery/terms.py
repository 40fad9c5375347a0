"""Terms of a subscription: what it may ask for, and the settings that apply otherwise.

    a client asks for     ack-timeout 30s, backoff 1s,5s      Terms(30_000, None, (1_000, 5_000))
    sessions.*            ack_timeout 0, max_attempts "auto"
    in force, a group     30 s, 20 attempts, 1 s and then 5 s on and on
    in force, a session   the same, but attempts without end

A session is sent a message until it acks. A group is a pool of workers, which one message must not kill for
ever: hence two defaults.

Bounds: an ack timeout of at most 12 h (and at least some, if the server has one), `sessions.max_attempts` if
that is a number above 0, `sessions.expiry_max`, a `result_ttl` of 1 s to 7 days. A value beyond them is
refused and not shortened: a job that counts on an hour is not helped by a minute.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from shards.dedupe import Refused
from shards.tables import NEVER_S as NEVER_S
from timeline.delivery_rows import Keep
from timeline.key_rows import NO_RULE, Rule
from timeline.session import Terms

from ..settings.config import ACK_MS_MAX, Config, Sessions
from ..settings.durations import NEVER_TEXT, TimeError, parse_delay
from ..settings.kinds import BACKOFF_STEPS_MAX

ATTEMPTS_MAX = 1_000_000
CONCURRENCY_MAX = 65_535
"""As a group's window."""
RATE_MIN, RATE_MAX = 1e-6, 1_000_000.0
OnDead = Literal["next", "hold"]
NEXT: OnDead = "next"
KEEP_FAILED, KEEP_NONE, KEEP_ALL = -1, 0, -2
"""Values of `keep_ms` that are no duration."""
_KEEP = {None: Keep.FAILED, KEEP_FAILED: Keep.FAILED, KEEP_NONE: Keep.NONE}
KEEP_WORDS = {"failed": KEEP_FAILED, "none": KEEP_NONE, "all": KEEP_ALL}
RESULT_TTL_MS, RESULT_TTLS_MS = 3_600_000, (1_000, 7 * 86_400_000)
"""How long a result is kept: the default, and the bounds."""
HOLD: OnDead = "hold"
_NUMBER = re.compile(r"\d{1,7}", re.ASCII)
_RATE = re.compile(r"(\d{1,7}(?:\.\d{1,6})?)(?:/([smh]))?", re.ASCII)
_PER_S = {"s": 1, "m": 60, "h": 3_600}


class TermsError(Refused):
    """An invalid term; `name`: the field as HTTP spells it (`ack_timeout`)."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__("forbidden" if isinstance(self, TermsForbidden) else name, f"{name} {detail}")
        self.name = name
        self.detail = detail


class TermsForbidden(TermsError):
    """The client may not set the group's terms."""


class Keeping(NamedTuple):
    """Terms of groups alone. None: not given, so as before or as the settings have it."""

    expiry_s: int | None = None
    """How long it keeps its place with nobody there; NEVER_S: until it is deleted; 0: as long as the sessions
    of its members."""
    rate: float | None = None
    """Messages that it is given a second at most; 0: any number."""
    order: bool | None = None
    """Messages of an ordering key are delivered one at a time, in order."""
    on_dead: OnDead | None = None
    """Effect of a dead letter on its ordering key: the key continues (NEXT), or is held (HOLD)."""
    concurrency: int | None = None
    """Maximum messages of an ordering key in flight; 0: any number."""
    key_rate: float | None = None
    """Maximum messages of an ordering key a second; 0: any number."""
    fair: bool | None = None
    """Ordering keys take turns."""
    keep_ms: int | None = None
    """Finished deliveries that keep their story: KEEP_FAILED (the default), KEEP_NONE, KEEP_ALL, or all, for
    so many ms."""
    result_ttl_ms: int | None = None
    """How long a result is kept; None: RESULT_TTL_MS."""
    alerts: str | None = None
    """Endpoint that is told of dead letters and withheld messages; empty: none."""
    alerts_by: str | None = None
    """Name of the key that set `alerts`, which alerts are sent for; empty: no key."""

    @property
    def result_ms(self) -> int:
        """How long a result is kept."""
        return self.result_ttl_ms or RESULT_TTL_MS

    @property
    def keep(self) -> Keep:
        """Which deliveries that are done stay as rows."""
        return _KEEP.get(self.keep_ms, Keep.ALL)

    @property
    def rule(self) -> Rule | None:
        """When a key may have one more message; None: keys do not count."""
        order = bool(self.order)
        most = 1 if order else self.concurrency or 0
        per_ms = 0.0 if order else (self.key_rate or 0.0) / 1_000
        rule = Rule(order, most, per_ms, bool(self.fair))
        return None if rule == NO_RULE else rule

    def stays_s(self, settings: Sessions) -> int:
        """How long the group stays without members."""
        return settings.expiry_max_ms // 1_000 if self.expiry_s is None else self.expiry_s

    @property
    def is_lasting(self) -> bool:
        """Whether the group stays until it is deleted."""
        return self.expiry_s == NEVER_S

    def checked(self) -> "Keeping":
        """These, unchanged. Raises TermsError if they contradict one another."""
        if self.order and (self.concurrency or self.key_rate):
            name = "per_key_concurrency" if self.concurrency else "per_key_rate"
            raise TermsError(name, "does not go with order, which gives one message of a key at a time")
        if self.on_dead is not None and not self.order:
            raise TermsError("on_dead", "needs order")
        return self

    def changed_by(self, changes: "Keeping") -> "Keeping":
        """These with the changes. `on_dead` ends with the order."""
        own = self._replace(on_dead=None) if changes.order is False else self
        return Keeping._make([old if new is None else new for old, new in zip(own, changes, strict=True)])


UNSAID = Keeping()
LASTING = Keeping(NEVER_S)
"""Of what somebody makes by name: it stays until it is deleted."""


class InForce(NamedTuple):
    """Terms in force for a session or group."""

    ack_timeout_ms: int
    """0: for ever."""
    max_attempts: int
    """0: any number."""
    backoff_ms: tuple[int, ...]


def in_force(terms: Terms, settings: Sessions, *, is_group: bool) -> InForce:
    """The terms in force: the given ones, else the settings."""
    attempts = settings.group_attempts if is_group else settings.session_attempts
    return InForce(
        settings.ack_timeout_ms if terms.ack_timeout_ms is None else terms.ack_timeout_ms,
        attempts if terms.max_attempts is None else terms.max_attempts,
        settings.backoff_ms if terms.backoff_ms is None else terms.backoff_ms,
    )


Value = str | float | list[str | float]
Requested = Callable[[str], Value | None]
"""The requested value of a term, steps as a list or with commas between; None: not given."""


def read_terms(requested: Requested, config: Config) -> Terms:
    """Raises TermsError for what is not understood or beyond a bound."""
    timeout, attempts, backoff = requested("ack_timeout"), requested("max_attempts"), requested("backoff")
    return Terms(
        None if timeout is None else _timeout(timeout, config.sessions),
        None if attempts is None else _attempts(attempts, config.sessions),
        None if backoff is None else _backoff(backoff, config.limits.max_delay_ms),
    )


def read_keeping(requested: Requested, config: Config) -> Keeping:
    """Raises TermsError likewise. `Keeping.checked` compares them with those in force."""
    most_ms = config.limits.max_delay_ms
    readers: dict[str, Callable[[Value], Any]] = {
        "expiry": lambda value: _expiry_s(value, most_ms),
        "rate": partial(_rate, "rate"),
        "order": partial(_flag, "order"),
        "on_dead": _on_dead,
        "per_key_concurrency": _concurrency,
        "per_key_rate": partial(_rate, "per_key_rate"),
        "fair": partial(_flag, "fair"),
        "keep": lambda value: _keep_ms(value, most_ms),
        "result_ttl": lambda value: _span("result_ttl", value, *RESULT_TTLS_MS),
        "alerts": str,
    }
    given = [(read, requested(name)) for name, read in readers.items()]
    return Keeping(*[None if value is None else read(value) for read, value in given])


def _concurrency(value: Value) -> int:
    text = str(value)
    if not _NUMBER.fullmatch(text) or int(text) > CONCURRENCY_MAX:
        raise TermsError("per_key_concurrency", f"must be a whole number from 0 to {CONCURRENCY_MAX:,}")
    return int(text)


def _keep_ms(value: Value, most_ms: int) -> int:
    word = KEEP_WORDS.get(str(value))
    return _span("keep", value, 0, most_ms) if word is None else word


def _span(name: str, value: Value, least_ms: int, most_ms: int) -> int:
    span_ms = _duration(name, value)
    if not least_ms <= span_ms <= most_ms:
        raise TermsError(name, f"must be from {least_ms // 1_000} to {most_ms // 1_000:,} s")
    return span_ms


def _on_dead(value: Value) -> OnDead:
    if value == NEXT:
        return NEXT
    if value == HOLD:
        return HOLD
    raise TermsError("on_dead", f"must be {NEXT} or {HOLD}")


def _flag(name: str, value: Value) -> bool:
    if value not in (True, False, "true", "false"):
        raise TermsError(name, "must be true or false")
    return value in (True, "true")


def _duration(name: str, value: Value) -> int:
    if isinstance(value, list):
        raise TermsError(name, "must be a duration, not a list")
    try:
        return parse_delay(value)
    except TimeError as error:
        words = "failed, all, none or " if name == "keep" else ""
        raise TermsError(name, f"must be {words}a duration: {error}") from None


def _timeout(value: Value, settings: Sessions) -> int:
    timeout_ms = _duration("ack_timeout", value)
    if timeout_ms > ACK_MS_MAX:
        raise TermsError("ack_timeout", f"must be at most {ACK_MS_MAX // 1_000} s")
    if not timeout_ms and settings.ack_timeout_ms:
        raise TermsError("ack_timeout", "must not be 0: a message may not wait for its ack for ever")
    return timeout_ms


def _attempts(value: Value, settings: Sessions) -> int:
    text = str(value)
    if not _NUMBER.fullmatch(text) or int(text) > ATTEMPTS_MAX:
        raise TermsError("max_attempts", f"must be a whole number from 0 to {ATTEMPTS_MAX:,}")
    attempts, most = int(text), settings.max_attempts or 0
    if most and not 0 < attempts <= most:
        raise TermsError("max_attempts", f"must be from 1 to {most}")
    return attempts


def _backoff(value: Value, max_ms: int) -> tuple[int, ...]:
    """From `1s,5s,30s`, or a list."""
    steps = value if isinstance(value, list) else [step.strip() for step in str(value).split(",")]
    if not 0 < len(steps) <= BACKOFF_STEPS_MAX:
        raise TermsError("backoff", f"must have 1 to {BACKOFF_STEPS_MAX} steps")
    backoff_ms = tuple(_duration("backoff", step) for step in steps)
    if max(backoff_ms) > max_ms:
        raise TermsError("backoff", f"must have no step above {max_ms / 1_000:g} s")
    return backoff_ms


def _expiry_s(value: Value, most_ms: int) -> int:
    if value == NEVER_TEXT:
        return NEVER_S
    expiry_ms = _duration("expiry", value)
    if expiry_ms > most_ms:
        raise TermsError("expiry", f"must be at most {most_ms // 1_000:,} s, or never")
    return -(-expiry_ms // 1_000)


def _rate(name: str, value: Value) -> float:
    """Messages a second, of a number or of `100/m`."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    rate = -1.0
    if found is not None:
        rate = float(found[1]) / _PER_S[found[2] or "s"]
    elif not isinstance(value, list | str):
        rate = float(value)
    if rate and not RATE_MIN <= rate <= RATE_MAX:
        least = f"0 or from {RATE_MIN:f}".rstrip("0")
        raise TermsError(
            name, f"must be a number, {least} to {RATE_MAX:,.0f}, in messages a second, or like 100/m, 5/h"
        )
    return rate
