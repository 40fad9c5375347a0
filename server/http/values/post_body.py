"""A single message as sent: one of a batch may say the same, except `debounce`.

    {"topic": "a", "payload": "hi", "key": "k", "debounce": {"wait": "30s", "max_wait": "2m"}}

It is due `wait` after the last such request under its key, and at most `max_wait` after the first
(shards/upsert.py).
"""

from typing import Annotated, NamedTuple

import msgspec

from ...settings.config import Limits
from .bodies import FieldError, delay_ms
from .message_body import ONE_TIME, TO_SOMETHING, MessageRequest
from .scalars import NULL, Delay, named, rules, without


class Debounce(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """How long a message under a key waits for the next one."""

    wait: Delay
    max_wait: Delay


class PostRequest(MessageRequest):
    """A single message as sent; types only."""

    debounce: Debounce | None = None


_TIMES = ("deliver_at", "deliver_in")
_BESIDE = ("spread", "key_scope")
_NOT_BESIDE = {**dict.fromkeys(_TIMES, False), **dict.fromkeys(_BESIDE, NULL)}
_ALONE = {"anyOf": [{"properties": {"debounce": NULL}}, {"properties": _NOT_BESIDE}]}
New = Annotated[PostRequest, named("MessageRequest"), rules(ONE_TIME, TO_SOMETHING, _ALONE), without("id")]
"""It gets its id from the server."""
POST = msgspec.json.Decoder(PostRequest)


class Debounced(NamedTuple):
    """That a message is debounced."""

    key: str
    until_ms: int
    """Until when the message may move, if it is the first one."""


def debounced_of(request: PostRequest, now_ms: int, limits: Limits) -> Debounced | None:
    """Whether the request is debounced; then its time is set. Raises FieldError."""
    debounce = request.debounce
    if debounce is None:
        return None
    for name in _TIMES:
        if getattr(request, name) is not msgspec.UNSET:
            raise FieldError(name, "does not go with debounce")
    for name in _BESIDE:
        if getattr(request, name) is not None:
            raise FieldError(name, "does not go with debounce")
    if request.key is None:
        raise FieldError("key", "is required with debounce")
    wait_ms = delay_ms("debounce.wait", debounce.wait)
    most_ms = delay_ms("debounce.max_wait", debounce.max_wait)
    if wait_ms <= 0:
        raise FieldError("debounce.wait", "must be above 0")
    if not wait_ms <= most_ms <= limits.max_delay_ms:
        raise FieldError("debounce.max_wait", "must be from debounce.wait to limits.max_delay")
    request.deliver_in = wait_ms / 1_000
    return Debounced(request.key, now_ms + most_ms)
