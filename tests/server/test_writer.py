"""The writer by itself: what it bounds, and what one request can do to the others."""

from dataclasses import replace
from typing import Any

import pytest

from server.config import Config, Limits
from server.core import Core
from server.writer import Busy
from shards.commit import Commit, Draft
from shards.errors import StoreFailed
from shards.memory import MemoryStore
from shards.record import Record, encode
from tests.model.fakes import FakeClock

NOW_MS = 1_800_000_000_000
LIMITS = replace(Limits(), queued_bytes=1_000)


class Rig:
    """A core whose syncs end when the test says so."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.core = Core(replace(Config(), limits=LIMITS), FakeClock(NOW_MS), self.store, wake=lambda: None)
        self.writer = self.core.writer
        self.answers: list[tuple[str, Any]] = []

    def submit(self, name: str, decide: Any, size: int = 0, *, writes: bool = True) -> None:
        self.writer.submit(
            decide, lambda answer: self.answers.append((name, answer)), size=size, writes=writes
        )

    def put(self, name: str, size: int = 0) -> None:
        self.submit(name, lambda commit: put_one(commit, name), size)

    def sync(self) -> None:
        self.store.flush()
        self.writer.settle()


def put_one(commit: Commit, topic: str) -> object:
    due_ms = NOW_MS + 60_000
    return commit.put([Draft(due_ms, topic.encode(), encode(Record(topic.encode(), b"x", due_ms, 1)))])


class TestBytes:
    def test_count_until_the_answer_leaves(self) -> None:
        rig = Rig()
        rig.put("a", 600)
        rig.put("b", 300)
        assert rig.writer.queued_bytes == 900
        with pytest.raises(Busy):
            rig.put("c", 200)
        assert rig.writer.queued_bytes == 900
        assert rig.writer.queued == 2
        assert rig.writer.compose() is not None
        # Written, not yet synced: it is held all the same.
        with pytest.raises(Busy):
            rig.put("c", 200)
        rig.put("d", 100)
        rig.sync()
        assert [name for name, _ in rig.answers] == ["a", "b"]
        assert rig.writer.queued_bytes == 100
        assert rig.writer.compose() is not None
        rig.sync()
        assert rig.writer.queued_bytes == 0

    def test_one_is_let_in_however_large(self) -> None:
        rig = Rig()
        rig.put("a", 5_000)
        with pytest.raises(Busy):
            rig.put("b", 1)
        rig.put("c")  # the server's own, that hold nothing

    def test_what_is_on_its_way_counts_with_them(self) -> None:
        rig = Rig()
        rig.writer.enter(900)
        with pytest.raises(Busy):
            rig.put("a", 200)
        with pytest.raises(Busy):
            rig.writer.enter(101)
        rig.writer.leave(900)
        rig.put("a", 200)

    @pytest.mark.parametrize("composed", [0, 1])
    def test_are_free_again_after_a_failure(self, composed: int) -> None:
        rig = Rig()
        rig.put("a", 900)
        for _ in range(composed):
            rig.writer.compose()
        rig.writer.fail(StoreFailed("disk"))
        assert rig.writer.queued_bytes == 0
        assert [type(answer) for _, answer in rig.answers] == [StoreFailed]

    def test_are_free_when_the_answer_comes(self) -> None:
        """An answer makes a client go on at once: it must not be refused for its own last request."""
        rig = Rig()
        seen = []
        rig.writer.submit(lambda commit: None, lambda answer: seen.append(rig.writer.queued_bytes), size=999)
        rig.writer.compose()
        rig.sync()
        rig.writer.submit(
            lambda commit: None,
            lambda answer: seen.append(rig.writer.queued_bytes),
            size=999,
            writes=False,
        )
        assert rig.writer.compose() is None
        assert seen == [0, 0]
