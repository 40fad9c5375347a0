"""Long calls: one step in a turn of the loop, and clients, not calls, take turns."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web

from server.http.turns import LOOK_EVERY, STEP_S, Lock, Turn, Turns


class Watch:
    """A clock whose monotonic time is set."""

    now_s = 0.0

    def mono(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    def until(self, at_ms: int) -> float:
        return 0.0


def request(remote: str) -> web.Request:
    asked: Any = {}
    return cast("web.Request", SimpleNamespace(remote=remote, protocol=None, get=asked.get))


async def steps(turn: Turn, count: int, name: str, done: list[str]) -> None:
    for _ in range(count):
        await turn.begin()
        done.append(name)


async def test_clients_take_turns_and_not_calls() -> None:
    turns, done = Turns(Watch(), max_bytes=1), list[str]()
    flood = [steps(turns.of(request("10.0.0.1")), 3, "flood", done) for _ in range(50)]
    others = [steps(turns.of(request(f"10.0.1.{n}")), 3, f"other {n}", done) for n in range(4)]
    await asyncio.gather(*flood, *others)
    assert Counter(done)["flood"] == 150
    # Each round serves the flood once and everybody else once.
    assert Counter(done[: 3 * 5 + 1]) == {"flood": 4, **{f"other {n}": 3 for n in range(4)}}


async def test_one_step_in_a_turn_of_the_loop() -> None:
    turns, done = Turns(Watch(), max_bytes=1), list[str]()
    calls = [asyncio.create_task(steps(turns.of(request(f"::{n:x}")), 5, "", done)) for n in range(20)]
    most = before = 0
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        most, before = max(most, len(done) - before), len(done)
    assert len(done) == 100
    assert most == 1


async def test_who_is_alone_waits_for_nobody() -> None:
    turn = Turns(Watch(), max_bytes=1).of(request("10.0.0.1"))
    waited = turn.begin()
    try:
        waited.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


async def test_who_is_given_up_takes_no_turn() -> None:
    turns, done = Turns(Watch(), max_bytes=1), list[str]()
    calls = [
        asyncio.create_task(steps(turns.of(request("10.0.0.1")), 1, str(number), done)) for number in range(4)
    ]
    await asyncio.sleep(0)
    calls[1].cancel()
    calls[2].cancel()
    await asyncio.wait(calls)
    assert done == ["0", "3"]
    await steps(turns.of(request("10.0.0.1")), 2, "later", done)
    assert done[2:] == ["later", "later"]


async def test_a_step_is_over_by_the_clock_when_it_is_looked_at() -> None:
    clock = Watch()
    turn = Turns(clock, max_bytes=1).of(request("10.0.0.1"))
    await turn.begin()
    assert not turn.is_over(LOOK_EVERY)
    clock.now_s += STEP_S
    assert not turn.is_over(LOOK_EVERY + 1)
    assert turn.is_over(2 * LOOK_EVERY)
    await turn.begin()
    assert not turn.is_over(LOOK_EVERY)


async def test_hosts_of_one_network_of_ipv6_are_one_client() -> None:
    turns, done = Turns(Watch(), max_bytes=1), list[str]()
    flood = [steps(turns.of(request(f"2001:db8::{n + 1:x}")), 2, "flood", done) for n in range(10)]
    other = steps(turns.of(request("2001:db8:1::1")), 2, "other", done)
    await asyncio.gather(*flood, other)
    assert done[:5].count("other") == 2


async def test_what_calls_gather_is_counted_until_it_is_given() -> None:
    turns = Turns(Watch(), max_bytes=100)
    one, other = turns.of(request("10.0.0.1")), turns.of(request("10.0.0.2"))
    assert one.keep(60)
    assert other.keep(40)
    assert not one.keep(1)
    other.release()
    assert not one.keep(1)
    one.release()
    one.release()
    assert turns.kept_bytes == 0
    assert one.keep(100)


async def test_who_gathers_without_end_leaves_half_to_the_others() -> None:
    turns = Turns(Watch(), max_bytes=100)
    flood = [turns.of(request("10.0.0.1")) for _ in range(20)]
    assert [turn.keep(10) for turn in flood] == [True] * 5 + [False] * 15
    for turn in flood[5:]:
        turn.release()
    other = turns.of(request("10.0.0.2"))
    assert other.keep(10)
    assert other.keep(10)


async def test_who_finds_no_room_waits_and_the_others_do_not() -> None:
    turns, entered, ends = Turns(Watch(), max_bytes=100), list[str](), dict[str, asyncio.Event]()

    async def gather(name: str, remote: str, size: int) -> None:
        end = ends[name] = asyncio.Event()
        async with turns.of(request(remote)).room(size):
            entered.append(name)
            await end.wait()

    async with asyncio.TaskGroup() as calls:
        flood = [calls.create_task(gather(f"flood {n}", "10.0.0.1", 20)) for n in range(10)]
        await asyncio.sleep(0)
        assert entered == ["flood 0", "flood 1", "flood 2"]
        calls.create_task(gather("other", "10.0.0.2", 20))
        await asyncio.sleep(0)
        assert entered.pop() == "other"
        flood[3].cancel()
        ends["other"].set()
        ends["flood 0"].set()
        while len(entered) < 4:
            await asyncio.sleep(0)
        assert entered.pop() == "flood 4"
        assert turns.kept_bytes == 60
        flood[5].cancel()
        for end in ends.values():
            end.set()
    assert turns.kept_bytes == 0
    assert entered == [f"flood {n}" for n in (0, 1, 2, 6, 7, 8, 9)]
    async with turns.of(request("10.0.0.1")).room(1_000):  # nobody holds anything: however much
        assert turns.kept_bytes == 1_000


async def test_a_call_that_is_given_up_takes_no_room_with_it() -> None:
    """Also one that is let in and given up at the same moment."""
    turns, lock = Turns(Watch(), max_bytes=100), Lock()

    async def gather() -> None:
        turn = turns.of(request("10.0.0.1"))
        async with turn.room(100), turn.alone(lock):
            pass

    first, second, third = (turns.of(request("10.0.0.1")) for _ in range(3))
    async with first.room(100):
        call = asyncio.create_task(gather())
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    assert turns.kept_bytes == 0
    async with second.alone(lock):
        call = asyncio.create_task(gather())
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    async with asyncio.timeout(30), third.alone(lock):
        pass


async def test_clients_take_turns_at_a_lock_too() -> None:
    turns, lock, held = Turns(Watch(), max_bytes=1), Lock(), list[str]()

    async def hold(name: str, remote: str) -> None:
        async with turns.of(request(remote)).alone(lock):
            held.append(name)
            await asyncio.sleep(0)

    flood = [hold("flood", "10.0.0.1") for _ in range(20)]
    await asyncio.gather(*flood, hold("other", "10.0.0.2"))
    assert held.index("other") <= 2
    assert len(held) == 21
