"""Message requests as sent -> drafts: checked and encoded in one step, for all ways in.

    {"topic": "a/b", "payload": "hi", "deliver_in": "15m"}    a Draft: all that the writer needs
    {"topic": "a/b", "payload": "hi", "headers": {"a": "b"}}  a ParsedMessage: it needs more work

Nearly every request has a topic, a payload, a time, and maybe QoS, a key and an ordering key. It becomes a
draft at once. Any other member (FEW) makes it a `ParsedMessage`. drafts.py makes a draft of it after the
remaining work: choosing a moment within `spread`, beginning a span for its trace.

This is a hot path (100,000 messages a second come in batches). Hence one loop over the requests of a body,
each topic checked once per body, and one test for all rare fields.
"""

from collections.abc import Sequence

import msgspec

from shards.draft import Draft
from shards.properties import properties_of
from shards.record import ENCODINGS, encode_fresh

from ...observe.trace_context import NO_TRACE, Headers
from ...settings.config import Limits
from .bodies import UNREADABLE, FieldError, NotReadable, why_unreadable
from .drafts import NUMBER, content_type_property, stored_key
from .message_body import (
    BACKSLASH,
    ONE,
    QUOTE,
    MessageRequest,
    ParsedMessage,
    check_target,
    decode,
    default_topic,
    due_of,
    fingerprint_of,
    ordering_key_bytes,
    payload_bytes,
    rare,
    topic_bytes,
)
from .post_body import POST, Debounced, debounced_of
from .upsert_body import Wish, wish_of

Item = Draft | ParsedMessage
_TEXT, _JSON = NUMBER["text"], NUMBER["json"]
_JSON_TYPE = content_type_property("application/json")


class Reader:
    """Reads the requests of one body. `topics`: those read so far, in their stored form. `debounced`:
    whether the single one is."""

    __slots__ = (
        "_as_drafts",
        "_keep_ids",
        "_limits",
        "_now_ms",
        "_of_json",
        "_of_text",
        "_user",
        "debounced",
        "topics",
    )

    def __init__(
        self,
        now_ms: int,
        limits: Limits,
        user: str = "",
        context: Headers = NO_TRACE,
        *,
        keep_ids: bool = False,
        as_drafts: bool = True,
    ) -> None:
        """`now_ms`: the server's time. `user`, `context`: as in `draft_of`. `keep_ids`: messages may have
        ids. `as_drafts` False: all become a ParsedMessage."""
        self.topics: dict[str | msgspec.UnsetType, bytes] = {}
        self.debounced: Debounced | None = None
        self._now_ms, self._limits = now_ms, limits
        self._user = user
        self._of_text, self._of_json = b"", _JSON_TYPE
        if context:
            self._of_text, self._of_json = properties_of(context), properties_of(context, "application/json")
        self._keep_ids = keep_ids
        self._as_drafts = as_drafts

    def read(self, requests: Sequence[MessageRequest], raws: Sequence[bytes]) -> list[Item]:
        """The items of some requests, in order; `raws`: as sent, needed with a key.

        The caller has checked that payloads are UTF-8, which msgspec does not check in a `Raw`. Raises
        FieldError.
        """
        topics, now_ms, limits, user = self.topics, self._now_ms, self._limits, self._user
        payload_max, max_delay_ms = limits.max_payload, limits.max_delay_ms
        raw_max, as_drafts, owner = payload_max + 2, self._as_drafts, user.encode()
        of_text, of_json = self._of_text, self._of_json
        unset, items, keep_ids = msgspec.UNSET, list[Item](), self._keep_ids
        for request, raw in zip(requests, raws, strict=True):
            deliver_to, deliver_at, deliver_in = request.deliver_to, request.deliver_at, request.deliver_in
            if deliver_to is not None:
                check_target(deliver_to)
            topic = topics.get(request.topic)
            if topic is None:
                topic = self._topic(request)
            payload, encoding, properties = bytes(request.payload), _TEXT, of_text
            if (
                request.encoding is None
                and payload[0] == QUOTE
                and len(payload) <= raw_max
                and BACKSLASH not in payload
            ):
                payload = payload[1:-1]
            else:
                payload, name = payload_bytes(payload, request.encoding, payload_max)
                encoding = NUMBER[name]
                if encoding == _JSON:
                    properties = of_json
            due_ms, is_wall_time = 0, False
            if deliver_at is not unset or deliver_in is not unset:
                due_ms = due_of(deliver_at, deliver_in, now_ms, max_delay_ms)
                is_wall_time = deliver_at is not unset and deliver_at[-1] == "]"
            if (  # FEW
                deliver_to is not None
                or is_wall_time
                or request.headers is not None
                or request.expires_in is not None
                or request.spread is not None
                or request.content_type is not None
                or request.key_scope is not None
                or request.id is not None
                or request.retain
                or request.late != "deliver"
                or not as_drafts
            ):
                name = ENCODINGS[encoding]
                items.append(rare(request, raw, topic, payload, name, due_ms, now_ms, limits, keep_ids))
                continue
            due_ms, key, fingerprint = due_ms or now_ms, b"", b""
            if request.key is not None:
                fingerprint = fingerprint_of(request, request.key, raw)
                key = stored_key(request.key, user)
            order = b"" if request.ordering_key is None else ordering_key_bytes(request.ordering_key)
            value = encode_fresh(
                topic, payload, due_ms, request.qos, encoding, key, properties, owner, b"", order
            )
            items.append(Draft(due_ms, topic, value, key, fingerprint))
        return items

    def one(self, body: bytes, key: str | None = None) -> Item:
        """The item in a request's body; `key`: the header Idempotency-Key, if any.

        Raises NotReadable and FieldError.
        """
        try:
            request = decode(body, POST)
        except UNREADABLE as error:
            raise NotReadable(why_unreadable(error, body)) from None
        if key is not None:
            if request.key not in (None, key):
                raise FieldError("key", "differs from the header Idempotency-Key")
            request.key = key
        self.debounced = debounced_of(request, self._now_ms, self._limits)
        return self.read((request,), (body,))[0]

    def wish(self, body: bytes, key: str) -> tuple[Wish, Item | None]:
        """What a body says of the message under a key, and that message; None: it is to be cancelled.

        Raises NotReadable and FieldError.
        """
        wish = wish_of(body, key)
        return wish, None if wish.request is None else self.read((wish.request,), (body,))[0]

    def line(self, raw: bytes) -> Item:
        """The item in one line, or array item, of a batch. Raises FieldError."""
        try:
            return self.read((decode(raw, ONE),), (raw,))[0]
        except UNREADABLE as error:
            raise FieldError("", why_unreadable(error, raw)) from None

    def _topic(self, request: MessageRequest) -> bytes:
        wanted = request.topic
        if isinstance(wanted, msgspec.UnsetType):
            return topic_bytes(default_topic(request.deliver_to), self._limits.topic_levels)
        topic = self.topics[wanted] = topic_bytes(wanted, self._limits.topic_levels)
        return topic
