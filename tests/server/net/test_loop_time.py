"""The loop's time: who has a turn when, and connections that wait for theirs."""

import asyncio
from functools import partial
from typing import Any, cast

import pytest

from server.fair import Part
from server.net.loop_time import KEY, SHARED, SHARED_S, SMALL, LoopTime, Paced
from server.net.opening import Opening


class Time:
    """Monotonic time that work takes."""

    def __init__(self) -> None:
        self.now_s = 1.0

    def mono(self) -> float:
        return self.now_s


class Connection(Opening):
    """Takes `cost_s` for each chunk, and writes down what it is told."""

    def __init__(self, time: Time, owner: str, cost_s: float = 0.0011) -> None:
        self.owner = owner
        self.told: list[object] = []
        self.unread = 0
        self._time = time
        self._cost_s = cost_s

    def data_received(self, data: bytes) -> None:
        self._time.now_s += self._cost_s
        self.told.append(data)

    def eof_received(self) -> None:
        self.told.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")

    def keep_unread(self, count: int) -> None:
        self.unread = count


class Socket:
    """A transport that is read or not."""

    def __init__(self) -> None:
        self.reads = True
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_extra_info(self, name: str) -> object:
        return None


class Faulty(Connection):
    """Fails when it is told something."""

    def data_received(self, data: bytes) -> None:
        raise ValueError(data)


def paced(inner: Opening, loop_time: LoopTime) -> tuple[Paced, Socket]:
    connection, sock = Paced(inner, loop_time), Socket()
    connection.connection_made(cast("Any", sock))
    return connection, sock


def use_up(time: Time, loop_time: LoopTime, owner: str = "10.0.0.1") -> None:
    """The owner works for a second."""
    began_s = loop_time.begin(owner)
    time.now_s += 1.0
    loop_time.end(began_s)


async def turn() -> None:
    await asyncio.sleep(0)


async def test_one_owner_may_use_a_turn_and_another_has_the_reserve() -> None:
    time = Time()
    loop_time = LoopTime(time.mono, Part())
    floods = [Connection(time, "10.0.0.1") for _ in range(20)]
    links = [paced(one, loop_time) for one in floods]
    honest = Connection(time, KEY + "honest")
    other, _ = paced(honest, loop_time)
    for link, _ in links:
        link.data_received(b"x" * 2000)
    other.data_received(b"ping")
    assert [len(one.told) for one in floods] == [1] * 5 + [0] * 15
    assert honest.told == [b"ping"], "in the same turn"
    other.data_received(b"pong")
    assert honest.told == [b"ping"], "it has worked in this turn"
    assert floods[5].unread == 2000
    assert [sock.reads for _, sock in links] == [True] * 5 + [False] * 15
    await turn()
    assert honest.told == [b"ping", b"pong"], "before most of those that came before it"
    assert sum(len(one.told) for one in floods) == 5 + 4
    while any(not one.told for one in floods):
        await turn()
    assert [one.told for one in floods] == [[b"x" * 2000]] * 20
    assert all(sock.reads for _, sock in links)
    assert all(one.unread == 0 for one in floods)


async def test_the_length_of_a_turn_is_that_of_all_its_work() -> None:
    time, told = Time(), list[float]()
    loop_time = LoopTime(time.mono, Part(), told.append)
    connection, _ = paced(Connection(time, "10.0.0.1"), loop_time)
    connection.data_received(b"ping")
    time.now_s += 0.25  # what it has caused
    await turn()
    assert told == [pytest.approx(0.2511)]
    await turn()
    await turn()
    told.clear()
    time.now_s += 60  # nothing to do
    loop_time.enter()
    time.now_s += 0.5
    await turn()
    assert told == [0.5]


async def test_a_small_chunk_waits_without_stopping_its_socket_and_a_second_one_stops_it() -> None:
    time = Time()
    loop_time = LoopTime(time.mono, Part())
    inner = Connection(time, "10.0.0.1")
    connection, sock = paced(inner, loop_time)
    use_up(time, loop_time)
    connection.data_received(b"a" * SMALL)
    assert sock.reads
    assert inner.unread == 0
    connection.data_received(b"b")
    assert not sock.reads
    assert inner.unread == SMALL + 1
    await turn()
    assert inner.told == [b"a" * SMALL + b"b"]
    assert sock.reads
    assert inner.unread == 0


async def test_owners_take_turns_not_connections_and_strangers_with_keys() -> None:
    time, order = Time(), list[str]()
    loop_time = LoopTime(time.mono, Part())
    use_up(time, loop_time)

    def work(name: str) -> None:
        time.now_s += 0.001
        order.append(name)

    for owner in (*["10.0.0.1"] * 3, "10.0.0.2", KEY + "a", KEY + "a", KEY + "b"):
        loop_time.wait(owner, lambda owner=owner: work(owner))  # type: ignore[misc]
    await turn()
    await turn()
    await turn()
    assert order == [KEY + "a", "10.0.0.1", KEY + "b", "10.0.0.2", KEY + "a", "10.0.0.1", "10.0.0.1"]


async def test_strangers_have_their_turns_when_one_work_takes_all_the_time_of_a_turn() -> None:
    time, order = Time(), list[str]()
    loop_time = LoopTime(time.mono, Part())

    def work(owner: str) -> None:
        time.now_s += 0.006
        order.append(owner)
        loop_time.wait(owner, partial(work, owner))

    for owner in (KEY + "a", KEY + "b", "10.0.0.1"):
        loop_time.wait(owner, partial(work, owner))
    for _ in range(8):
        await turn()
    assert order == [KEY + "a", "10.0.0.1", KEY + "b", "10.0.0.1"] * 2


@pytest.mark.parametrize("end", ["eof", "lost"])
async def test_the_end_waits_behind_what_came_before_it(end: str) -> None:
    time = Time()
    loop_time = LoopTime(time.mono, Part())
    inner = Connection(time, "10.0.0.1")
    connection, sock = paced(inner, loop_time)
    use_up(time, loop_time)
    connection.data_received(b"one")
    sock.resume_reading()  # as a protocol may, that does not know
    connection.data_received(b"two")
    if end == "eof":
        assert connection.eof_received() is True, "stays open until it is heard"
    else:
        connection.connection_lost(None)
    assert inner.told == []
    await turn()
    assert inner.told == [b"onetwo", end]
    assert sock.is_closed == (end == "eof")


async def test_what_fails_ends_its_own_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    loop_time = LoopTime(time.mono, Part())
    (bad, sock), inner = paced(Faulty(time, "10.0.0.1"), loop_time), Connection(time, "10.0.0.2")
    good, _ = paced(inner, loop_time)
    use_up(time, loop_time)
    bad.data_received(b"x")
    good.data_received(b"y")
    await turn()
    await turn()
    assert (sock.is_closed, inner.told) == (True, [b"y"])
    assert "could not be handled" in caplog.text


async def test_one_that_fails_when_its_stream_has_ended_hears_of_its_loss() -> None:
    time = Time()
    loop_time = LoopTime(time.mono, Part())
    inner = Faulty(time, "10.0.0.1")
    connection, sock = paced(inner, loop_time)
    use_up(time, loop_time)
    connection.data_received(b"one")
    assert connection.eof_received() is True
    await turn()
    assert sock.is_closed
    connection.connection_lost(None)
    assert inner.told == ["lost"]


@pytest.mark.parametrize("is_shared", [False, True])
async def test_what_follows_from_reading_counts_while_several_owners_are_there(is_shared: bool) -> None:
    time, done = Time(), list[int]()
    part = Part()
    loop_time = LoopTime(time.mono, part)

    def work() -> None:
        time.now_s += 0.00101
        done[-1] += 1

    for _ in range(200):
        loop_time.wait("10.0.0.1", work)
    for _ in range(12):
        if is_shared:
            loop_time.begin(KEY + "honest")
            loop_time.begin("10.0.0.1")
        done.append(0)
        await turn()
        time.now_s += 0.004 * done[-1]  # what follows from each takes four times as long
    assert done[0] == 5
    assert done[-1] == (1 if is_shared else 5), "1 + 4 ms is a turn of less than 6"
    assert (part.now < 0.5) == is_shared


async def test_owners_that_come_one_after_the_other_share_it_too_and_for_a_while() -> None:
    time = Time()
    part = Part()
    loop_time = LoopTime(time.mono, part)
    for owner in ("10.0.0.1", "10.0.0.1", KEY + "a"):
        assert part.now == 1.0
        loop_time.end(loop_time.begin(owner))
        await turn()
        time.now_s += SHARED_S / 2
    assert part.now == SHARED
    time.now_s += SHARED_S
    loop_time.end(loop_time.begin(KEY + "a"))
    await turn()
    assert part.now == 1.0


async def test_ends_of_streams_are_heard_in_their_turns() -> None:
    time = Time()
    loop_time = LoopTime(time.mono, Part())

    class Ending(Connection):
        def eof_received(self) -> None:
            time.now_s += 0.0011
            super().eof_received()

    ends = [Ending(time, "10.0.0.1") for _ in range(12)]
    links = [paced(one, loop_time) for one in ends]
    stays = [link.eof_received() for link, _ in links]
    links[11][0].connection_lost(None)
    assert [len(one.told) for one in ends] == [1] * 5 + [0] * 7
    assert stays == [None] * 5 + [True] * 7
    await turn()
    await turn()
    assert [one.told for one in ends] == [["eof"]] * 11 + [["lost"]]
    assert all(sock.is_closed for _, sock in links[5:11])
