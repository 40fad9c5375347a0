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
_WHEN_AND_KEY = frozenset({"at", "delay", "key", "key_scope"})


def instant(at: When) -> str:
    """RFC 3339 UTC with ms. Raises ValueError for a datetime without a time zone."""
    if isinstance(at, str):
        return at
    if at.tzinfo is not UTC:
        if at.utcoffset() is None:
            raise ValueError(f"{at!r} has no time zone; give it one, such as tzinfo=UTC")
        at = at.astimezone(UTC)
    below_us = at.microsecond % 1000
    if below_us:
        at += timedelta(microseconds=1000 - below_us)
    return (
        at.replace(tzinfo=None).isoformat("T", "milliseconds") + "Z"
    )  # with its offset it takes twice as long


def due_text(at: When) -> str:
    """A time for scheduling: a wall time of a zone stays one, `2027-03-28T09:00:00[Zone]`.

    So the server decides about a local time that does not exist, by its time zones, also when these change.
    The second occurrence of a repeated local time, `fold=1`, can only be given as an instant. Raises
    ValueError as `instant` does.
    """
    zone = None if isinstance(at, str) else at.tzinfo
    if isinstance(at, str) or not isinstance(zone, ZoneInfo) or zone.key in (None, "UTC", "Etc/UTC"):
        return instant(at)
    if at.utcoffset() != at.replace(fold=0).utcoffset():
        return instant(at)
    wall = at.replace(tzinfo=None)
    wall += timedelta(microseconds=-wall.microsecond % 1000)
    return f"{wall.isoformat(timespec='milliseconds')}[{zone.key}]"


def span(delay: Span) -> str:
    """ISO 8601 duration of a timedelta or of a number of seconds. Raises ValueError below zero."""
    if isinstance(delay, str):
        return delay
    try:
        exact = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{delay!r:.100} is no timedelta, number of seconds or text such as 15m") from None
    if exact.days < 0:
        raise ValueError(f"{delay!r} is negative; leave out the time to send at once")
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
    found = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not found >= 0:  # no number is neither
        raise BadArgument(argument, f"must not be negative: {value!r}")
    return found


def moment(at: When | timedelta) -> str:
    """An instant, or a duration that is meant backwards from now (`replay_from`)."""
    return span(at) if isinstance(at, timedelta) else instant(at)


def parse_instant(text: str) -> datetime:
    """Aware datetime in UTC of an RFC 3339 text."""
    at = datetime.fromisoformat(text)
    return at.astimezone(UTC) if at.utcoffset() is not None else at.replace(tzinfo=UTC)


def parsed(text: object) -> datetime | None:
    """The instant, where the server names one."""
    return parse_instant(text) if isinstance(text, str) else None


def instant_of_id(message_id: str) -> datetime:
    """The due instant that a message id opens with: 48 bits of Unix ms in 12 hex digits."""
    return _EPOCH + int(message_id[:12], 16) * _MS


def new_key() -> str:
    """A new idempotency key."""
    return os.urandom(16).hex()


def key_text(key: Key | None) -> str:
    """A key in the form of the wire; empty: none. Raises BadArgument for an invalid key."""
    if type(key) is str:
        return key
    if isinstance(key, bool) or not isinstance(key, (str, int, UUID, type(None))):
        raise BadArgument("key", f"must be text, an int or a UUID: {key!r}")
    return "" if key is None else str(key)


def check_scope(scope: object) -> None:
    """Raise BadArgument if a message without a key says how long that is taken."""
    if scope == "pending":
        raise BadArgument("key", "is needed with key_scope")


def key_terms(*, replace: bool = False, key_only: bool = False) -> dict[str, str]:
    """Query parameters about known keys."""
    asked = {"replace": replace, "key_only": key_only}
    return {name: "true" for name, is_asked in asked.items() if is_asked}


def dumps(value: object) -> bytes:
    """Compact JSON. Raises TypeError for values that JSON cannot express."""
    return _JSON.encode(value).encode()


def message_line(body: Json) -> bytes:
    """`dumps` of a message's body, in a third of the time: most of it is text, which has a shortcut."""
    encode, quoted = _JSON.encode, encode_basestring
    members = [
        f'"{name}":{quoted(value) if type(value) is str else encode(value)}' for name, value in body.items()
    ]
    return ("{" + ",".join(members) + "}").encode()


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
    """The given options, each converted as `how` says, in the order of `how`."""
    found = ((name, spell(options[name])) for name, spell in how.items() if options.get(name) is not None)
    return {name: value for name, value in found if value is not None}


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

    Raises BadArgument if there is nowhere to go, ValueError for an invalid time.
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


def due(at: When | None = None, delay: Span | None = None) -> Json:
    """`deliver_at` or `deliver_in`. Raises ValueError when both are given."""
    if at is not None and delay is not None:
        raise ValueError("give `at` or `delay`, not both")
    if at is not None:
        return {"deliver_at": due_text(at)}
    if delay is not None:
        return {"deliver_in": span(delay)}
    return {}
