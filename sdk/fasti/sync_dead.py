"""`client.dead` of the blocking client. See `fasti.sync`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Unpack

from . import dead as _dead
from .blocking import Loop
from .dead import PAGE_MAX, DeadLetter
from .options import DeadSelection
from .ranges import BulkResult
from .wire import Span


class Dead:
    """See `fasti.dead.Dead`."""

    def __init__(self, loop: Loop, inner: _dead.Dead) -> None:
        self._loop = loop
        self._inner = inner

    def list(
        self,
        *,
        reason: str | None = None,
        limit: int | None = None,
        page: int = PAGE_MAX,
        **chosen: Unpack[DeadSelection],
    ) -> Iterator[DeadLetter]:
        """Dead letters in the order of dying."""
        return self._loop.iterate(self._inner.list(reason=reason, limit=limit, page=page, **chosen))

    def get(self, message_id: str) -> tuple[DeadLetter, ...]:
        """Those of one message."""
        return self._loop.run(self._inner.get(message_id))

    def requeue(
        self,
        ids: Iterable[str] | None = None,
        *,
        delay: Span | None = None,
        dry_run: bool = False,
        **chosen: Unpack[DeadSelection],
    ) -> BulkResult:
        """Have them sent again, each to the session or group that gave it up."""
        return self._loop.run(self._inner.requeue(ids, delay=delay, dry_run=dry_run, **chosen))

    def drop(
        self,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        **chosen: Unpack[DeadSelection],
    ) -> BulkResult:
        """Forget them."""
        return self._loop.run(self._inner.drop(ids, dry_run=dry_run, **chosen))
