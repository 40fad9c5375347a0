"""Uploads any number of messages with only a batch or two in memory.

The iterable is read as fast as the server takes: one batch is on its way while the next is encoded, so at
most two are held (2 x 1,000 messages or 2 x 8 MiB). Batches go one after another, which keeps the order of
messages with equal due times. Each is all or nothing on the server, and has a key made here, so sending it
again after a broken connection schedules nothing twice.

An item is a `NewMessage` or a mapping with the fields of `POST /v1/messages` (`key` among them); in a mapping
`at`, `delay`, bytes, datetimes and timedeltas are understood too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from .coalesce import MAX_BYTES, MAX_ITEMS
from .errors import BadArgument, Error, Problem, error_of
from .names import check_count, items_of
from .transport import NDJSON, Transport
from .warned import warn_of_past
from .wire import (
    KEY_HEADER,
    Json,
    KeyScope,
    NewMessage,
    check_scope,
    due,
    dumps,
    instant,
    instant_of_id,
    key_text,
    message_line,
    new_key,
    parse_instant,
    put_payload,
    span,
)

_OURS = ("at", "delay", "payload")
Item = NewMessage | Mapping[str, Any]
Items = Iterable[Item] | AsyncIterable[Item]


def line_of(item: Item, key_scope: KeyScope | None = None) -> tuple[bytes, Json]:
    """An NDJSON line without its end, and its object. Raises BadArgument.

    `key_scope`: of the item's key, if it has one.
    """
    if not isinstance(item, NewMessage | Mapping):
        raise BadArgument("items", f"must be of NewMessage or mappings, not of {item!r:.100}")
    body = item.body() if isinstance(item, NewMessage) else _body_of(item)
    if not body.get("key"):
        check_scope(body.get("key_scope"))
        body.pop("key", None)
    elif key_scope is not None:
        body.setdefault("key_scope", key_scope)
    return message_line(body) if isinstance(item, NewMessage) else dumps(body), body


def _body_of(item: Mapping[str, Any]) -> Json:
    body: Json = {name: _plain(value) for name, value in item.items() if name not in _OURS}
    if "payload" in item:
        put_payload(body, item["payload"])
    body.update(due(item.get("at"), item.get("delay")))
    if "key" in body:
        body["key"] = key_text(body["key"])
    return body


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, timedelta):
        return span(value)
    return value


@dataclass(slots=True)
class _Batch:
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    first: tuple[datetime, int, Json] | None = None
    """The earliest time that an item names, that item's index and the item; not of items that say `late`."""

    def takes(self, line: bytes, limit: int) -> bool:
        return not self.lines or (len(self.lines) < limit and self.size + len(line) <= MAX_BYTES)

    def add(self, line: bytes, body: Json) -> None:
        at = body.get("deliver_at")
        if isinstance(at, str) and "[" not in at and "late" not in body:
            self._note(at, body)
        self.lines.append(line)
        self.size += len(line) + 1

    def _note(self, at: str, body: Json) -> None:
        try:
            due_at = parse_instant(at)
        except ValueError:  # text of another form
            return
        if self.first is None or due_at < self.first[0]:
            self.first = due_at, len(self.lines), body

    def warn_of_past(self, answer: Json) -> bool:
        """Warn if an item's time had passed; returns whether it had. `answer`: what the server said."""
        if self.first is None:
            return False
        at, index, body = self.first
        name = body.get("topic") or f"item {index}"
        return warn_of_past(name, body["deliver_at"], instant_of_id(answer["ids"][index]) - at)


async def _lines(items: Items, key_scope: KeyScope | None) -> AsyncIterator[tuple[bytes, Json]]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield line_of(item, key_scope)
    else:
        for item in items_of("items", items):
            yield line_of(item, key_scope)


async def send_all(
    transport: Transport,
    items: Items,
    *,
    batch: int = MAX_ITEMS,
    on_progress: Callable[[int], None] | None = None,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    key_scope: KeyScope | None = None,
) -> int:
    """Schedule everything; return how many the server accepted. `params`, `headers`: of each request.
    `key_scope`: of the keys that items bring, where they say nothing of it.

    `on_progress` is told the number accepted so far after each batch. Raises what the server said to the
    first refused batch: `error.accepted` messages before it are stored, of that batch none; `line` in its
    `errors` counts from 1 over the whole iterable.
    """
    check_count("batch", batch, 1, MAX_ITEMS)
    sender = _Sender(transport, on_progress, params or {}, headers or {})
    filling = _Batch()
    try:
        async for line, body in _lines(items, key_scope):
            if not filling.takes(line, batch):
                await sender.start(filling)
                filling = _Batch()
            filling.add(line, body)
        if filling.lines:
            await sender.start(filling)
        await sender.finish()
    except BaseException as error:
        await sender.abandon()
        if isinstance(error, Error):
            raise _counted(error, sender.accepted) from error
        raise
    return sender.accepted


@dataclass(slots=True)
class _Sender:
    """At most one batch on its way."""

    transport: Transport
    on_progress: Callable[[int], None] | None
    params: Mapping[str, str]
    headers: Mapping[str, str]
    accepted: int = 0
    under_way: tuple[_Batch, asyncio.Task[Json]] | None = None
    has_warned: bool = False

    async def start(self, batch: _Batch) -> None:
        """Wait for the batch before, then send this one in the background."""
        await self.finish()
        self.under_way = batch, asyncio.create_task(self._post(batch))
        await asyncio.sleep(0)  # let it reach the socket before the next one is encoded

    async def finish(self) -> None:
        if self.under_way is None:
            return
        batch, posting = self.under_way
        answer = await posting
        self.under_way = None
        self.accepted += int(answer["accepted"])
        if self.on_progress is not None:
            self.on_progress(self.accepted)
        self.has_warned = self.has_warned or batch.warn_of_past(answer)

    async def abandon(self) -> None:
        """Wait for the batch in progress after a failure, and ignore its result."""
        if self.under_way is not None:
            _, posting = self.under_way
            posting.cancel()
            await asyncio.gather(posting, return_exceptions=True)

    async def _post(self, batch: _Batch) -> Json:
        body = b"\n".join(batch.lines) + b"\n"
        answer = await self.transport.call(
            "POST",
            "/v1/messages:batch",
            params=self.params,
            body=body,
            content_type=NDJSON,
            headers={KEY_HEADER: new_key(), **self.headers},
        )
        return answer.object()


def _counted(error: Error, accepted: int) -> Error:
    """The error with `accepted` set, and its lines counted over all batches."""
    found = error.problem
    if accepted and found.errors:
        errors = tuple(_counted_on(e, accepted) for e in found.errors)
        error = error_of(Problem(found.slug, found.detail, found.status, errors, found.raw))
    error.accepted = accepted
    return error


def _counted_on(error: Mapping[str, Any], lines: int) -> Mapping[str, Any]:
    line = error.get("line")
    return {**error, "line": line + lines} if isinstance(line, int) else error
