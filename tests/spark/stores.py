"""Store directories for the Spark tests: built by the server's own commit, without a server.

`Timeline` is an open RocksDB timeline with a wall clock that is an argument. It has what a pipeline meets:
late and cancelled and moved messages, several shards and structures, messages with headers and expiry.
"""

from pathlib import Path
from typing import Any

from shards.commit import Caps, Commit, Draft
from shards.deliveries import wait
from shards.draft import Outcome
from shards.fields import Record
from shards.record import decode, encode, is_stub
from shards.recover import Opened, open_timeline
from shards.rocks import RocksStore
from tests.support.delivery_rows import failed
from timeline.position import END, START, MessageId, Position, id_text
from timeline.slices import DAY_MS, Slice

NOW = 20_000 * DAY_MS
FAR = NOW + 100 * DAY_MS
"""In a slice of eight days."""
CAPS = Caps(messages=40, bytes=1 << 20, pending=1 << 40, structure_above=1 << 40)


class Timeline:
    """An open store in `path`; `wall_ms` is what the clock shows."""

    def __init__(self, path: Path, *, wall_ms: int = NOW, caps: Caps = CAPS) -> None:
        self.path = path
        self.wall_ms = wall_ms
        self.store = RocksStore(path)
        self.opened: Opened = open_timeline(
            self.store, wall_ms=wall_ms, node=0, max_slices=500, max_structures=50, caps=caps
        )

    def begin(self) -> Commit:
        self.opened.open_batch.begin(self.wall_ms)
        return self.opened.commit

    def sync(self) -> None:
        self.opened.open_batch.seal()
        self.store.flush()
        self.opened.close_group()

    def put(self, *records: Record) -> list[MessageId]:
        drafts = [Draft(one.due_ms, one.topic, encode(one), one.key) for one in records]
        found = self.begin().put(drafts)
        self.sync()
        return [one for one in found if isinstance(one, int)]

    def cancel(self, message: MessageId) -> None:
        assert self.begin().cancel(message).outcome is Outcome.DONE
        self.sync()

    def move(self, message: MessageId, due_ms: int) -> None:
        assert self.begin().move(message, due_ms).outcome is Outcome.DONE
        self.sync()

    def retry(self, message: MessageId, due_ms: int) -> None:
        """The message once more, for one session alone."""
        found = self.opened.reader.find(message)
        assert found is not None
        commit = self.begin()
        wait(commit, failed(found.position, found.value, id=message, attempts=3), due_ms, is_owed=True)
        self.sync()

    def dispatch(self, wall_ms: int, late_ms: int = 0) -> None:
        """Let the clock go on to `wall_ms` and the horizon after it, in one turn that was `late_ms` late."""
        self.wall_ms = wall_ms + late_ms
        horizon = self.opened.horizon
        # The bound has to be written before dispatch may go up to it.
        self.begin()
        self.sync()
        rows = list(self.opened.reader.read(Position(horizon.position + 1), Position(wall_ms + 1 << 48)))
        commit = self.begin()
        if rows:
            horizon.advance(rows[-1][0])
            commit.open_batch.dispatched([(rows[-1][0], self.wall_ms)])
        horizon.advance(max(horizon.position, Position(wall_ms << 48)))
        self.sync()

    def checkpoint(self, path: Path) -> str:
        self.store.checkpoint(path)
        return path.as_uri()

    def piece(self, at_ms: int) -> Slice:
        found = self.opened.directory.find(at_ms)
        assert found is not None
        return found

    def rows(self, piece: Slice) -> dict[tuple[int, int], bytes]:
        """By (shard number, place)."""
        start, end = Position(piece.start_ms << 48), Position(piece.end_ms << 48)
        return {(number, place): value for place, number, value in self.opened.reader.read(start, end)}

    def messages(self) -> dict[str, Record]:
        """Every row that is no stub of a move, by the message's id."""
        found = {}
        for place, number, value in self.opened.reader.read(START, END):
            record = decode(value)
            row = place >> 48 << 80 | number << 64 | place & 0xFFFF_FFFF_FFFF
            if not (is_stub(value) and record.stub & 0x1000):
                found[id_text(MessageId(record.id or row))] = record
        return found

    def close(self) -> None:
        self.store.close()


def record(due_ms: int, text: str = "x", topic: str = "a/b", **more: Any) -> Record:
    return Record(topic.encode(), text.encode(), due_ms, **more)


def descriptor(timeline: Timeline, piece: Slice, checkpoint: str, parts: int | None = None) -> dict[str, Any]:
    """A split job as the server describes it."""
    return {
        "id": "j1",
        "kind": "split",
        "state": "planning",
        "token": "t",
        "node": 0,
        "checkpoint": checkpoint,
        "parts": parts,
        "split_above": 50,
        "slice": slice_body(piece),
    }


def slice_body(piece: Slice) -> dict[str, Any]:
    return {
        "start_ms": piece.start_ms,
        "end_ms": piece.end_ms,
        "generation": piece.generation,
        "count": piece.count,
        "live": piece.live,
        "sources": [
            {
                "start_ms": shard.home.start_ms,
                "generation": shard.home.generation,
                "shard": shard.number,
                "structure": shard.structure,
                "count": shard.count,
                "live": shard.live,
            }
            for shard in piece.readable()
        ],
    }
