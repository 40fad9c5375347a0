"""`client.schedules`: messages that come again and again.

    await c.schedules.put("nightly", cron="0 2 * * *", timezone="Europe/Bucharest", topic="jobs/nightly")

A `Schedule` is what the server last said of one; its next occurrence is an ordinary message, with an id that
`client.messages` can look up, cancel or move. A `Fire` is one time in a preview.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Self

from .admin import pages
from .transport import Transport, quoted
from .wire import Json, Span, When, dumps, get_payload, instant, parse_instant, put_payload, span

Gap = Literal["skip", "after", "before"]
Overlap = Literal["first", "second", "both"]
Misfire = Literal["fire_all", "fire_once", "skip"]


@dataclass(frozen=True, slots=True)
class Fire:
    """One time at which a schedule fires. `local`: what the clocks there show; `note`: what DST changed."""

    at: datetime
    local: str
    note: str | None
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Json) -> Self:
        return cls(parse_instant(said["at"]), str(said.get("local", "")), said.get("note"), said)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as the server knows it. `state`: active, paused or finished; `count`: messages so far."""

    name: str
    state: str
    topic: str
    count: int
    next: Fire | None
    next_id: str | None
    """The id of the message that is written for the next fire."""
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Json) -> Self:
        following = said.get("next")
        return cls(
            name=said["name"],
            state=str(said.get("state", "")),
            topic=str(said.get("topic", "")),
            count=int(said.get("count", 0)),
            next=None if following is None else Fire.of(following),
            next_id=None if following is None else following.get("id"),
            raw=said,
        )

    @property
    def payload(self) -> Any:
        """bytes, str or a JSON value, as it was given."""
        return get_payload(self.raw)


Fires = list[Fire]


class Schedules:
    """Calls on `/v1/schedules`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def put(
        self,
        name: str,
        *,
        topic: str,
        payload: Any = "",
        cron: str | None = None,
        every: Span | None = None,
        rrule: str | None = None,
        timezone: str | None = None,
        start: When | None = None,
        end: When | None = None,
        limit: int | None = None,
        jitter: Span | None = None,
        gap: Gap | None = None,
        overlap: Overlap | None = None,
        misfire: Misfire | None = None,
        qos: int | None = None,
        retain: bool | None = None,
        expires_in: Span | None = None,
        late: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Schedule:
        """Make the schedule, or change it in place. Give one of `cron`, `every` and `rrule`.

        `timezone` is required for cron and rrule. `gap` and `overlap` say what becomes of a local time that
        the clocks skip or show twice, `misfire` what becomes of fires while the server was down. Raises
        Refused, whose `errors` name the field.
        """
        body = timing(
            cron=cron,
            every=every,
            rrule=rrule,
            timezone=timezone,
            start=start,
            end=end,
            limit=limit,
            jitter=jitter,
            gap=gap,
            overlap=overlap,
            misfire=misfire,
        )
        body["topic"] = topic
        put_payload(body, payload)
        more = {"qos": qos, "retain": retain, "late": late, "content_type": content_type}
        body.update({key: value for key, value in more.items() if value is not None})
        if expires_in is not None:
            body["expires_in"] = span(expires_in)
        if headers:
            body["headers"] = dict(headers)
        return Schedule.of((await self._transport.call("PUT", _path(name), body=dumps(body))).object())

    async def get(self, name: str) -> Schedule:
        """Raises NotFound."""
        return Schedule.of((await self._transport.call("GET", _path(name))).object())

    async def list(self) -> AsyncIterator[Schedule]:
        """All schedules in order of their names."""
        async for found in pages(self._transport, "/v1/schedules", "schedules"):
            yield Schedule.of(found)

    async def delete(self, name: str) -> None:
        """Forget the schedule and cancel its pending occurrence. Raises NotFound."""
        await self._transport.call("DELETE", _path(name))

    async def pause(self, name: str) -> Schedule:
        """Take the pending occurrence back and fire no more. Raises NotFound."""
        return Schedule.of((await self._transport.call("POST", _path(name) + ":pause")).object())

    async def resume(self, name: str) -> Schedule:
        """Go on with the first fire after now. Raises NotFound."""
        return Schedule.of((await self._transport.call("POST", _path(name) + ":resume")).object())

    async def trigger(self, name: str) -> str:
        """Send its message now, beside the plan; gives the message's id. Not repeated. Raises NotFound."""
        answer = await self._transport.call("POST", _path(name) + ":trigger", repeatable=False)
        return str(answer.object()["id"])

    async def preview(
        self,
        *,
        count: int = 10,
        name: str | None = None,
        cron: str | None = None,
        every: Span | None = None,
        rrule: str | None = None,
        timezone: str | None = None,
        start: When | None = None,
        end: When | None = None,
        limit: int | None = None,
        jitter: Span | None = None,
        gap: Gap | None = None,
        overlap: Overlap | None = None,
    ) -> Fires:
        """The first fires of a schedule that need not be saved. `name` matters for jitter only."""
        body = timing(
            cron=cron,
            every=every,
            rrule=rrule,
            timezone=timezone,
            start=start,
            end=end,
            limit=limit,
            jitter=jitter,
            gap=gap,
            overlap=overlap,
        )
        body["count"] = count
        if name is not None:
            body["name"] = name
        answer = await self._transport.call("POST", "/v1/schedules:preview", body=dumps(body))
        return [Fire.of(found) for found in answer.object()["fires"]]

    async def upcoming(self, name: str, count: int = 10) -> Fires:
        """The next fires of a saved schedule. Raises NotFound."""
        params = {"count": str(count)}
        answer = await self._transport.call("GET", _path(name) + "/upcoming", params=params)
        return [Fire.of(found) for found in answer.object()["fires"]]


def timing(
    *,
    cron: str | None = None,
    every: Span | None = None,
    rrule: str | None = None,
    timezone: str | None = None,
    start: When | None = None,
    end: When | None = None,
    limit: int | None = None,
    jitter: Span | None = None,
    gap: Gap | None = None,
    overlap: Overlap | None = None,
    misfire: Misfire | None = None,
) -> Json:
    """The part of a schedule's body that says when."""
    said = {"cron": cron, "rrule": rrule, "timezone": timezone, "limit": limit, "misfire": misfire}
    body: Json = {key: value for key, value in said.items() if value is not None}
    for key, length in (("every", every), ("jitter", jitter)):
        if length is not None:
            body[key] = span(length)
    for key, at in (("start", start), ("end", end)):
        if at is not None:
            body[key] = instant(at)
    dst = {"gap": gap, "overlap": overlap}
    if gap or overlap:
        body["dst"] = {key: value for key, value in dst.items() if value}
    return body


def _path(name: str) -> str:
    return f"/v1/schedules/{quoted(name)}"
