"""`GET /v1/tail`: messages that match a filter, as they are dispatched, as server-sent events.

    event: message
    data: {"id":"019ab3c5...","topic":"orders/1","deliver_at":"...","late_ms":0,"qos":1,"payload":"x",...}

A stream reads the ring of dispatched messages (timeline/tail.py) every EVERY_S, so that dispatch does nothing
for it, and nothing is queued: a client that reads slowly finds later messages. What it missed, because it had
left the ring or a bound of one look was reached, is told as `skipped`, counted over all topics; a key that
does not see every message gets no count.

An event `progress` says how far a worker is with a message, to those who also see its group. These have a
ring of their own (server/delivery/progress.py), of which a look takes the last LOOK_EVENTS.

A look is one step of its client's turns (turns.py). The rights are those of a subscriber, looked at anew for
each message: the filter, the topic, the key; and its owner's right to send. A quiet stream is written a
comment every QUIET_S: only writing shows that the client is gone.
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

import msgspec
from aiohttp import web

from shards.fate import is_dropped
from shards.record import ENCODINGS
from timeline.filters import matcher
from timeline.tail import Tail

from ...delivery.message import Message
from ...delivery.owners import Owners
from ...delivery.payloads import Encoding, payload_view
from ...delivery.progress import Progress
from ...delivery.router import Router
from ...delivery.sent import Sent
from ...settings.times import time_text
from ..access import Rights, client_of, is_own, rights_of, sees
from ..calls import READ, Gives, described
from ..problems import Problem
from ..selection import check_selects
from ..streams import MEDIA, Streams, begin_events, ends_within
from ..turns import Turn, Turns
from ..values import shapes
from ..values.scalars import Filter

EVERY_S = 0.25
QUIET_S = 1.0
LOOK_MESSAGES = 2_000
"""Maximum messages of the ring in one look, ..."""
LOOK_EVENTS, LOOK_BYTES = 100, 256 << 10
"""... those of them that are sent, and their bytes; the last one may exceed them."""
PAYLOAD_BYTES = 1 << 10
"""A longer payload is cut."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, eq=False)
class TailRoutes:
    streams: Streams
    turns: Turns
    tail: Tail[Message]
    router: Router
    owners: Owners
    sent: Sent
    progress: Progress
    _: KW_ONLY
    node: int

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/tail", self.get, allow_head=False)]

    @described(
        "Messages as they are dispatched, as server-sent events",
        READ,
        Gives(
            200,
            str,
            media=MEDIA,
            description="events `message`, with TailMessage in JSON as data; `progress`; `skipped`",
        ),
        query={"topic": Filter},
        problems=("over-quota",),
    )
    async def get(self, request: web.Request) -> web.StreamResponse:
        topic = request.query.get("topic", "#")
        check_selects(topic)
        rights = rights_of(request)
        if not _may(rights, topic):
            raise Problem("forbidden", "The key may not subscribe to this filter.")
        with self.streams.slot(client_of(request)) as stopping:
            response = await begin_events(request)
            await response.write(b": open\n\n")
            turn, fits, count, quiet_s = self.turns.of(request), matcher(topic), self.tail.count, 0.0
            said = self.progress.ring.count
            while not await ends_within(stopping, EVERY_S):
                await turn.begin()
                if not _may(rights, topic):
                    break
                events, skipped, count = self._look(turn, count, rights, fits)
                if skipped:
                    skipped_messages = skipped if sees(request) is None else None
                    events.append(_event(b"skipped", {"messages": skipped_messages}))
                events += self._progressed(said, rights, fits)
                said = self.progress.ring.count
                quiet_s = 0.0 if events else quiet_s + EVERY_S
                if quiet_s >= QUIET_S:
                    events, quiet_s = [b":\n\n"], 0.0
                if events:
                    await response.write(b"".join(events))
            await response.write_eof()
            return response

    def _look(
        self, turn: Turn, count: int, rights: Rights | None, fits: Callable[[str], bool]
    ) -> tuple[list[bytes], int, int]:
        """Events of what came after the first `count` messages, how many were skipped, and up to where it has
        looked."""
        end = self.tail.count
        found = self.tail.since(max(count, end - LOOK_MESSAGES), LOOK_MESSAGES)
        skipped, events, size = end - len(found) - count, list[bytes](), 0
        for looked, message in enumerate(found, 1):
            if self._is_for(message, rights, fits):
                events.append(_event(b"message", self._view(message)))
                size += len(events[-1])
            if len(events) >= LOOK_EVENTS or size >= LOOK_BYTES or turn.is_over(looked):
                skipped += len(found) - looked
                break
        self.owners.take_cost()  # this turn's own, not dispatch's
        return events, skipped, end

    def _progressed(self, count: int, rights: Rights | None, fits: Callable[[str], bool]) -> Iterator[bytes]:
        """Events of what was said of progress since the first `count`. Reads each message, 10 us."""
        for said in self.progress.ring.since(max(count, self.progress.ring.count - LOOK_EVENTS), LOOK_EVENTS):
            message = self.sent.message(said.group, said.flight) if is_own(rights, said.group) else None
            if message is not None and self._is_visible(message, rights, fits):
                name = message.id_text(self.node) if message.is_stored else None
                whose = {"id": name, "topic": message.topic.decode(), "group": said.group.name}
                at, progress = time_text(said.at_ms), msgspec.Raw(said.value)
                yield _event(b"progress", {**whose, "at": at, "progress": progress})
        self.owners.take_cost()

    def _is_for(self, message: Message, rights: Rights | None, fits: Callable[[str], bool]) -> bool:
        """Whether a subscriber with these rights and this filter would get it."""
        is_sent = message.is_usual or not is_dropped(message.record, message.due_ms, message.as_of_ms)
        return is_sent and self._is_visible(message, rights, fits)

    def _is_visible(self, message: Message, rights: Rights | None, fits: Callable[[str], bool]) -> bool:
        topic = message.topic.decode()
        return (
            topic != ""
            and fits(topic)
            and (rights is None or rights.may_receive(message.topic))
            and not self.router.is_denied(topic)
            and self.owners.allow(message)
        )

    def _view(self, message: Message) -> shapes.TailMessage:
        payload = message.payload
        is_cut = len(payload) > PAYLOAD_BYTES
        as_is: Encoding = ENCODINGS[message.record.encoding]
        if is_cut and as_is == "json":
            as_is = "text"
        text, encoding = payload_view(_cut(payload, as_is), as_is)
        return shapes.TailMessage(
            id=message.id_text(self.node) if message.is_stored else None,
            topic=message.topic.decode(),
            deliver_at=time_text(message.due_ms),
            late_ms=message.late_ms,
            qos=message.qos,
            payload=text,
            encoding=encoding,
            payload_bytes=len(payload),
            is_cut=is_cut,
        )


def _cut(payload: bytes, encoding: Encoding) -> bytes:
    """At most PAYLOAD_BYTES of it; text ends with a whole character."""
    end = PAYLOAD_BYTES
    if len(payload) > end and encoding == "text":
        while end > PAYLOAD_BYTES - 3 and payload[end] & 0xC0 == 0x80:
            end -= 1
    return payload[:end]


def _may(rights: Rights | None, topic: str) -> bool:
    """Whether the key is still valid, has the scope, and may subscribe to the filter."""
    return rights is None or (rights.is_live and rights.principal.has(READ) and rights.may_subscribe(topic))


def _event(name: bytes, value: object) -> bytes:
    """An event with one line of data: a JSON payload is as it came, with line breaks between its tokens."""
    data = _encode(value).replace(b"\r", b" ").replace(b"\n", b" ")
    return b"event: " + name + b"\ndata: " + data + b"\n\n"
