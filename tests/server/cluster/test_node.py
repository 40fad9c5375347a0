"""What a node waits for, and what ends its waiting."""

import asyncio

import pytest

from server.cluster.node import _ends


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
