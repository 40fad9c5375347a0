"""Retained messages: the last one of each topic, sent to new subscribers.

A message becomes retained when the horizon passes it. That is a side effect of dispatch, written with the
next batch and idempotent (the later position wins), so dispatching again after a crash changes nothing. The
table `retained` holds them by topic, not RAM; what is not durable yet, and `$SYS`, is laid over it. A second
row for each message tells its topic by position, for a message whose row on the timeline has expired.

A new subscription walks the table (`walk`), a stretch at a time: rows are looked at one by one and loaded
only when there is room for them (replay.py).

Bounds: `share`, in topics, by the owner of their messages. A publish to a new topic beyond it is refused
before it is accepted (`refusal`), so that no client is told that a message is kept that is not. An accepted
one has its place kept until it fires. A message that fires without a place (delayed, a will, of a schedule)
is delivered but not retained, counted and logged. Of messages that are not durable yet FRESH_BYTES: beyond
these dispatch waits for the running batch (`is_full`). While no batch can be written, dispatch goes on, and
what comes then is not retained.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from heapq import merge
from operator import itemgetter

from sortedcontainers import SortedDict

from shards import keys
from shards.commit import Commit
from shards.errors import Corrupt, StoreFailed
from shards.record import encode, owner_of
from shards.store import Store, Table
from shards.tables import META_RETAINED
from shards.unreadable import readable
from timeline.filters import matcher
from timeline.position import Position

from ..engine.commit_hook import CommitHook, Done
from ..engine.writer import Busy, Writer
from ..fair import Share
from ..observe.logs import by
from .message import Message

log = logging.getLogger(__name__)

STEP_BYTES = 16 << 20
FRESH_BYTES = 32 << 20
"""RAM for messages that are not durable yet, bytes; a slow disk syncs as much in a second."""
PROMISE_MS = 60_000
"""How long a place is kept for an accepted message, which fires with one of the next turns."""
INDEX_ROWS = 1_000
INDEX_BYTES = 1 << 20
"""Maximum bytes of topics in a batch of index rows."""
TOPIC_END = b"\xff"
"""Behind every topic, which is UTF-8, and before the rows by position."""
Kept = bytes | Message
"""A retained message as it lies: the row's value, or what is in RAM."""


class Retained(CommitHook):
    """Topic -> last retained message."""

    def __init__(self, store: Store, wall_ms: Callable[[], int], writer: Writer, *, share: Share) -> None:
        """`share`: of how many topics may have one, empty."""
        self._store = store
        self._wall_ms = wall_ms
        self._writer = writer
        self._share = share
        """Noted when it is decided, so counted again when a batch was lost."""
        self._promised: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        """Topic of a message that was taken and has not fired -> its owner, and when the place ends."""
        self._fresh: SortedDict[bytes, Message] = SortedDict()
        """Not durable yet; an empty payload: cleared."""
        self._unwritten: dict[bytes, Message] = {}
        """Messages of `_fresh` that are in no batch, or in one that was lost. They go with the next batch."""
        self.fresh_bytes = 0
        self._unstored: dict[bytes, Message] = {}
        self.refused = 0
        if store.get(Table.META, META_RETAINED) is None:
            with suppress(StoreFailed):
                self._index()
        self.recount()
        writer.add_hook(self)

    @property
    def count(self) -> int:
        """Number of topics with a retained message."""
        return self._share.taken - len(self._promised)

    @property
    def is_full(self) -> bool:
        """No more may become retained before a batch is durable, and that one is under way."""
        return self.fresh_bytes >= FRESH_BYTES and self._writer.broken is None

    def recover(self) -> None:
        """After a failed batch: write again all that is not durable."""
        self._unwritten = dict(self._fresh)
        self.recount()

    def recount(self) -> None:
        """Count the retained messages: the stored ones, changed by those that are not durable yet."""
        self._share.clear()
        for topic, value in readable(self._store, Table.RETAINED, b"", TOPIC_END):
            if topic not in self._fresh:
                self._share.add(_owner(value))
        for message in self._fresh.values():
            if message.record.payload:
                self._share.add(message.record.owner.decode())
        for owner, _ in self._promised.values():
            self._share.add(owner)

    def refusal(self, topic: bytes, owner: str) -> str:
        """Why a message of that owner to the topic, for now, cannot become retained; empty: it can, and its
        place is kept for PROMISE_MS. A refusal is counted."""
        now_ms = self._wall_ms()
        while self._promised:
            first = next(iter(self._promised))
            promised, until_ms = self._promised[first]
            if until_ms > now_ms:
                break
            del self._promised[first]
            self._share.add(promised, -1)
        try:
            if topic in self._promised or self._current(topic) is not None:
                return ""
        except (Corrupt, StoreFailed):
            return ""  # told when it fires
        why = self._share.refusal(owner)
        if why:
            self.refused += 1
            return why
        self._promised[topic] = owner, now_ms + PROMISE_MS
        self._share.add(owner)
        return ""

    def note(self, message: Message) -> None:
        """A message with the retain flag has fired. Raises Corrupt if the former one is unreadable."""
        topic, owner = message.record.topic, message.record.owner.decode()
        try:
            last = self._current(topic)
        except StoreFailed:
            last = None  # the batch that writes this one asks again, and fails if it must
        if last is not None and last[0] >= message.position:
            return
        promised = self._promised.pop(topic, None)
        if promised is not None:
            self._share.add(promised[0], -1)
        before = self._fresh.get(topic)
        more = message.size() - (0 if before is None else before.size())
        if more > 0 and self.fresh_bytes >= FRESH_BYTES and self._writer.broken is not None:
            self.refused += 1
            text = "retained message not stored: the store takes no writes and %d bytes wait"
            log.warning(text, self.fresh_bytes, extra=by("clients"))
            return
        if message.record.payload and last is None:
            why = "" if promised is not None else self._share.refusal(owner)
            if why:
                self.refused += 1
                log.warning("retained message not stored: %s", why, extra=by("clients"))
                return
        if last is not None:
            self._share.add(last[1], -1)
        if message.record.payload:
            self._share.add(owner)
        self.fresh_bytes += more
        self._fresh[topic] = message
        self._unwritten[topic] = message
        try:
            # For the sake of a batch: each takes along what is fresh.
            self._writer.submit(lambda commit: None, lambda answer: None)
        except (Busy, StoreFailed) as error:
            log.warning("retained message: stored later: %s", error, extra=by("clients"))

    def write(self, commit: Commit) -> Done | None:
        """Put all that is not written into a batch that is about to be sealed. Every batch must have it, as
        it says that the horizon has passed these messages."""
        if not self._unwritten:
            return None
        unwritten, self._unwritten = self._unwritten, {}
        for topic, message in unwritten.items():
            before = _if_readable(commit, topic)
            if before is not None:
                commit.row(Table.RETAINED, _at(before), None)
            if message.record.payload:
                commit.row(Table.RETAINED, topic, _value(message))
                commit.row(Table.RETAINED, keys.retained_at(message.position), topic)
            else:
                commit.row(Table.RETAINED, topic, None)

        def done(answer: object) -> None:
            if isinstance(answer, Exception):
                return  # `recover` comes
            for topic, message in unwritten.items():
                if self._fresh.get(topic) is message:
                    del self._fresh[topic]
                    self.fresh_bytes -= message.size()
                if self._unwritten.get(topic) is message:
                    del self._unwritten[topic]

        return done

    def note_volatile(self, message: Message) -> None:
        """Keep a message in RAM only (`$SYS`)."""
        self._unstored[message.record.topic] = message

    def walk(
        self, topic_filter: str, last: bytes, upto: Position
    ) -> Iterator[tuple[bytes, int, Kept | None]]:
        """What is retained behind topic `last` where the filter may match: (topic, bytes, what is kept).

        None for a topic that does not match, and for a message later than `upto`, which comes live; `$SYS` is
        given whatever its position. `load` makes a message of what is kept. To be used up at once: what is
        written meanwhile may not be seen.
        """
        fits = matcher(topic_filter)
        start, end = _range(topic_filter)
        for topic, kept in self._merged(max(start, last + b"\0" if last else b""), end):
            if isinstance(kept, Message):
                size, place = kept.size(), kept.position if kept.is_stored else upto
            else:
                size, place = len(kept), keys.place_of(kept[:12])
            yield topic, size, kept if place <= upto and fits(topic.decode()) else None

    def load(self, kept: Kept) -> Message | None:
        """The message, unless it is cleared or expired."""
        message = kept if isinstance(kept, Message) else self._stored(kept)
        return message if message.record.payload and not message.is_expired(self._wall_ms()) else None

    def find(self, place: Position) -> Message | None:
        """The retained message of a position: for sending it again when its row has expired."""
        topic = self._store.get(Table.RETAINED, keys.retained_at(place))
        value = None if topic is None else self._store.get(Table.RETAINED, topic)
        return self._stored(value) if value is not None and keys.place_of(value[:12]) == place else None

    def sweep(self, start: bytes, rows: int) -> tuple[list[bytes], bytes]:
        """Topics from `start` on whose stored message has expired, and where to go on (empty: at the end).
        Bounded in rows and STEP_BYTES."""
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
        """In the writer: delete the rows of those that are still expired, they count no more; how many."""
        now_ms, dropped = self._wall_ms(), 0
        for topic in topics:
            value = self._store.get(Table.RETAINED, topic)
            if topic not in self._fresh and value is not None and self._stored(value).is_expired(now_ms):
                commit.row(Table.RETAINED, topic, None)
                commit.row(Table.RETAINED, _at(value), None)
                self._share.add(_owner(value), -1)
                dropped += 1
        return dropped

    def _merged(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, Kept]]:
        """Topics in order, each once, with what is kept of it: in RAM before what is stored."""
        volatile = sorted(topic for topic in self._unstored if start <= topic < end)
        laid: list[Iterator[tuple[bytes, int, Kept]]] = [
            ((topic, 0, self._fresh[topic]) for topic in self._fresh.irange(start, end, (True, False))),
            ((topic, 1, self._unstored[topic]) for topic in volatile),
            ((topic, 2, value) for topic, value in self._store.scan(Table.RETAINED, start, end)),
        ]
        before = None
        for topic, _, kept in merge(*laid, key=itemgetter(0, 1)):
            if topic != before:
                before = topic
                yield topic, kept

    def _index(self) -> None:
        """Write the rows by position of a store that has none yet."""
        batch, size = self._store.batch(), 0
        for topic, value in self._store.scan(Table.RETAINED, b"", TOPIC_END):
            batch.put(Table.RETAINED, _at(value), topic)
            size += len(topic)
            if len(batch) >= INDEX_ROWS or size >= INDEX_BYTES:
                self._store.write(batch)
                self._store.flush()  # what waits for a sync may wait in RAM
                batch, size = self._store.batch(), 0
        batch.put(Table.META, META_RETAINED, b"")
        self._store.write(batch)

    def _stored(self, value: bytes) -> Message:
        place, shard = keys.place_of(value[:12]), int.from_bytes(value[12:14], "big")
        return Message(place, shard, None, self._wall_ms(), value[14:])

    def _current(self, topic: bytes) -> tuple[Position, str] | None:
        """Where the retained message of a topic stands, and its owner; None if there is none."""
        fresh = self._fresh.get(topic)
        if fresh is not None:
            return (fresh.position, fresh.record.owner.decode()) if fresh.record.payload else None
        value = self._store.get(Table.RETAINED, topic)
        return None if value is None else (keys.place_of(value[:12]), _owner(value))


def _if_readable(commit: Commit, topic: bytes) -> bytes | None:
    try:
        return commit.get(Table.RETAINED, topic)
    except Corrupt as error:
        log.error("retained message: the stored one is unreadable and is overwritten: %s", error)
        return None


def _owner(value: bytes) -> str:
    """Whose the message of a row is; nobody's if the row is damaged."""
    try:
        return owner_of(value[14:]).decode(errors="replace")
    except IndexError:
        return ""


def _at(value: bytes) -> bytes:
    """The key by position of a row."""
    return keys.retained_at(keys.place_of(value[:12]))


def _value(message: Message) -> bytes:
    return keys.place(message.position) + max(message.shard, 0).to_bytes(2, "big") + encode(message.record)


def _range(topic_filter: str) -> tuple[bytes, bytes]:
    """[start, end) of the topics that the filter can match."""
    for index, character in enumerate(topic_filter):
        if character in "+#":
            # `a/#` matches `a` too.
            prefix = topic_filter[: max(index - 1, 0)].encode()
            return prefix, prefix + TOPIC_END
    return topic_filter.encode(), topic_filter.encode() + b"\0"
