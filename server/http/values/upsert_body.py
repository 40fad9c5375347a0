"""What the message under a key should be: a message, or cancelled; perhaps with a version of that wish.

{"topic": "a", "payload": "hi", "deliver_in": "1h", "version": [17, 0]}
{"cancel": true, "version": [18, 0]}
"""

from typing import Annotated, NamedTuple

import msgspec

from .bodies import UNREADABLE, FieldError, NotReadable, why_unreadable
from .message_body import (
    KEY_CHARS_MAX,
    MEMBERS,
    ONE_TIME,
    TO_SOMETHING,
    MessageRequest,
    check_words,
    decode,
)
from .scalars import VersionNumbers, rules, without


class UpsertRequest(MessageRequest):
    """The message as sent, or that it is cancelled; types only."""

    payload: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Required, except with `cancel`."""
    cancel: bool = False
    version: VersionNumbers | None = None


_OF_MESSAGE = tuple(
    name for name in UpsertRequest.__struct_fields__ if name not in ("key", "cancel", "version")
)
_WITHOUT = {"cancel": {"const": True}, **dict.fromkeys(_OF_MESSAGE, False)}
_WITH = {"required": ["payload"], "properties": {"cancel": {"const": False}}, **TO_SOMETHING}
Upsert = Annotated[
    UpsertRequest,
    rules(ONE_TIME, {"oneOf": [_WITH, {"required": ["cancel"], "properties": _WITHOUT}]}),
    without("id", "key"),
]
_UPSERT = msgspec.json.Decoder(UpsertRequest)


class Wish(NamedTuple):
    """What the message under a key should be. `request`: a message; None: cancelled."""

    request: MessageRequest | None
    version: tuple[int, int] | None


def wish_of(body: bytes, key: str) -> Wish:
    """The wish in a body about the message under `key`. Raises NotReadable, FieldError."""
    check_words("key", key, KEY_CHARS_MAX)
    try:
        request = decode(body, _UPSERT)
    except UNREADABLE as error:
        raise NotReadable(why_unreadable(error, body)) from None
    if request.key not in (None, key):
        raise FieldError("key", "differs from the key in the path")
    request.key = key
    version = None if request.version is None else (request.version[0], request.version[1])
    if not request.cancel:
        if not bytes(request.payload):
            raise FieldError("payload", "is required")
        return Wish(request, version)
    beside = _beside(body)
    if beside:
        raise FieldError(beside, "does not go with cancel")
    return Wish(None, version)


def _beside(body: bytes) -> str:
    """A member of a message in the body of a cancel; empty: none."""
    members = MEMBERS.decode(body)
    return next((name for name in _OF_MESSAGE if name in members), "")
