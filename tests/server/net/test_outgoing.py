"""What connections have to send leaves in the order of its coming, at the end of the turn or at once."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from server.fair import Part
from server.net.outgoing import FILLING, FILLING_MIN, PIECE, PIECE_BYTES, PIECE_S, Outgoing
from tests.support.clock import HandClock


class Link:
    """A connection that calls `write`, and has sent `size` bytes then."""

    def __init__(self, write: Callable[[], object], owner: str = "", size: int = 0) -> None:
        self.owner = owner
        self._write, self._size = write, size

    def flush(self) -> int:
        self._write()
        return self._size


async def turn() -> None:
    """The loop comes round once."""
    await asyncio.sleep(0)


async def test_at_the_end_of_the_turn() -> None:
    outgoing, sent = Outgoing(HandClock(0).mono, Part()), list[int]()
    for number in range(3):
        outgoing.add(Link(partial(sent.append, number)))
    assert sent == []
    await turn()
    assert sent == [0, 1, 2]
    outgoing.add(Link(partial(sent.append, 3)))
    await turn()
    assert sent == [0, 1, 2, 3]


async def test_at_once_and_not_a_second_time() -> None:
    outgoing, sent = Outgoing(HandClock(0).mono, Part()), list[int]()
    outgoing.add(Link(partial(sent.append, 1)))
    outgoing.flush()
    assert sent == [1]
    await turn()
    await turn()
    assert sent == [1]
    outgoing.add(Link(partial(sent.append, 2)))
    await turn()
    assert sent == [1, 2]


async def test_thousands_leave_in_pieces() -> None:
    outgoing, sent = Outgoing(HandClock(0).mono, Part()), list[int]()
    for number in range(2 * PIECE + 1):
        outgoing.add(Link(partial(sent.append, number)))
    counts = []
    for _ in range(3):
        await turn()
        counts.append(len(sent))
    assert counts == [PIECE, 2 * PIECE, 2 * PIECE + 1]
    assert sent == sorted(sent)


async def test_who_writes_may_have_more_to_write() -> None:
    outgoing, sent = Outgoing(HandClock(0).mono, Part()), list[str]()

    def first() -> None:
        sent.append("first")
        outgoing.add(Link(partial(sent.append, "more")))

    outgoing.add(Link(first))
    await turn()
    assert sent == ["first"]
    await turn()
    assert sent == ["first", "more"]


async def test_deliveries_wait_for_more_while_there_is_more_to_dispatch() -> None:
    outgoing, sent = Outgoing(HandClock(0).mono, Part()), list[int]()
    count = FILLING * FILLING_MIN
    for number in range(2 * count):
        outgoing.add(Link(partial(sent.append, number)))
    outgoing.is_filling = True
    await turn()
    assert len(sent) == 2 * FILLING_MIN
    await turn()
    assert len(sent) == 2 * FILLING_MIN + (2 * count - len(sent) // 2) // FILLING
    before = len(sent)
    outgoing.is_filling = False
    await turn()
    assert len(sent) == before + PIECE
    assert sent == list(range(before + PIECE))


async def test_a_few_connections_do_not_wait_for_more() -> None:
    outgoing, sent = Outgoing(HandClock(0).mono, Part()), list[int]()
    outgoing.is_filling = True
    for number in range(FILLING_MIN):
        outgoing.add(Link(partial(sent.append, number)))
    await turn()
    assert len(sent) == FILLING_MIN


async def test_answers_do_not_wait_for_more() -> None:
    outgoing, sent = Outgoing(HandClock(0).mono, Part()), list[int]()
    outgoing.is_filling = True
    writes = [Link(partial(sent.append, number)) for number in range(20 * FILLING_MIN)]
    for write in writes:
        outgoing.add(write)
    outgoing.press(writes[-1])  # has deliveries, and an answer behind them
    outgoing.press(writes[-1])
    await turn()
    assert sent[0] == len(writes) - 1
    assert sent.count(len(writes) - 1) == 1
    outgoing.is_filling = False
    for _ in range(3):
        await turn()
    assert sorted(sent) == list(range(len(writes)))


async def test_deliveries_have_their_part_however_many_answers_there_are() -> None:
    clock = HandClock(0)
    outgoing, sent = Outgoing(clock.mono, Part()), list[str]()

    def write(what: str) -> None:
        clock.mono_s += PIECE_S / 100
        sent.append(what)

    for number in range(4 * PIECE):
        outgoing.press(Link(partial(write, "answer"), f"{number}"))
    for number in range(PIECE):
        outgoing.add(Link(partial(write, "delivery"), f"{number}"))
    await turn()
    assert sent.count("answer") == pytest.approx(50, abs=1)
    assert sent.count("delivery") == pytest.approx(50, abs=1)


async def test_what_takes_long_leaves_the_others_to_the_next_turns() -> None:
    clock = HandClock(0)
    outgoing, sent = Outgoing(clock.mono, Part()), list[int]()

    def end(number: int) -> None:
        clock.mono_s += PIECE_S  # it leaves a thousand groups
        sent.append(number)

    for number in range(3):
        outgoing.press(Link(partial(end, number)))
    for count in (1, 2, 3):
        await turn()
        assert len(sent) == count


async def test_one_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    outgoing, sent = Outgoing(HandClock(0).mono, Part()), list[int]()
    outgoing.add(Link(lambda: sent.remove(7)))
    outgoing.add(Link(partial(sent.append, 1)))
    await turn()
    assert sent == [1]
    assert "could not be written" in caplog.text


async def test_what_a_turn_has_no_time_for_waits_by_owner() -> None:
    outgoing, sent = Outgoing(HandClock(0).mono, Part()), list[str]()
    for number in range(3 * PIECE):
        outgoing.add(Link(partial(sent.append, f"flood {number}"), "flood"))
    await turn()
    for _ in range(2):
        outgoing.add(Link(partial(sent.append, "honest"), "honest"))
    await turn()
    assert sent[PIECE : PIECE + 4] == [f"flood {PIECE}", "honest", f"flood {PIECE + 1}", "honest"]
    for _ in range(3):
        await turn()
    assert len(sent) == 3 * PIECE + 2


async def test_a_link_that_is_pressed_while_another_writes_waits_with_the_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outgoing, sent = Outgoing(HandClock(0).mono, Part()), list[int]()
    pressed = Link(partial(sent.append, 2))

    def writes() -> None:
        sent.append(1)
        outgoing.press(pressed)

    outgoing.add(Link(writes))
    outgoing.add(pressed)
    await turn()
    await turn()
    assert sent == [1, 2]
    assert not caplog.records


async def test_bytes_end_a_piece_too_and_both_are_less_while_several_owners_are_there() -> None:
    part, sent = Part(), list[int]()
    outgoing = Outgoing(HandClock(0).mono, part)
    for number in range(12):
        outgoing.add(Link(partial(sent.append, number), size=PIECE_BYTES // 4))
    await turn()
    assert len(sent) == 4
    part.now = 0.5
    await turn()
    assert len(sent) == 6
