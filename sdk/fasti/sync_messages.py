"""`client.messages` of the blocking client. See `fasti.sync`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Self, Unpack

from . import messages as _messages
from .blocking import Loop
from .bulk import Items
from .coalesce import MAX_ITEMS
from .options import Door, Due, Listed, MessageOptions, Selection
from .ranges import BulkResult, Progress
from .wire import Json, Span


class Message:
    """A handle on one scheduled message; see `fasti.Message`."""

    def __init__(self, loop: Loop, inner: _messages.Message) -> None:
        self._loop = loop
        self._inner = inner

    @property
    def id(self) -> str:
        """The same for good, wherever the message is moved."""
        return self._inner.id

    @property
    def topic(self) -> str:
        """Where it goes."""
        return self._inner.topic

    @property
    def deliver_at(self) -> datetime:
        """When it is due, UTC."""
        return self._inner.deliver_at

    @property
    def state(self) -> str:
        """What the server last said: pending, dispatched, cancelled or expired."""
        return self._inner.state

    @property
    def replayed(self) -> bool:
        """This `schedule()` made nothing new, the message was there under its key."""
        return self._inner.replayed

    @property
    def schedule(self) -> str | None:
        """The name of the recurring schedule that wrote it; None: none did."""
        return self._inner.schedule

    @property
    def payload(self) -> Any:
        """bytes, str or a JSON value, as it was given; None where the answer did not repeat it."""
        return self._inner.payload

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's own user properties."""
        return self._inner.headers

    @property
    def dispatched_at(self) -> datetime | None:
        """When it went out, or was dropped because it had expired or was late."""
        return self._inner.dispatched_at

    @property
    def deliveries(self) -> tuple[_messages.Handling, ...]:
        """With whom it is, once it was dispatched; see `fasti.Message`."""
        return self._inner.deliveries

    @property
    def raw(self) -> Mapping[str, Any]:
        """The server's last object for it."""
        return self._inner.raw

    def cancel(self) -> bool:
        """True: nobody will get it. False: it was already dispatched."""
        return self._loop.run(self._inner.cancel())

    def reschedule(self, **when: Unpack[Due]) -> Self:
        """Move it; the id stays."""
        self._loop.run(self._inner.reschedule(**when))
        return self

    def refresh(self) -> Self:
        """Ask the server again."""
        self._loop.run(self._inner.refresh())
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._inner == other._inner

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return repr(self._inner)


class ByKey:
    """The message under an idempotency key; see `fasti.ByKey`."""

    def __init__(self, loop: Loop, inner: _messages.ByKey) -> None:
        self._loop = loop
        self._inner = inner

    @property
    def key(self) -> str:
        """The idempotency key."""
        return self._inner.key

    def get(self) -> Message:
        """The message as it is now, in whatever state."""
        return Message(self._loop, self._loop.run(self._inner.get()))

    def cancel(self) -> bool:
        """True: nobody will get it. False: it was already dispatched."""
        return self._loop.run(self._inner.cancel())

    def reschedule(self, **when: Unpack[Due]) -> Message:
        """Move it; its id and its key stay."""
        return Message(self._loop, self._loop.run(self._inner.reschedule(**when)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByKey) and self._inner == other._inner

    def __hash__(self) -> int:
        return hash(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)


class Messages:
    """See `fasti.messages.Messages`."""

    def __init__(self, loop: Loop, inner: _messages.Messages) -> None:
        self._loop = loop
        self._inner = inner

    def schedule(
        self,
        topic: str = "",
        payload: Any = "",
        *,
        replace: bool = False,
        key_only: bool = False,
        **options: Unpack[MessageOptions],
    ) -> Message:
        """Schedule one message for `at`, or for `delay` from now by the server's clock, or for now.

        All options are told of in `fasti.options.MessageOptions`, `replace` and `key_only` in
        `fasti.messages.Messages.schedule`.
        """
        work = self._inner.schedule(topic, payload, replace=replace, key_only=key_only, **options)
        return Message(self._loop, self._loop.run(work))

    def schedule_many(
        self,
        items: Items,
        *,
        batch: int = MAX_ITEMS,
        on_progress: Callable[[int], None] | None = None,
        ids: bool = False,
        replace: bool = False,
        key_only: bool = False,
    ) -> int:
        """Stream any iterable in atomic batches. It is read in the client's thread."""
        work = self._inner.schedule_many(
            items, batch=batch, on_progress=on_progress, ids=ids, replace=replace, key_only=key_only
        )
        return self._loop.run(work)

    def get(self, message_id: str) -> Message:
        """Raises NotFound."""
        return Message(self._loop, self._loop.run(self._inner.get(message_id)))

    def by_key(self, key: str, *, door: Door = "http") -> ByKey:
        """The message that was scheduled under `key`; nothing is asked yet."""
        return ByKey(self._loop, self._inner.by_key(key, door=door))

    def explain(self, message_id: str) -> Json:
        """Where it is stored."""
        return self._loop.run(self._inner.explain(message_id))

    def cancel(self, message_id: str) -> bool:
        """True: nobody will get it. False: already dispatched."""
        return self._loop.run(self._inner.cancel(message_id))

    def reschedule(self, message_id: str, **when: Unpack[Due]) -> Message:
        """Move it to another time."""
        return Message(self._loop, self._loop.run(self._inner.reschedule(message_id, **when)))

    def list(
        self,
        *,
        limit: int | None = None,
        page: int = _messages.PAGE_MAX,
        **chosen: Unpack[Listed],
    ) -> Iterator[Message]:
        """Messages in order of time, fetched page by page."""
        found = self._inner.list(limit=limit, page=page, **chosen)
        for message in self._loop.iterate(found):
            yield Message(self._loop, message)

    def count(self, **chosen: Unpack[Listed]) -> int:
        """How many messages `list` would give."""
        return self._loop.run(self._inner.count(**chosen))

    def cancel_where(
        self,
        *,
        dry_run: bool = False,
        on_progress: Progress | None = None,
        **chosen: Unpack[Selection],
    ) -> BulkResult:
        """Cancel every pending message that matches."""
        work = self._inner.cancel_where(dry_run=dry_run, on_progress=on_progress, **chosen)
        return self._loop.run(work)

    def shift(
        self,
        by: Span,
        *,
        dry_run: bool = False,
        on_progress: Progress | None = None,
        **chosen: Unpack[Selection],
    ) -> BulkResult:
        """Move every pending message that matches by a duration; each once."""
        work = self._inner.shift(by, dry_run=dry_run, on_progress=on_progress, **chosen)
        return self._loop.run(work)

    def export(self, *, ids: bool = False, **chosen: Unpack[Selection]) -> Iterator[Json]:
        """Pending messages in order of time as `schedule_many` takes them."""
        found = self._inner.export(ids=ids, **chosen)
        return self._loop.iterate(found)

    def close(self) -> None:
        """Wait for what other threads are still sending."""
        self._loop.run(self._inner.close())
