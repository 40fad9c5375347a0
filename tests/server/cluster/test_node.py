"""What a node waits for, and what ends its waiting."""

import asyncio
from pathlib import Path

import pytest

from server.cluster import node
from server.cluster.node import Node, _ends
from server.settings.reading import load
from shards.log.errors import Unfit


async def test_a_copy_is_given_up_when_the_node_stops() -> None:
    stopping, is_cut = asyncio.Event(), False

    async def endless() -> None:
        nonlocal is_cut
        try:
            await asyncio.Event().wait()
        finally:
            is_cut = True

    waiting = asyncio.ensure_future(_ends(endless(), before=stopping))
    await asyncio.sleep(0)
    assert not waiting.done()
    stopping.set()
    assert not await waiting
    assert is_cut


async def test_what_ends_before_is_what_counts() -> None:
    stopping = asyncio.Event()
    assert await _ends(asyncio.sleep(0), before=stopping)

    async def failing() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        await _ends(failing(), before=stopping)


async def test_a_log_that_is_not_fit_any_more_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby was promoted that has none of its own yet: the node says so, and goes on trying."""
    config, _ = load(
        None,
        {},
        {
            "store.dir": str(tmp_path),
            "cluster.log": "postgresql://a/b",
            "cluster.node": "a",
            "cluster.key": "0123456789abcdef",
        },
    )
    tries = 0

    def unfit(*_: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            made.stopping.set()
        raise Unfit("no synchronous standbys")

    monkeypatch.setattr(node, "open_store", unfit)
    monkeypatch.setattr(node, "AGAIN_S", 0.0)
    made = Node(config, None, None)
    await made._live(None)
    assert tries == 2
    assert made.view()["why"] == "no synchronous standbys"
    await made._listeners.stop()
