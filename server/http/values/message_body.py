"""A message request: the JSON of a body -> a checked message.

A request is read in two steps. msgspec decodes it into `MessageRequest`, which knows only types. `checked`
checks the rest (topics, times, sizes) and returns a `ParsedMessage`, in the stored form: bytes, ms, flags.
Nothing here reads a clock: `now_ms` is the server's time, from which relative times count.

    {"topic": "a/b", "payload": "hi", "deliver_in": "15m"}
        -> ParsedMessage(topic=b"a/b", payload=b"hi", due_ms=now_ms + 900_000, qos=1, encoding="text", ...)

A string payload is text, or base64 if `encoding` says so. Any other JSON value is sent as the bytes that
came, as `application/json`. With `"encoding": "json"` a string is treated so, too. `encoding` is stored, so
that a message can be returned as it came.
"""

import binascii
import hashlib
import re
from typing import Annotated, Literal, TypeVar

import msgspec

from shards.record import ORDERING_KEY_BYTES_MAX
from timeline.filters import TopicError, check_topic, is_reserved, refused_character
from timeline.position import BadId, parse_id

from ...delivery.payloads import Encoding
from ...delivery.router import posting_topic
from ...observe.trace_context import NAMES
from ...settings.config import Limits
from ...settings.durations import TimeError, parse_delay
from ...settings.times import other_reading, parse_due, wall_time
from ...webhook.targets import TargetError, checked_target
from .bodies import FieldError, delay_ms, field_error
from .scalars import (
    UNDONE,
    ContentType,
    Delay,
    Id,
    Key,
    KeyScope,
    OrderingKey,
    Target,
    Topic,
    When,
    named,
    not_both,
    rules,
    some_of,
)

KEY_CHARS_MAX = 256
CONTENT_TYPE_CHARS_MAX = 256
HEADERS_MAX = 64
HEADER_BYTES_MAX = 4_096
EXPIRES_MS_MAX = 4_294_967_295_000
"""MQTT counts message expiry in 32 bits of seconds."""

RAW_FACTOR = 8
"""A JSON string is at most this many times as long as its value: base64 with every character escaped."""

QUOTE, BACKSLASH = 34, 92
MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""An object's members as written; of a repeated name the last."""


class Content(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a message and a schedule say of their messages; types only."""

    deliver_to: Target | None = None
    encoding: Encoding | None = None
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)] = 1
    retain: bool = False
    expires_in: Delay | None = None
    late: Literal["deliver", "drop"] = "deliver"
    headers: dict[str, str] | None = None
    content_type: ContentType | None = None
    ordering_key: OrderingKey | None = None


class MessageRequest(Content, kw_only=True):
    """A message as sent; types only."""

    payload: msgspec.Raw
    topic: Topic | msgspec.UnsetType = msgspec.UNSET
    deliver_at: When | msgspec.UnsetType = msgspec.UNSET
    deliver_in: Delay | msgspec.UnsetType = msgspec.UNSET
    spread: Delay | None = None
    key: Key | None = None
    key_scope: KeyScope | None = None
    id: Id | None = None


ONE_TIME = not_both("deliver_at", "deliver_in")
TO_SOMETHING = some_of("topic", "deliver_to")
_Checked = Annotated[MessageRequest, rules(ONE_TIME, TO_SOMETHING)]
Item = Annotated[_Checked, named("BatchItem")]
"""An item of a batch, as described."""


class ParsedMessage(msgspec.Struct, frozen=True, gc=False):
    """A checked message in the form to store.

    `due_ms` is UTC, 0 for now; `expires_ms` counts from due, 0 for never. `fingerprint` is 16 bytes of
    BLAKE2b over the request as sent, without its trace and the scope of its key; empty without a key.
    """

    topic: bytes
    payload: bytes
    due_ms: int
    qos: int
    retain: bool
    drop_late: bool
    expires_ms: int
    headers: tuple[tuple[str, str], ...]
    content_type: str
    encoding: Encoding
    key: str
    fingerprint: bytes
    id: int = 0
    """The requested id; 0: a new one."""
    spread_ms: int = 0
    """Its due may be up to this much later."""
    zone: bytes = b""
    """The due as a local wall time with its zone, if so requested."""
    deliver_to: bytes = b""
    """The endpoint or URL to which it is posted in addition."""
    while_undone: bool = False
    """Its key counts as taken only while the message is undone."""
    ordering_key: bytes = b""
    """The ordering key; empty: none."""


Request = TypeVar("Request", bound=MessageRequest)
_NO_BYTES = hashlib.blake2b(digest_size=16)
"""Copied, never updated: making one costs as much as all the rest."""
ONE = msgspec.json.Decoder(MessageRequest)
_TEXT = msgspec.json.Decoder(str)
_SCOPE = re.compile(rb',\s*+"key_scope"\s*+:\s*+"\w++"')


def rare(
    request: MessageRequest,
    raw: bytes,
    topic: bytes,
    payload: bytes,
    encoding: Encoding,
    due_ms: int,
    now_ms: int,
    limits: Limits,
    keep_ids: bool,
) -> ParsedMessage:
    """Check the rare fields; the others are checked already. `due_ms` 0: now. `keep_ids`: it may have an id.
    Raises FieldError."""
    spread_ms, content_type, deliver_at = 0, request.content_type, request.deliver_at
    if request.spread is not None:
        spread_ms = _spread_ms(request.spread, (due_ms or now_ms) - now_ms, limits.max_delay_ms)
    if content_type is None:
        content_type = "application/json" if encoding == "json" else ""
    else:
        check_words("content_type", content_type, CONTENT_TYPE_CHARS_MAX)
    return ParsedMessage(
        topic,
        payload,
        due_ms,
        request.qos,
        request.retain,
        request.late == "drop",
        fingerprint=b"" if request.key is None else fingerprint_of(request, request.key, raw),
        expires_ms=0 if request.expires_in is None else _expires_ms(request.expires_in),
        headers=() if request.headers is None else _headers(request.headers),
        content_type=content_type,
        encoding=encoding,
        key=request.key or "",
        id=0 if request.id is None else _id(request.id, keep_ids),
        spread_ms=spread_ms,
        zone=b"" if deliver_at is msgspec.UNSET or spread_ms else wall_time(deliver_at),
        deliver_to=b"" if request.deliver_to is None else request.deliver_to.encode(),
        while_undone=request.key_scope == UNDONE,
        ordering_key=b"" if request.ordering_key is None else ordering_key_bytes(request.ordering_key),
    )


def fingerprint_of(request: MessageRequest, key: str, raw: bytes) -> bytes:
    """The fingerprint of a request with a key; `raw`: as sent. Raises FieldError for an invalid key."""
    check_words("key", key, KEY_CHARS_MAX)
    if request.key_scope is not None:
        raw = _without_scope(raw)
    if request.headers is not None and not NAMES.isdisjoint(request.headers):
        raw = _without_trace(raw)
    hashing = _NO_BYTES.copy()
    hashing.update(raw)
    return hashing.digest()


def _without_trace(raw: bytes) -> bytes:
    """A request without the trace in its headers: a repeated request has another trace.

    The rest stays as sent, without blanks between members. So a compactly written request equals one that
    never had a trace.
    """
    members = MEMBERS.decode(raw)
    headers = MEMBERS.decode(members.pop("headers"))
    left = {name: value for name, value in headers.items() if name not in NAMES}
    if left:
        members["headers"] = msgspec.Raw(msgspec.json.encode(left))
    return msgspec.json.encode(members)


def _without_scope(raw: bytes) -> bytes:
    """A request without `key_scope`, which each call sets for itself.

    It is cut out, so that the rest stays as sent. If that is impossible (another member has the name, or it
    comes first) the blanks between members go, too.
    """
    left, count = _SCOPE.subn(b"", raw)
    if count == 1 and "key_scope" not in MEMBERS.decode(left):
        return left
    members = MEMBERS.decode(raw)
    del members["key_scope"]
    return msgspec.json.encode(members)


def _id(text: str, keep_ids: bool) -> int:
    if not keep_ids:
        raise FieldError("id", "is set by the server; messages:batch?ids=true keeps the ids of an export")
    try:
        return parse_id(text)
    except BadId as error:
        raise FieldError("id", str(error)) from None


def check_target(deliver_to: str) -> None:
    """Raise FieldError for an invalid `deliver_to`, as far as the text shows."""
    try:
        checked_target(deliver_to)
    except TargetError as error:
        raise FieldError("deliver_to", str(error)) from None


def default_topic(deliver_to: str | None) -> str:
    """The topic of a message with only a target. Raises FieldError."""
    if deliver_to is None:
        raise FieldError("topic", "is required")
    return posting_topic(deliver_to.encode()).decode()


def topic_bytes(topic: str, levels_max: int) -> bytes:
    """The topic as MQTT sends it. Raises FieldError, also for the server's own topics."""
    encoded = topic.encode()
    try:
        check_topic(encoded)
    except TopicError as error:
        raise FieldError("topic", str(error)) from None
    if is_reserved(encoded):
        raise FieldError(
            "topic", f"must not begin with '{topic.partition('/')[0]}', which is reserved for the server"
        )
    if topic.count("/") >= levels_max:
        raise FieldError("topic", f"has {topic.count('/') + 1} levels, and may have {levels_max}")
    return encoded


def payload_bytes(value: bytes, encoding: Encoding | None, payload_max: int) -> tuple[bytes, Encoding]:
    """The bytes to send for a JSON value, and its encoding. Raises FieldError.

    The error does not give the size of a value that is far too long: computing it would take longer than all
    reading.
    """
    if len(value) > RAW_FACTOR * (payload_max + 2) + 2:
        raise FieldError("payload", f"is longer than limits.max_payload, which is {payload_max}")
    payload, encoding = _payload_bytes(value, encoding)
    if len(payload) > payload_max:
        raise FieldError("payload", f"has {len(payload)} bytes, limits.max_payload is {payload_max}")
    return payload, encoding


def _payload_bytes(value: bytes, encoding: Encoding | None) -> tuple[bytes, Encoding]:
    if encoding == "json":
        return value, "json"
    if value[0] != QUOTE:
        if encoding is not None:
            raise FieldError("encoding", f"{encoding} goes with a payload that is a string")
        return value, "json"
    text = _TEXT.decode(value).encode() if BACKSLASH in value else value[1:-1]
    if encoding != "base64":
        return text, "text"
    try:
        return binascii.a2b_base64(text, strict_mode=True), "base64"
    except binascii.Error as error:
        raise FieldError("payload", f"is not base64: {error}") from None


def due_of(
    deliver_at: str | msgspec.UnsetType,
    deliver_in: str | float | msgspec.UnsetType,
    now_ms: int,
    max_delay_ms: int,
) -> int:
    """When a message is due, UTC ms, from the given one of the two. The past is allowed: the message is late.

    Null is refused: it suggests a client's mistake, not an absent time. Raises FieldError.
    """
    try:
        if deliver_in is msgspec.UNSET:
            if deliver_at is msgspec.UNSET:
                raise FieldError("deliver_at", "or deliver_in is required")
            due_ms = parse_due(deliver_at)
        elif deliver_at is msgspec.UNSET:
            due_ms = now_ms + parse_delay(deliver_in)
        else:
            raise FieldError("deliver_in", "and deliver_at exclude each other")
    except TimeError as error:
        raise FieldError(_time_field(deliver_in), str(error)) from None
    if due_ms - now_ms > max_delay_ms:
        field = _time_field(deliver_in)
        other = other_reading((due_ms - now_ms) // 1_000) if field == "deliver_in" else ""
        raise FieldError(field, f"exceeds limits.max_delay ({max_delay_ms // 86_400_000} days){other}")
    return due_ms


def _time_field(deliver_in: str | float | msgspec.UnsetType) -> str:
    return "deliver_at" if deliver_in is msgspec.UNSET else "deliver_in"


def _expires_ms(expires_in: str | float) -> int:
    expires_ms = delay_ms("expires_in", expires_in)
    if not 0 < expires_ms <= EXPIRES_MS_MAX:
        raise FieldError("expires_in", "must be above 0 and at most 4294967295 seconds")
    return expires_ms


def _spread_ms(spread: str | float, ahead_ms: int, max_delay_ms: int) -> int:
    spread_ms = delay_ms("spread", spread)
    if ahead_ms + spread_ms > max_delay_ms:
        raise FieldError("spread", "reaches beyond limits.max_delay")
    return spread_ms


def check_words(field: str, text: str, chars_max: int) -> None:
    """Raise FieldError unless a text has 1 to `chars_max` printable characters."""
    if not 1 <= len(text) <= chars_max:
        raise FieldError(field, f"must have 1 to {chars_max} characters, has {len(text)}")
    if not text.isprintable():
        raise FieldError(field, "must not hold control characters")


def ordering_key_bytes(ordering_key: str) -> bytes:
    """An ordering key as it is stored. Raises FieldError."""
    encoded = ordering_key.encode()
    if not 1 <= len(encoded) <= ORDERING_KEY_BYTES_MAX:
        raise FieldError(
            "ordering_key", f"must have 1 to {ORDERING_KEY_BYTES_MAX} bytes of UTF-8, has {len(encoded)}"
        )
    if not ordering_key.isprintable():
        raise FieldError("ordering_key", "must not hold control characters")
    return encoded


def _headers(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    if len(headers) > HEADERS_MAX:
        raise FieldError("headers", f"at most {HEADERS_MAX} are allowed, there are {len(headers)}")
    for name, value in headers.items():
        if not name:
            raise FieldError("headers", f"has an empty name, with the value {value[:64]!r}")
        if len(name.encode()) > HEADER_BYTES_MAX or len(value.encode()) > HEADER_BYTES_MAX:
            raise FieldError(
                "headers", f"{name[:64]!r}: name and value have at most {HEADER_BYTES_MAX} bytes each"
            )
        if refused := refused_character(name + value):
            raise FieldError("headers", f"{name[:64]!r}: must not contain {refused}")
        if name.startswith("fasti-"):
            raise FieldError("headers", f"{name[:64]!r}: the prefix 'fasti-' is the server's")
    return tuple(headers.items())


def decode(raw: bytes, decoder: "msgspec.json.Decoder[Request]") -> Request:
    """The request in `raw`; checks only types and names. Raises one of UNREADABLE, or FieldError."""
    if not raw.isascii():
        raw.decode()  # msgspec does not check the content of a `Raw`
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise field_error(error, decoder.type) from None
