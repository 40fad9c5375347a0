"""The alarm rings once, at the earliest time that it was set to, with a timer of the system's or without."""

import asyncio
import ctypes
from collections.abc import AsyncIterator
from time import monotonic

import pytest

from server.rounds.alarm import Alarm

SOON_S = 0.002
NEVER_S = 3600.0
WAIT_S = 10.0


@pytest.fixture(params=["system's", "loop's"])
def timer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whose timer it is."""
    if request.param == "loop's":
        monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    return str(request.param)


class Bell:
    """Counts how often it was rung, and lets somebody wait for it."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.get_running_loop().create_future()

    def ring(self) -> None:
        self.count += 1
        if not self._next.done():
            self._next.set_result(None)

    async def rung(self) -> None:
        await asyncio.wait_for(self._next, WAIT_S)


@pytest.fixture
async def bell() -> Bell:
    return Bell()


@pytest.fixture
async def alarm(bell: Bell) -> AsyncIterator[Alarm]:
    made = Alarm(asyncio.get_running_loop(), bell.ring)
    yield made
    made.close()


async def _behind() -> None:
    """Until what the loop knew of before has had its turn: another alarm, set later, has rung."""
    loop = asyncio.get_running_loop()
    bell = Bell()
    other = Alarm(loop, bell.ring)
    other.set(2 * SOON_S)
    await bell.rung()
    other.close()


@pytest.mark.parametrize("in_s", [0.0, SOON_S])
async def test_it_rings_once_and_not_early(timer: str, in_s: float, bell: Bell, alarm: Alarm) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    alarm.set(in_s)
    await bell.rung()
    assert loop.time() - started >= in_s - (0.0 if timer == "system's" else 0.001)
    await _behind()
    assert bell.count == 1


async def test_the_earliest_time_counts_that_is_to_come(timer: str, bell: Bell, alarm: Alarm) -> None:
    alarm.set(NEVER_S)
    alarm.set(SOON_S)
    alarm.set(NEVER_S)
    await bell.rung()
    await _behind()
    assert bell.count == 1
    alarm.set(SOON_S)
    await _behind()
    assert bell.count == 2


async def test_a_time_that_has_passed_is_replaced(timer: str, bell: Bell, alarm: Alarm) -> None:
    """Its ring is called off: whoever sets it does what it would ring for."""
    began = monotonic()
    alarm.set(SOON_S)
    while monotonic() < began + 2 * SOON_S:
        pass
    alarm.set(NEVER_S)
    await _behind()
    assert not bell.count


async def test_it_can_be_set_when_it_rings(timer: str, bell: Bell) -> None:
    def ring() -> None:
        if not rung:
            alarm.set(SOON_S)
        rung.append(True)
        if len(rung) == 2:
            bell.ring()

    rung: list[bool] = []
    alarm = Alarm(asyncio.get_running_loop(), ring)
    alarm.set(SOON_S)
    await bell.rung()
    alarm.close()


async def test_a_timer_that_has_rung_early_can_be_set_again(
    monkeypatch: pytest.MonkeyPatch, bell: Bell
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    alarm = Alarm(asyncio.get_running_loop(), bell.ring)
    alarm.set(SOON_S)
    assert alarm._handle is not None
    alarm._handle.cancel()
    alarm._rung()
    alarm.set(SOON_S)
    await _behind()
    assert bell.count == 2
    alarm.close()


async def test_a_ring_that_was_called_off_meanwhile_is_none(bell: Bell, alarm: Alarm) -> None:
    alarm.set(NEVER_S)
    alarm._has_rung()  # the loop had found it readable before it was set again
    assert not bell.count


async def test_closed_it_does_not_ring(timer: str, bell: Bell, alarm: Alarm) -> None:
    alarm.set(SOON_S)
    alarm.close()
    await _behind()
    assert not bell.count
