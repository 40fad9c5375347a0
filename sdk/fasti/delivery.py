"""One delivered message, in the subscriber's hands until `ack()`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from .mqtt_values import Incoming
from .wire import parse_instant

_OURS = frozenset({"fasti-id", "fasti-due", "fasti-late-ms", "fasti-attempt", "fasti-schedule"})


class Received:
    """A message and what the server says of its delivery. What a foreign broker does not say is None."""

    __slots__ = ("_incoming", "_said")

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._said = dict(incoming.properties)

    @property
    def topic(self) -> str:
        return self._incoming.topic

    @property
    def payload(self) -> bytes:
        return self._incoming.payload

    @property
    def qos(self) -> int:
        return self._incoming.qos

    @property
    def retain(self) -> bool:
        """Whether it is a retained message that came because of the subscription."""
        return self._incoming.retain

    @property
    def content_type(self) -> str | None:
        return self._incoming.content_type

    @property
    def id(self) -> str | None:
        """The message id, the same at every delivery."""
        return self._said.get("fasti-id")

    @property
    def due(self) -> datetime | None:
        """When it was to be delivered, UTC."""
        text = self._said.get("fasti-due")
        return None if text is None else parse_instant(text)

    @property
    def lateness(self) -> timedelta | None:
        """Dispatch time minus due, by the server's clock."""
        text = self._said.get("fasti-late-ms")
        return None if text is None else timedelta(milliseconds=float(text))

    @property
    def attempt(self) -> int:
        """1 at the first delivery to this session or group."""
        return int(self._said.get("fasti-attempt", "1"))

    @property
    def schedule(self) -> str | None:
        """The name of the recurring schedule that wrote it; None: none did."""
        return self._said.get("fasti-schedule")

    @property
    def headers(self) -> Mapping[str, str]:
        """The publisher's user properties; the last one of a name counts."""
        return {name: value for name, value in self._said.items() if name not in _OURS}

    def text(self) -> str:
        """The payload as UTF-8. Raises UnicodeDecodeError."""
        return self.payload.decode()

    def json(self) -> Any:
        """The payload as JSON. Raises ValueError."""
        return json.loads(self.payload)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topic={self.topic!r}, id={self.id!r}, payload={len(self.payload)} bytes)"
        )


class Delivery(Received):
    """A received message that can be acked."""

    __slots__ = ("_ack", "_acked")

    def __init__(self, incoming: Incoming, ack: Callable[[Incoming], Awaitable[bool]]) -> None:
        super().__init__(incoming)
        self._ack = ack
        self._acked: bool | None = None

    async def ack(self) -> bool:
        """Say that the message is done with; the server will not send it to this session or group again.

        True: the ack has been written to the connection that the message came on. It waits while the server
        does not read. False: nothing was acked and nothing will be, because that connection has ended, be
        there a new one or not, or because the subscription is closed. With a session the message comes again;
        in a group it goes to another member, or to this one again while its place is kept. It raises nothing.
        The first answer stays: a second call, also one at the same time or after a close, gives the same and
        sends nothing.

        At QoS 2 with a session or in a group True is also said when the connection was lost: the message
        comes again under its packet id, is recognised, not handed out a second time, and acked then, as long
        as this subscription lives. At QoS 0 nothing is acked and nothing comes again: True.

        The server makes an ack durable a little later (QoS 1): if it is killed meanwhile, the message can
        come again after a True.
        """
        if self._acked is None:
            self._acked = await self._ack(self._incoming)
        return self._acked
