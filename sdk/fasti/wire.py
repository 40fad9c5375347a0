"""Values on the wire: instants, spans of time, payloads.

Instants go out as RFC 3339 in UTC with milliseconds, rounded *up*: the server's unit is the millisecond,
and a message must not come before the microsecond that was asked for. Spans go out as ISO 8601 durations
and are added to the server's clock, not to ours. Strings pass unread, so that whatever the server
understands (`15m`, `2027-03-28T09:00[Europe/Bucharest]`) can be said through the SDK too.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

from .durations import TimeError, parse_delay
from .errors import BadArgument
from .warned import warn_of_empty

Json = dict[str, Any]
Qos = Literal[0, 1, 2]
Late = Literal["deliver", "drop"]
When = datetime | str
"""An instant: aware, or text that the server understands (RFC 3339, `2027-03-28T09:00[Europe/Bucharest]`)."""
Span = timedelta | float | str
"""A duration: a number is seconds; text is as the server reads it: `15m`, `5 minutes`, `PT15M`."""
Key = str | int | UUID
"""An idempotency key; a number or UUID is the same key as its text."""
KeyScope = Literal["kept", "pending"]
Spell = Callable[[Any], Any]
"""From an option to the value in the body, None where there is nothing to say."""


class _Nothing(str):
    """A payload that was not given, which is an empty one."""

    __slots__ = ()


NO_PAYLOAD = _Nothing()
KEY_HEADER = "Idempotency-Key"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WHEN_AND_KEY = frozenset({"at", "delay", "key", "key_scope"})


def instant(at: When, argument: str = "at") -> str:
    """RFC 3339 UTC with ms. Raises BadArgument, for a datetime without a time zone too."""
    if isinstance(at, str):
        return at
    if not isinstance(at, datetime):
        raise BadArgument(
            argument, f"must be an aware datetime, or text such as 2027-03-28T09:00Z, not {at!r:.100}"
        )
    if at.tzinfo is not UTC or at.microsecond % 1000:
        try:
            if at.utcoffset() is None:
                raise BadArgument(argument, f"has no time zone: {at!r}; give it one, such as tzinfo=UTC")
            at = at.astimezone(UTC) + timedelta(microseconds=-at.microsecond % 1000)
        except OverflowError:
            raise BadArgument(argument, f"is outside the years 1 to 9999: {at!r}") from None
    return (
        at.replace(tzinfo=None).isoformat("T", "milliseconds") + "Z"
    )  # with its offset it takes twice as long


def due_text(at: When) -> str:
    """A time for scheduling: a wall time of a zone stays one, `2027-03-28T09:00:00[Zone]`.

    So the server decides about a local time that does not exist, by its time zones, also when these change.
    The second occurrence of a repeated local time, `fold=1`, can only be given as an instant. Raises
    BadArgument.
    """
    zone = at.tzinfo if isinstance(at, datetime) else None
    if isinstance(at, str) or not isinstance(zone, ZoneInfo) or zone.key in (None, "UTC", "Etc/UTC"):
        return instant(at)
    as_instant = instant(at)  # raises at the edges of the calendar
    wall = at.replace(tzinfo=None)
    try:
        wall += timedelta(microseconds=-wall.microsecond % 1000)
        is_second = at.utcoffset() != at.replace(fold=0).utcoffset()
    except OverflowError:
        return as_instant
    if is_second:
        return as_instant
    return f"{wall.isoformat(timespec='milliseconds')}[{zone.key}]"


def span(delay: Span, argument: str = "delay") -> str:
    """ISO 8601 duration of a timedelta or of a number of seconds. Raises BadArgument, below zero too."""
    if isinstance(delay, str):
        return delay
    try:
        exact = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    except (TypeError, ValueError, OverflowError):
        raise BadArgument(
            argument, f"must be a timedelta, a number of seconds or text such as 15m, not {delay!r:.100}"
        ) from None
    if exact.days < 0:
        raise BadArgument(argument, f"must not be negative: {delay!r}; leave it out for now")
    minutes, seconds = divmod(exact.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}H" if hours else ""
    if minutes:
        clock += f"{minutes}M"
    if exact.microseconds:
        clock += f"{seconds}.{exact.microseconds:06d}".rstrip("0") + "S"
    elif seconds:
        clock += f"{seconds}S"
    days = f"{exact.days}D" if exact.days else ""
    if not days and not clock:
        return "PT0S"
    return f"P{days}T{clock}" if clock else f"P{days}"


def seconds(argument: str, value: Span) -> float:
    """A span that is kept here. Raises BadArgument for one below zero, and for text that names none."""
    if isinstance(value, str):
        try:
            return parse_delay(value) / 1_000
        except TimeError as error:
            raise BadArgument(argument, str(error)) from None
    if not isinstance(value, (timedelta, int, float)):
        raise BadArgument(
            argument, f"must be a timedelta, a number of seconds or text such as 15m: {value!r}"
        )
    try:
        found = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except OverflowError:
        raise BadArgument(argument, "is too large") from None
    if not found >= 0:  # no number is neither
        raise BadArgument(argument, f"must not be negative: {value!r}")
    return found


def moment(at: When | timedelta, argument: str = "since") -> str:
    """An instant, or a duration back from now (`replay_from`). Raises BadArgument."""
    return span(at, argument) if isinstance(at, timedelta) else instant(at, argument)


def parse_instant(text: str) -> datetime:
    """Aware datetime in UTC of an RFC 3339 text."""
    at = datetime.fromisoformat(text)
    return at.astimezone(UTC) if at.utcoffset() is not None else at.replace(tzinfo=UTC)


def parsed(text: object) -> datetime | None:
    """The instant, where the server names one that can be read."""
    try:
        return parse_instant(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def instant_of_id(message_id: str) -> datetime:
    """The due instant that a message id opens with: 48 bits of Unix ms in 12 hex digits. Raises
    BadArgument."""
    try:
        return _EPOCH + int(bytes.fromhex(message_id)[:6].hex(), 16) * _MS
    except (TypeError, ValueError, OverflowError):
        raise BadArgument("message_id", f"must be 32 hex digits, not {message_id!r:.100}") from None


def new_key() -> str:
    """A new idempotency key."""
    return os.urandom(16).hex()


def key_text(key: Key | None) -> str:
    """A key in the form of the wire; empty: none. Raises BadArgument for an invalid key."""
    if isinstance(key, bool) or not isinstance(key, (str, int, UUID, type(None))):
        raise BadArgument("key", f"must be text, an int or a UUID: {key!r}")
    text = "" if key is None else str(key)
    if not text.isprintable() and _CONTROL.search(text):
        raise BadArgument("key", f"must not hold control characters: {text!r:.100}")
    return text


def check_scope(scope: object) -> None:
    """Raise BadArgument if a message without a key says how long that is taken."""
    if scope == "pending":
        raise BadArgument("key", "is needed with key_scope")


def key_terms(*, replace: bool = False, key_only: bool = False) -> dict[str, str]:
    """Query parameters about known keys."""
    flags = {"replace": replace, "key_only": key_only}
    return {name: "true" for name, is_set in flags.items() if is_set}


def dumps(value: object) -> bytes:
    """Compact JSON. Raises BadArgument for values that JSON cannot express."""
    try:
        return _JSON.encode(value).encode()
    except (TypeError, ValueError, RecursionError):
        raise _unsaid(value) from None


def _unsaid(value: object) -> BadArgument:
    """Which member of a body JSON or UTF-8 cannot express, and why."""
    for name, member in value.items() if isinstance(value, dict) else ():
        try:
            _JSON.encode(member).encode()
        except (TypeError, ValueError, RecursionError) as error:
            argument = _ARGUMENTS.get(name, str(name))
            if isinstance(error, UnicodeEncodeError):
                instead = "; give bytes (--file)" if argument == "payload" else ""
                return BadArgument(argument, f"cannot be encoded as UTF-8: {member!r:.100}{instead}")
            return BadArgument(argument, f"cannot be sent as JSON: {error}")
    return BadArgument("body", "cannot be sent as JSON")


def message_line(body: Json) -> bytes:
    """`dumps` of a message's body, in a third of the time: most of it is text, which has a shortcut."""
    encode, quoted = _JSON.encode, encode_basestring
    try:
        members = [
            f'"{name}":{quoted(value) if type(value) is str else encode(value)}'
            for name, value in body.items()
        ]
        return ("{" + ",".join(members) + "}").encode()
    except (TypeError, ValueError, RecursionError):
        raise _unsaid(body) from None


def put_payload(body: Json, payload: object) -> None:
    """Set `payload` (and `encoding`) of a message body: bytes as base64, str as text, else as JSON."""
    if type(payload) is not str and isinstance(payload, (bytes, bytearray, memoryview)):
        body["payload"] = base64.b64encode(payload).decode()
        body["encoding"] = "base64"
    else:
        body["payload"] = payload


def get_headers(raw: Mapping[str, Any]) -> Mapping[str, str]:
    """A message's own user properties."""
    found = raw.get("headers")
    return found if isinstance(found, Mapping) else {}


def get_payload(body: Mapping[str, Any]) -> Any:
    """The payload of an answered message: bytes, str or a JSON value, as it was given."""
    payload = body.get("payload")
    if body.get("encoding") == "base64" and isinstance(payload, str):
        return base64.b64decode(payload)
    return payload


def as_is(value: Any) -> Any:
    """The value unchanged."""
    return value


def spelled(how: Mapping[str, Spell], options: Mapping[str, Any]) -> Json:
    """The given options, each converted as `how` says, in the order of `how`. Raises BadArgument."""
    found: Json = {}
    for name, spell in how.items():
        if options.get(name) is not None:
            try:
                value = spell(options[name])
            except BadArgument as error:
                raise BadArgument(name, error.problem) from None
            except (TypeError, ValueError, AttributeError):
                raise BadArgument(name, f"has a wrong type or form: {options[name]!r:.100}") from None
            if value is not None:
                found[name] = value
    return found


SENDING: Mapping[str, Spell] = {
    "qos": as_is,
    "retain": as_is,
    "late": as_is,
    "content_type": as_is,
    "expires_in": span,
    "spread": span,
    "headers": lambda headers: dict(headers) or None,
    "deliver_to": as_is,
    "ordering_key": as_is,
}
"""How a message is sent, in the order of its bytes, which the server compares for a known key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """One message to schedule. `at` or `delay`, or neither for now; `key` makes it idempotent.

    `late` says what happens if the time has passed on arrival: "deliver" (the default) or "drop".
    `key_scope`: "kept" or "pending", as in `fasti.options.MessageOptions`.
    `deliver_to`: an endpoint's name or a URL, then the topic may be left out.
    `ordering_key`: what it belongs to, such as a customer: up to 128 bytes.
    """

    topic: str = ""
    payload: Any = NO_PAYLOAD
    at: When | None = None
    delay: Span | None = None
    key: Key | None = None
    key_scope: KeyScope | None = None
    qos: Qos | None = None
    retain: bool | None = None
    expires_in: Span | None = None
    late: Late | None = None
    spread: Span | None = None
    headers: Mapping[str, str] | None = None
    content_type: str | None = None
    deliver_to: str | None = None
    ordering_key: str | None = None

    def body(self) -> Json:
        """The object of `POST /v1/messages`; the key stands last."""
        if self.payload is NO_PAYLOAD and self.deliver_to is None:
            warn_of_empty("a NewMessage")
        return message_body(self.topic, self.payload, {name: getattr(self, name) for name in _OPTIONAL})


_OPTIONAL = tuple(one.name for one in fields(NewMessage) if one.name not in ("topic", "payload"))


def message_body(topic: str, payload: object, options: Mapping[str, Any]) -> Json:
    """The object of `POST /v1/messages`; `options` as `fasti.options.MessageOptions` has them.

    Raises BadArgument, also if there is nowhere to go.
    """
    body: Json = {"topic": topic} if topic else where(topic, options.get("deliver_to"))
    put_payload(body, payload)
    body.update(due(options.get("at"), options.get("delay")))
    if not options.keys() <= _WHEN_AND_KEY:
        body.update(spelled(SENDING, options))
    key, scope = key_text(options.get("key")), options.get("key_scope")
    if scope is not None:
        body["key_scope"] = scope
    if key:
        body["key"] = key
    return body


def where(topic: str, deliver_to: str | None) -> Json:
    """The topic, where there is one. Raises BadArgument if there is neither."""
    if not topic and deliver_to is None:
        raise BadArgument("topic", "is needed where there is no deliver_to")
    return {"topic": topic} if topic else {}


DUE_NAMES = {"deliver_at": "at", "deliver_in": "delay"}
"""Field -> argument."""
_ARGUMENTS = {**DUE_NAMES, "from": "since"}


def due(at: When | None = None, delay: Span | None = None) -> Json:
    """`deliver_at` or `deliver_in`. Raises BadArgument, also when both are given."""
    if at is not None and delay is not None:
        raise BadArgument("at", "and `delay` are both given; give one, not both")
    if at is not None:
        return {"deliver_at": due_text(at)}
    if delay is not None:
        return {"deliver_in": span(delay)}
    return {}
