"""`client.messages`: schedule, look up, list, cancel and move single messages.

A `Message` is a handle on one message: what the server last said of it, and the calls that concern it. It
does not follow the message by itself; `refresh()` asks again. `ByKey` is one for callers that kept only the
key that the message was scheduled under.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self, Unpack

from .answers import BulkResult, Claims, Handling, Upserted, Why
from .bulk import Items, send_all
from .coalesce import MAX_ITEMS, message_outbox, send_one
from .errors import AlreadyDispatched, BadArgument, NotFound, Refused, key_cancelled, of_key, renamed
from .options import Door, Due, Listed, MessageOptions, Selection
from .ranges import OnProgress, export, selection, signed_span, sweep
from .signatures import check, unfolded
from .traces import current, joined
from .transport import PAGE_MAX, PATIENCE_S, Transport, quoted
from .values import Sent, each, optional
from .warned import warn_of_empty, warn_of_past
from .wire import (
    DUE_NAMES,
    NO_PAYLOAD,
    Json,
    Key,
    KeyScope,
    Span,
    When,
    check_scope,
    due,
    instant_of_id,
    key_terms,
    key_text,
    message_body,
    message_line,
    parse_instant,
    parsed,
    seconds,
    span,
)

Version = tuple[int, int]
_OPTIONS = MessageOptions.__optional_keys__
_SELECTED, _LISTED = Selection.__optional_keys__, Listed.__optional_keys__


class NoResult(Refused):
    """A message has no result, or none yet. `outcome`: what has become of it: "failed", "running"..."""

    outcome = ""


class Shown(Sent):
    """What an answer shows of a message."""

    __slots__ = ()

    @property
    def schedule(self) -> str | None:
        """Name of the recurring schedule that created it, or None."""
        found = self.raw.get("schedule")
        return found if isinstance(found, str) else None

    @property
    def ordering_key(self) -> str | None:
        """What it belongs to, or None."""
        return self.raw.get("ordering_key")

    @property
    def dispatched_at(self) -> datetime | None:
        """Time of dispatch, or of the drop because it had expired or was late."""
        return parsed(self.raw.get("dispatched_at"))

    @property
    def claims(self) -> Claims | None:
        """Receivers counted by `schedule(..., claims=True)`; None if not requested."""
        return optional(Claims.of, self.raw.get("claims"))

    @property
    def outcome(self) -> str | None:
        """What has become of it, by the worst of its deliveries: "failed", "done"...; None if not said."""
        return self.raw.get("outcome")

    @property
    def deliveries(self) -> tuple[Handling, ...]:
        """Receivers after dispatch: each group, and each session that has not finished the message.

        As the server said it when this message was last asked for alone (`get`, `refresh`), or when a cancel
        came too late; 100 at most.
        """
        return each(Handling.of, self.raw.get("deliveries"))


@unfolded
@dataclass(slots=True)
class Message(Shown):
    """A scheduled message, as of the server's last answer."""

    id: str
    """Message id; a move does not change it."""
    topic: str
    """Topic."""
    deliver_at: datetime
    """Due time, UTC."""
    state: str
    """State in the last answer: pending, dispatched, cancelled, expired or withheld."""
    raw: Mapping[str, Any] = field(repr=False)
    """The message object of the last answer."""
    _calls: Messages = field(repr=False, compare=False)
    replayed: bool = False
    """Whether the message existed under its key, so that `schedule()` created nothing. See `state`."""

    def __hash__(self) -> int:
        return hash(self.id)

    async def cancel(self) -> bool:
        """Cancel it. True: nobody will get it. False: already dispatched; `deliveries` says what is left."""
        try:
            await self._calls.cancel(self.id, strict=True)
        except AlreadyDispatched as error:
            self.state = "dispatched"
            self.raw = {**self.raw, "deliveries": list(error.deliveries)}
            return False
        self.state = "cancelled"
        return True

    async def reschedule(self, **when: Unpack[Due]) -> Self:
        """Move it; the id stays. Raises AlreadyDispatched when it is too late."""
        self._take(await self._calls.reschedule(self.id, **when))
        return self

    async def refresh(self) -> Self:
        """Ask the server again."""
        self._take(await self._calls.get(self.id))
        return self

    def _take(self, newer: Message) -> None:
        self.topic = newer.topic or self.topic
        self.deliver_at, self.state = newer.deliver_at, newer.state
        self.raw = {**self.raw, **newer.raw}


@unfolded
@dataclass(frozen=True, slots=True)
class ByKey:
    """The message under an idempotency key. Each call looks the message up again.

    Each raises NotFound if nobody has used the key, or it has been forgotten, or its message is past the
    server's retention: then `error.slug` is "gone", and whether it went out is not known any more.
    """

    key: str
    """The idempotency key."""
    _path: str = field(repr=False)
    _calls: Messages = field(repr=False, compare=False)

    async def get(self) -> Message:
        """The message in its current state."""
        return await self._calls._get(self._path)

    async def cancel(self, *, strict: bool = False, version: Version | None = None) -> bool:
        """True: nobody will get it (also if it was cancelled before). False: it was already dispatched.

        With `strict` raises AlreadyDispatched instead, which lists the deliveries that are left.

        `version`: as in `upsert`. The server remembers it even if no message is known under the key, and
            False may also mean that a higher one is known, so that nothing is cancelled.
        """
        if version is None:
            return await self._calls._cancel(self._path, strict=strict)
        try:
            left = await self._calls._upsert(self._path, {"cancel": True, "version": version})
        except AlreadyDispatched:
            if strict:
                raise
            return False
        return left.state == "cancelled"

    async def upsert(
        self,
        topic: str = "",
        payload: Any = NO_PAYLOAD,
        *,
        version: Version | None = None,
        **options: Unpack[MessageOptions],
    ) -> Upserted:
        """Make the message under the key, or change the pending one, all of it; its id stays.

        A cancelled one is made anew. Raises AlreadyDispatched if it is too late, but for a higher version,
        which makes a new message, and with `key_scope="pending"` once the old one is finished everywhere.
        With `late="drop"` and a time that has passed the pending one is cancelled, and `state` says so.

        `topic`, `payload`: as in `schedule`.
        `version`: two integers, compared in order. One that is not above the highest so far changes nothing,
            so calls with versions may be repeated and may overtake each other.
        """
        check(_OPTIONS, options)
        if options.get("key") is not None:
            raise BadArgument("key", "is the one of by_key()")
        body = _body("upsert", topic, payload, options)
        if version is not None:
            body["version"] = version
        return await self._calls._upsert(self._path, body)

    async def reschedule(self, **when: Unpack[Due]) -> Message:
        """Move it; its id and its key stay. Raises AlreadyDispatched, and Refused if it was cancelled."""
        return await self._calls._reschedule(self._path, **when)


@unfolded
class Messages:
    """Calls on `/v1/messages`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._outbox = message_outbox(transport)

    async def schedule(
        self,
        topic: str = "",
        payload: Any = NO_PAYLOAD,
        *,
        replace: bool = False,
        key_only: bool = False,
        claims: bool = False,
        debounce: tuple[Span, Span] | None = None,
        **options: Unpack[MessageOptions],
    ) -> Message:
        """Schedule one message for `at`, or for `delay` from now by the server's clock, or for now.

        `key` makes the call idempotent, also across processes. Without one, the client makes a key for its
        own retries. `replayed` of the answer says that the key was known, `state` is its message's state.
        Raises Refused if the key has another message, KeyCancelled if its message was cancelled.
        Concurrent calls share requests, but for those with `claims` or `debounce`. Within a span of
        OpenTelemetry the message takes its context along.

        `topic`: where it is published; optional with `deliver_to`.
        `payload`: bytes and str go as they are, anything else as JSON.
        `replace`: schedules this message if the one under the key was cancelled; a pending or dispatched one
            keeps the key.
        `key_only`: any message under the key counts as this one, whatever its content and time.
        `claims`: `claims` of the answer says how many places would get the message now.
        `debounce`: (wait, at most): the message under `key` is due `wait` after the last such call, and never
            later than the second span after the first one. The last payload wins; the id stays.
        """
        check(_OPTIONS, options)
        own = key_text(options.get("key"))
        if not own:
            if replace or key_only:
                raise BadArgument("key", "is needed with replace and key_only")
            check_scope(options.get("key_scope"))
        terms = tuple(key_terms(replace=replace, key_only=key_only).items()) if replace or key_only else ()
        body = _body("schedule", topic, payload, options)
        if debounce is not None:
            if not own:
                raise BadArgument("key", "is needed with debounce")
            body["debounce"] = _debounce(debounce)
        line = message_line(body)
        try:
            if claims or debounce is not None:
                params = (*terms, ("claims", "true")) if claims else terms
                answer = await send_one(self._transport, params, line, own)
            else:
                if self._outbox.is_full:
                    await self._outbox.room()
                answer = await self._outbox.submit(terms, (line, own), len(line))
        except Refused as error:
            refused = renamed(error, DUE_NAMES)
            raise (of_key(own, refused) if own else refused) from None
        if answer.get("replayed") is True:
            if "state" not in answer:
                answer = await self._looked_up(answer)
            if own and answer.get("state") == "cancelled":
                raise key_cancelled(own, {"type": "/problems/cancelled", "id": answer["id"]})
        body.update(answer)
        made = self._handle(body)
        if "at" in options and options.get("late") is None and not made.replayed:
            _warn_of_past(made, options["at"])
        return made

    async def schedule_many(
        self,
        items: Items,
        *,
        batch: int = MAX_ITEMS,
        on_progress: Callable[[int], None] | None = None,
        ids: bool = False,
        replace: bool = False,
        key_only: bool = False,
        key_scope: KeyScope | None = None,
    ) -> int:
        """Stream any iterable, sync or async, in atomic batches; return how many were accepted.

        `ids`: items may bring the `id` that an export gave them; one that is taken is Refused. `replace` and
        `key_only`: as in `schedule`, of the keys of all items; each needs one. `key_scope`: of the keys that
        items bring, where they say nothing of it.
        """
        params = key_terms(replace=replace, key_only=key_only)
        if ids:
            params["ids"] = "true"
        return await send_all(
            self._transport,
            items,
            batch=batch,
            on_progress=on_progress,
            params=params,
            headers=current(),
            key_scope=key_scope,
        )

    async def get(self, message_id: str) -> Message:
        """Raises NotFound."""
        return await self._get(_path(message_id))

    def by_key(self, key: Key, *, door: Door = "http") -> ByKey:
        """The message that was scheduled under `key`, to look at, cancel or move; nothing is asked yet.

        Keys are each API key's own. `door`: by which one the message came; keys of MQTT are others.
        """
        text = key_text(key)
        if not text:
            raise BadArgument("key", "must not be empty")
        door_query = "" if door == "http" else f"?door={quoted(door)}"
        return ByKey(text, f"/v1/messages/by-key/{quoted(text)}{door_query}", self)

    async def explain(self, message_id: str) -> Json:
        """Storage details: slice, shard, structure, position, when it enters RAM."""
        return await self._transport.ask("GET", _path(message_id) + "/explain")

    async def why(self, message_id: str) -> Why:
        """What has happened to it, in sentences, and what it waits for. Raises NotFound."""
        return Why.of(await self._transport.ask("GET", _path(message_id) + "/why"))

    async def result(self, message_id: str, *, wait: Span = 0, group: str | None = None) -> Any:
        """The result that a worker has given of the message; waits for it for at most `wait` (60 s).

        Raises NoResult if there is none by then, NotFound, and Refused if several groups have one: `group`.
        """
        params = {"wait": span(wait, "wait"), **({"group": group} if group else {})}
        timeout_s = seconds("wait", wait) + PATIENCE_S
        answer = await self._transport.ask(
            "GET", _path(message_id) + "/result", params=params, timeout_s=timeout_s
        )
        if "result" in answer:
            return answer["result"]
        error = NoResult(f"{message_id} has no result, its outcome is {answer.get('outcome')}")
        error.outcome = str(answer.get("outcome"))
        raise error

    async def cancel(self, message_id: str, *, strict: bool = False) -> bool:
        """True: nobody will get it (also if it was cancelled before). False: already dispatched.

        With `strict` raises AlreadyDispatched instead, which lists the deliveries that are left. Raises
        NotFound.
        """
        return await self._cancel(_path(message_id), strict=strict)

    async def reschedule(self, message_id: str, **when: Unpack[Due]) -> Message:
        """Move it to another time; the id stays. Raises AlreadyDispatched, NotFound, Refused (cancelled)."""
        return await self._reschedule(_path(message_id), **when)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: int = PAGE_MAX,
        **chosen: Unpack[Listed],
    ) -> AsyncIterator[Message]:
        """Messages by due time; pending ones, unless `state` says otherwise ("all" for every state).

        `topic` is a topic filter, `limit` bounds the whole listing, `page` what one request asks for.
        """
        params = _selected(_LISTED, chosen)
        async for message in self._transport.pages(
            "/v1/messages", "messages", params, page=page, limit=limit
        ):
            yield self._handle(message)

    async def count(self, **chosen: Unpack[Listed]) -> int:
        """Exact number of messages that `list` would return."""
        params = _selected(_LISTED, chosen)
        params.update(limit="1", count="true")
        return int((await self._transport.ask("GET", "/v1/messages", params=params))["count"])

    async def cancel_where(
        self,
        *,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        **chosen: Unpack[Selection],
    ) -> BulkResult:
        """Cancel every pending message that matches; give at least one of the three."""
        found = _selected(_SELECTED, chosen)
        return await sweep(self._transport, "cancel", found, dry_run=dry_run, on_progress=on_progress)

    async def shift(
        self,
        by: Span,
        *,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        **chosen: Unpack[Selection],
    ) -> BulkResult:
        """Move every pending message that matches by a duration, which may be negative; each once."""
        found, shift = _selected(_SELECTED, chosen), signed_span(by)
        try:
            return await sweep(
                self._transport, "reschedule", found, shift=shift, dry_run=dry_run, on_progress=on_progress
            )
        except Refused as error:
            raise renamed(error, {"shift": "by"}) from None

    async def export(self, *, ids: bool = False, **chosen: Unpack[Selection]) -> AsyncIterator[Json]:
        """Pending messages in order of time as `schedule_many` takes them, with their ids if asked."""
        async for item in export(self._transport, _selected(_SELECTED, chosen), ids=ids):
            yield item

    async def close(self) -> None:
        """Wait for requests in progress."""
        await self._outbox.close()

    async def _get(self, path: str) -> Message:
        return self._handle(await self._transport.ask("GET", path))

    async def _cancel(self, path: str, *, strict: bool) -> bool:
        try:
            await self._transport.call("DELETE", path)
        except AlreadyDispatched:
            if strict:
                raise
            return False
        return True

    async def _upsert(self, path: str, body: Json) -> Upserted:
        return Upserted.of(await self._ask("PUT", path, body))

    async def _reschedule(self, path: str, **when: Unpack[Due]) -> Message:
        check(Due.__optional_keys__, when)
        body = due(**when)
        if not body:
            raise BadArgument("at", "or `delay` is needed")
        moved = self._handle(await self._ask("PATCH", path, body))
        if moved.state != "cancelled":  # as one with `late="drop"` is
            _warn_of_past(moved, when.get("at"))
        return moved

    async def _ask(self, method: str, path: str, body: Json) -> Json:
        try:
            return await self._transport.ask(method, path, body)
        except Refused as error:
            raise renamed(error, DUE_NAMES) from None

    async def _looked_up(self, answer: Json) -> Json:
        """Look up a message of a known key: a batch answers only with its id."""
        try:
            return {**await self._transport.ask("GET", _path(answer["id"])), **answer}
        except NotFound:
            return answer

    def _handle(self, answer: Json) -> Message:
        name, at = answer["id"], answer.get("deliver_at")
        known = isinstance(at, str) and "state" in answer
        return Message(
            name,
            answer.get("topic", ""),
            # A batch answers with the id alone; the time is in it.
            parse_instant(str(at)) if known else instant_of_id(name),
            answer.get("state", "pending"),
            answer,
            self,
            answer.get("replayed") is True,
        )


def _warn_of_past(message: Message, at: When | None) -> None:
    """Warn if it was due more than a minute before the server placed it, by the server's clock."""
    if at is None:
        return
    try:
        due_at = at if isinstance(at, datetime) else parse_instant(at)
    except ValueError:  # text of another form
        due_at = message.deliver_at
    now = message.raw.get("server_time")  # a batch does not tell it: then the time is the id's
    placed_at = message.deliver_at if now is None else parse_instant(now)
    warn_of_past(message.topic or message.id, at, placed_at - due_at)


def _path(message_id: str) -> str:
    return f"/v1/messages/{quoted(message_id)}"


def _selected(allowed: frozenset[str], chosen: Mapping[str, Any]) -> dict[str, str]:
    check(allowed, chosen)
    return selection(chosen)


def _body(call: str, topic: str, payload: Any, options: Mapping[str, Any]) -> Json:
    """The object of one message, with the context of a trace. Warns if it has no payload; `call`: of what."""
    body = message_body(topic, payload, options)
    headers = joined(body.get("headers"))
    if headers is not None:
        body["headers"] = headers
    if payload is NO_PAYLOAD and options.get("deliver_to") is None:
        warn_of_empty(f"{call}({topic!r})")
    return body


def _debounce(spans: tuple[Span, Span]) -> Json:
    try:
        wait, most = spans
    except (TypeError, ValueError):
        raise BadArgument("debounce", f"must be two spans of time, not {spans!r:.100}") from None
    return {"wait": span(wait, "debounce"), "max_wait": span(most, "debounce")}
