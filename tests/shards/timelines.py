"""A store's timeline for tests: opened on a store in RAM, with a wall clock that is an argument."""

from collections.abc import Iterator
from contextlib import contextmanager

from shards.commit import Caps, Commit, Draft
from shards.fields import Record
from shards.group_commit import GroupCommit
from shards.read import Found
from shards.record import decode, encode
from shards.recover import Opened, open_timeline
from tests.support.memory_store import MemoryStore
from timeline.position import START, MessageId, Position
from timeline.slices import DAY_MS, NARROWEST_MS, Slice

NOW = 20_000 * DAY_MS
QUARTER = NARROWEST_MS
CAPS = Caps(messages=3, bytes=1 << 20, pending=100, structure_above=1_000)


def open_at(store: MemoryStore, wall_ms: int = NOW, *, caps: Caps = CAPS, max_slices: int = 50) -> Opened:
    return open_timeline(store, wall_ms=wall_ms, node=5, max_slices=max_slices, max_structures=20, caps=caps)


def draft(
    due_ms: int, text: str = "x", topic: str = "a/b", key: bytes = b"", fingerprint: bytes = b""
) -> Draft:
    record = Record(topic.encode(), text.encode(), due_ms, key=key)
    return Draft(due_ms, record.topic, encode(record), key, fingerprint or key)


def put(opened: Opened, *drafts: Draft, wall_ms: int = NOW) -> list[MessageId]:
    """In a group of its own, durable."""
    commit = opened.commit
    commit.open_batch.begin(wall_ms)
    ids = [answer for answer in commit.put(drafts) if not hasattr(answer, "due_ms")]
    sync(opened, commit.open_batch.seal())
    return ids


def sync(opened: Opened, group: GroupCommit) -> GroupCommit:
    opened.store.flush()
    opened.close_group()
    return group


def texts(opened: Opened, start: Position = START, end: Position | None = None) -> list[str]:
    """The payloads on the timeline in order; `-` for a stub."""
    rows = opened.reader.read(start, end if end is not None else Position((1 << 96) - 1))
    return [decode(value).payload.decode() or "-" for _, _, value in rows]


def group(opened: Opened, wall_ms: int = NOW) -> Commit:
    opened.open_batch.begin(wall_ms)
    return opened.commit


@contextmanager
def written(opened: Opened, wall_ms: int = NOW) -> Iterator[Commit]:
    """A group, durable at the end."""
    yield group(opened, wall_ms)
    sync(opened, opened.open_batch.seal())


def found_in(opened: Opened, name: MessageId) -> Found:
    """A message that is there."""
    found = opened.reader.find(name)
    assert found is not None
    return found


def piece_at(opened: Opened, at_ms: int) -> Slice:
    """The slice of that time, which is there."""
    piece = opened.directory.find(at_ms)
    assert piece is not None
    return piece
