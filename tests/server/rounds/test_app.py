"""What a round does beside the group that it composes."""

import pytest

from server.rounds import app
from shards.commit import Commit, GroupCommit
from shards.store import Table

from ..conftest import Running

ROUNDS = 4


async def test_groups_that_take_long_hold_up_the_rest_for_one_round(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast disk has synced each one when the next is composed."""
    one, writer = server.app, server.app.core.writer
    read: list[float] = []

    def decide(commit: Commit) -> None:
        commit.row(Table.META, b"written", b"")

    def sync(_: GroupCommit) -> None:
        writer.settle()

    def read_on(began: float) -> bool:
        read.append(began)
        return False

    await one.quiet()
    monkeypatch.setattr(app, "ALONE_S", 0.0)
    monkeypatch.setattr(one, "_sync", sync)
    monkeypatch.setattr(one, "_read_on", read_on)
    for _ in range(ROUNDS):
        writer.submit(decide, lambda answer: None)
        one._turn()
    assert len(read) == ROUNDS // 2
