"""Many messages by topic filter and due range: cancel, shift, export. How all calls spell what they select.

The server changes a bounded number per request here, so that a caller sees how far it is, and every request
carries the `as_of` of the first one: the server passes over what was placed after it. That makes each request
safe to send again, a shift included, since a message that it has moved counts as placed anew.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Any

from .answers import BulkResult
from .errors import Error
from .transport import Transport
from .wire import Json, Span, instant, key_text, span

STEP_MESSAGES = 5_000
"""Messages changed by one request."""
_TIMES = {
    **{name: name for name in ("due_from", "due_to")},
    **dict.fromkeys(("died_from", "retry_from", "start"), "from"),
    **dict.fromkeys(("died_to", "retry_to", "end"), "to"),
}
"""The server's names of the time fields of a selection."""

OnProgress = Callable[[int], None]
"""Told after each request how many messages were matched so far."""


def selection(chosen: Mapping[str, Any]) -> dict[str, str]:
    """The given members, by the server's names. Raises BadArgument."""
    return {
        _TIMES.get(name, name): instant(value, name) if name in _TIMES else _text(name, value)
        for name, value in chosen.items()
        if value is not None
    }


def _text(name: str, value: Any) -> str:
    return key_text(value) if name == "key" else value


def signed_span(by: Span) -> str:
    """A duration that may be negative: `-PT15M`."""
    if isinstance(by, str):
        return by
    if isinstance(by, timedelta):
        return f"-{span(-by, 'by')}" if by < timedelta(0) else span(by, "by")
    return f"-{span(-by, 'by')}" if isinstance(by, int | float) and by < 0 else span(by, "by")


async def sweep(
    transport: Transport,
    verb: str,
    chosen: Mapping[str, str],
    *,
    shift: str | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> BulkResult:
    """`:cancel` or `:reschedule`, request after request. Raises Refused, Unreachable."""
    body: Json = {"filter": dict(chosen)}
    if shift is not None:
        body["shift"] = shift
    if not dry_run:
        # A first request that changes nothing: from now on there is an `as_of` and sending again is safe.
        body["as_of"] = (await _ask(transport, verb, {**body, "dry_run": True, "limit": 1}))["as_of"]
    body |= {"dry_run": dry_run, "limit": STEP_MESSAGES}
    matched = changed = 0
    while True:
        answer = await _ask(transport, verb, body)
        matched += answer["matched"]
        changed += answer["changed"]
        if on_progress is not None:
            on_progress(matched)
        if answer["next"] is None:
            return BulkResult(matched, changed)
        body |= {"as_of": answer["as_of"], "cursor": answer["next"]}


async def _ask(transport: Transport, verb: str, body: Json) -> Json:
    return await transport.ask("POST", f"/v1/messages:{verb}", body, timeout_s=0)


async def export(transport: Transport, chosen: Mapping[str, str], *, ids: bool) -> AsyncIterator[Json]:
    """Every pending message as `:batch` takes it. Raises Unreachable, also in the middle."""
    params = {**chosen, "ids": "true"} if ids else dict(chosen)
    async for line in transport.lines("/v1/messages:export", params):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Error(f"not a line of JSON: {line!r:.100}") from error
