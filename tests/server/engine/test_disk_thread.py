"""The thread that waits for the disk."""

import asyncio
from threading import Event, get_ident

from server.engine.disk_thread import DiskThread, Ended


def told(into: "asyncio.Queue[Exception | None]") -> Ended:
    return into.put_nowait


async def test_what_it_is_given_is_done_elsewhere_and_in_its_order() -> None:
    loop, disk, order = asyncio.get_running_loop(), DiskThread(), []
    ends: asyncio.Queue[Exception | None] = asyncio.Queue()
    for number in range(3):
        disk.run(loop, lambda number=number: order.append((number, get_ident())), told(ends))  # type: ignore[misc]
    assert [await ends.get() for _ in range(3)] == [None] * 3
    assert [number for number, _ in order] == [0, 1, 2]
    assert {thread for _, thread in order}.isdisjoint({get_ident()})
    disk.stop()


class Fault(BaseException):
    """As the engine's binding raises them."""


async def test_a_failure_is_told_and_the_next_one_is_done() -> None:
    loop, disk = asyncio.get_running_loop(), DiskThread()
    ends: asyncio.Queue[Exception | None] = asyncio.Queue()
    returned, raised = OSError("returned"), OSError("raised")

    def fail() -> None:
        raise raised

    def break_off() -> None:
        raise Fault("deep")

    disk.run(loop, lambda: returned, told(ends))
    disk.run(loop, fail, told(ends))
    disk.run(loop, break_off, told(ends))
    disk.run(loop, lambda: None, told(ends))
    assert await ends.get() is returned
    assert await ends.get() is raised
    assert "deep" in str(await ends.get())
    assert await ends.get() is None
    disk.stop()


async def test_at_the_stop_all_that_it_was_given_is_done() -> None:
    loop, disk, done, go_on = asyncio.get_running_loop(), DiskThread(), [], Event()
    disk.stop()  # nothing has been begun: nothing to end
    disk.run(loop, lambda: None if go_on.wait(60) else TimeoutError(), lambda failure: None)
    for number in range(3):
        disk.run(loop, lambda number=number: done.append(number), lambda failure: None)  # type: ignore[misc]
    go_on.set()
    disk.stop()
    assert done == [0, 1, 2]


def test_a_loop_that_is_closed_is_told_nothing() -> None:
    loop, disk, done = asyncio.new_event_loop(), DiskThread(), []
    loop.close()
    disk.run(loop, lambda: done.append("first"), lambda failure: None)
    disk.run(loop, lambda: done.append("second"), lambda failure: None)
    disk.stop()
    assert done == ["first", "second"]
