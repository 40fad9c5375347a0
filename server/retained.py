"""Retained messages: the last one of each topic, sent to whoever subscribes.

A message becomes retained when the horizon passes it, that is when it fires: a side effect of dispatch,
written with the next group and idempotent (the later position wins), so that dispatching a stretch again
after a crash changes nothing. They live in the table `retained` by topic, not in RAM; what is not durable
yet, and `$SYS`, is laid over it.

Bound: `max_topics`; beyond it a new topic's message is delivered but not retained, counted and logged.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from heapq import merge

from shards import keys
from shards.commit import Commit
from shards.record import decode, encode
from shards.store import Store, Table
from timeline.filters import matches
from timeline.position import Position

from .logs import by
from .message import Message

log = logging.getLogger(__name__)

STEP_TOPICS = 2_000
"""Topics looked at in one step."""
STEP_BYTES = 16 << 20
TOPIC_END = b"\xff"
Submit = Callable[[Callable[[Commit], None], Callable[[bool], None]], None]


class Retained:
    """Topic -> last retained message."""

    def __init__(self, store: Store, wall_ms: Callable[[], int], *, max_topics: int) -> None:
        self._store = store
        self._wall_ms = wall_ms
        self._max_topics = max_topics
        self._fresh: dict[bytes, Message] = {}
        """Not durable yet; an empty payload: cleared."""
        self._unwritten: dict[bytes, Message] = {}
        """Of these, what no group has yet, or one that was lost."""
        self._volatile: dict[bytes, Message] = {}
        self.count = sum(1 for _ in store.scan(Table.RETAINED, b"", TOPIC_END))
        self.refused = 0

    def note(self, message: Message, submit: Submit) -> None:
        """A message with the retain flag has fired."""
        topic = message.record.topic
        last = self._position(topic)
        if last is not None and last >= message.position:
            return
        if message.record.payload and last is None:
            if self.count >= self._max_topics:
                self.refused += 1
                text = "not retained: %d topics are, as many as limits.retained"
                log.warning(text, self.count, extra=by("clients"))
                return
            self.count += 1
        elif not message.record.payload and last is not None:
            self.count -= 1
        self._fresh[topic] = message
        self._unwritten[topic] = message

        def written(is_durable: bool) -> None:
            if self._fresh.get(topic) is not message:
                return
            if is_durable:
                del self._fresh[topic]
            else:
                self._unwritten[topic] = message

        submit(self.write, written)

    def write(self, commit: Commit) -> None:
        """Put what is not written into the open group. Every group that is sealed has to have it: it says
        that the horizon has passed these messages."""
        unwritten, self._unwritten = self._unwritten, {}
        for topic, message in unwritten.items():
            commit.row(Table.RETAINED, topic, _value(message) if message.record.payload else None)

    def note_volatile(self, message: Message) -> None:
        """Kept in RAM only (`$SYS`)."""
        self._volatile[message.record.topic] = message

    def after(self, topic_filter: str, last: bytes) -> tuple[list[Message], bytes | None]:
        """What a filter matches behind topic `last`, in order, and the topic to go on from (None: done)."""
        prefix = _prefix(topic_filter)
        found: list[Message] = []
        now_ms = self._wall_ms()
        start = max(prefix, last + b"\0" if last else b"")
        for looked, (topic, message) in enumerate(self._merged(start, prefix + TOPIC_END), 1):
            if topic > last and matches(topic_filter, topic.decode()):
                kept = message or self._load(topic)
                if kept is not None and kept.record.payload and not kept.is_expired(now_ms):
                    found.append(kept)
            if looked >= STEP_TOPICS:
                return found, topic
        return found, None

    def find(self, place: Position) -> Message | None:
        """The retained message of a position: for sending it again when its row has expired."""
        for topic, value in self._store.scan(Table.RETAINED, b"", TOPIC_END):
            if keys.place_of(value[:12]) == place:
                return self._load(topic)
        return None

    def sweep(self, start: bytes, rows: int) -> tuple[list[bytes], bytes]:
        """Topics from `start` on whose stored message has expired, and where to go on (empty: at the end).

        Looks at so many rows at most, and at no more than STEP_BYTES of them.
        """
        now_ms = self._wall_ms()
        expired: list[bytes] = []
        size = 0
        for looked, (topic, value) in enumerate(self._store.scan(Table.RETAINED, start, TOPIC_END)):
            if looked >= rows or size >= STEP_BYTES:
                return expired, topic
            size += len(value)
            if self._stored(value).is_expired(now_ms):
                expired.append(topic)
        return expired, b""

    def drop_expired(self, commit: Commit, topics: Iterable[bytes]) -> int:
        """In the writer: delete the rows of those that are still expired; how many."""
        now_ms, dropped = self._wall_ms(), 0
        for topic in topics:
            value = self._store.get(Table.RETAINED, topic)
            if topic not in self._fresh and value is not None and self._stored(value).is_expired(now_ms):
                commit.row(Table.RETAINED, topic, None)
                dropped += 1
        return dropped

    def _merged(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, Message | None]]:
        """Topics in order, each once, with the message if it is in RAM."""
        over = {**self._volatile, **self._fresh}
        stored = (
            (topic, None) for topic, _ in self._store.scan(Table.RETAINED, start, end) if topic not in over
        )
        laid = ((topic, over[topic]) for topic in sorted(over) if start <= topic < end)
        yield from merge(stored, laid, key=lambda pair: pair[0])

    def _load(self, topic: bytes) -> Message | None:
        value = self._store.get(Table.RETAINED, topic)
        if value is None:
            return None
        return self._stored(value)

    def _stored(self, value: bytes) -> Message:
        place, shard = keys.place_of(value[:12]), int.from_bytes(value[12:14], "big")
        return Message(place, shard, decode(value[14:]), self._wall_ms())

    def _position(self, topic: bytes) -> Position | None:
        """Where the retained message of a topic stands; None if there is none."""
        fresh = self._fresh.get(topic)
        if fresh is not None:
            return fresh.position if fresh.record.payload else None
        value = self._store.get(Table.RETAINED, topic)
        return None if value is None else keys.place_of(value[:12])


def _value(message: Message) -> bytes:
    return keys.place(message.position) + max(message.shard, 0).to_bytes(2, "big") + encode(message.record)


def _prefix(topic_filter: str) -> bytes:
    """What every topic that the filter matches begins with."""
    for index, character in enumerate(topic_filter):
        if character in "+#":
            # `a/#` matches `a` too.
            return topic_filter[: max(index - 1, 0)].encode()
    return topic_filter.encode()
