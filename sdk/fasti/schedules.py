"""`client.schedules`: recurring messages.

    await c.schedules.put("nightly", cron="0 2 * * *", timezone="Europe/Bucharest", topic="jobs/nightly")

A `Schedule` is what the server last said of one; its next occurrence is an ordinary message, with an id that
`client.messages` can look up, cancel or move. A `Fire` is one time in a preview.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, Unpack

from .answers import Fire, Schedule
from .options import ScheduleOptions, Timing
from .signatures import check, unfolded
from .transport import Calls, quoted
from .values import rows_of
from .wire import (
    SENDING,
    Json,
    Spell,
    as_is,
    instant,
    put_payload,
    span,
    spelled,
    where,
)

_TIMING: Mapping[str, Spell] = {
    **dict.fromkeys(("cron", "rrule", "timezone", "limit", "misfire"), as_is),
    **dict.fromkeys(("every", "jitter"), span),
    **dict.fromkeys(("start", "end"), instant),
}
"""When a schedule fires; `gap` and `overlap` go into an object of their own."""


Fires = list[Fire]


@unfolded
class Schedules(Calls):
    """Calls on `/v1/schedules`."""

    async def put(
        self, name: str, *, topic: str = "", payload: Any = "", **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Create or change the schedule. Give one of `cron`, `every` and `rrule`.

        Raises Refused, whose `errors` name the field.

        `topic`: where it publishes; optional with `deliver_to`.
        `payload`: bytes and str go as they are, anything else as JSON.
        """
        check(ScheduleOptions.__optional_keys__, options)
        body = _timing(options)
        body.update(where(topic, options.get("deliver_to")))
        put_payload(body, payload)
        body.update(spelled(SENDING, options))
        return Schedule.of(await self._transport.ask("PUT", _path(name), body))

    async def get(self, name: str) -> Schedule:
        """Raises NotFound."""
        return Schedule.of(await self._transport.ask("GET", _path(name)))

    async def list(self) -> AsyncIterator[Schedule]:
        """All schedules, sorted by name."""
        async for found in self._transport.pages("/v1/schedules", "schedules"):
            yield Schedule.of(found)

    async def delete(self, name: str) -> None:
        """Delete the schedule and cancel its pending occurrence. Raises NotFound."""
        await self._transport.call("DELETE", _path(name))

    async def pause(self, name: str) -> Schedule:
        """Pause it: cancel the pending occurrence and fire no more. Raises NotFound."""
        return Schedule.of(await self._transport.ask("POST", _path(name) + ":pause"))

    async def resume(self, name: str, *, from_: Literal["now"] | None = None) -> Schedule:
        """Resume with the first fire after now that was not sent. Raises NotFound.

        `from_="now"`: with the first fire after now, whatever a clock that was ahead has sent; paused or not.
        """
        body = None if from_ is None else {"from": from_}
        return Schedule.of(await self._transport.ask("POST", _path(name) + ":resume", body))

    async def skip(self, name: str) -> Schedule:
        """Skip the next fire and cancel its message. Not repeated. Raises NotFound, Refused."""
        return Schedule.of(await self._transport.ask("POST", _path(name) + ":skip", repeatable=False))

    async def trigger(self, name: str) -> str:
        """Send its message now, beside the plan; returns its id. Not repeated. Raises NotFound."""
        answer = await self._transport.ask("POST", _path(name) + ":trigger", repeatable=False)
        return str(answer["id"])

    async def preview(self, *, count: int = 10, name: str | None = None, **when: Unpack[Timing]) -> Fires:
        """The first fires of a schedule, saved or not. `name` only matters for jitter."""
        check(Timing.__optional_keys__, when)
        body = _timing(when)
        body["count"] = count
        if name is not None:
            body["name"] = name
        return _fires(await self._transport.ask("POST", "/v1/schedules:preview", body))

    async def upcoming(self, name: str, count: int = 10) -> Fires:
        """The next fires of a saved schedule. Raises NotFound."""
        params = {"count": str(count)}
        return _fires(await self._transport.ask("GET", _path(name) + "/upcoming", params=params))


def _fires(answer: Json) -> Fires:
    return [Fire.of(found) for found in rows_of(answer, "fires")]


def _timing(options: Mapping[str, Any]) -> Json:
    """The timing fields of a schedule's body."""
    body = spelled(_TIMING, options)
    dst = {name: options[name] for name in ("gap", "overlap") if options.get(name)}
    return {**body, "dst": dst} if dst else body


def _path(name: str) -> str:
    return f"/v1/schedules/{quoted(name)}"
