"""Files of keys, rules and certificates, read again when they change or when somebody says so.

Every LOOK_S the files are looked at (a few system calls); those that are others now, and have been for one
look, are read in a thread and put in place on the loop, and whoever holds what they allow looks at it again
(`review`), before anything else is read. A file that is being written is not read: of half a file keys are
missing, or the rules of one, which would then allow every topic. What cannot be used leaves all as it was,
and the log says once what is wrong with it. It may be nothing that the files say (no descriptors were left),
and they would never be others: so what failed is tried again, or a key that was revoked would stay.

    12:00:00   keys.toml is another           it may be half written
    12:00:02   it is as it was at 12:00:00    read; connections by a key that is gone end
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

LOOK_S = 2.0
RETRY_LOOKS = 5
"""After so many looks what could not be used is tried again."""

Stamps = tuple[tuple[int, int, int, int] | None, ...]
"""Of each file what tells it from another that takes its place; None: it is not there."""


class Watched(Protocol):
    """What has been read from files."""

    name: str
    """What it is, for the log."""
    paths: tuple[Path, ...]
    stamps: Stamps
    """Of the files when they were read for the first time, taken before."""

    def again(self) -> Callable[[], None]:
        """Read them, in any thread; what comes back puts it in place, on the loop. OSError, ValueError."""


class Watch:
    """Looks after the files of everything that is `watched`."""

    def __init__(self, watched: Sequence[Watched], review: Callable[[], None]) -> None:
        """`review`: called when something is another now."""
        self._watched = watched
        self._review = review
        self._told = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._read = [one.stamps for one in watched]
        """What the files were when they were read, be it in vain."""
        self._seen = list(self._read)
        """What they were at the last look."""
        self._faults = [""] * len(watched)
        """What is wrong with them, if something is."""
        self._looks = [0] * len(watched)
        """Since they were read."""

    def start(self) -> None:
        """Begin to look, if there is anything to look at."""
        if any(one.paths for one in self._watched):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def hurry(self) -> None:
        """Read the files now, whether they look changed or not."""
        self._told.set()

    async def look(self, *, is_told: bool) -> None:
        """Read what has changed and stands still; `is_told`: read all of it anyway."""
        for at, one in enumerate(self._watched):
            now = stamps_of(one.paths)
            is_still, self._seen[at] = now == self._seen[at], now
            is_other = is_told or now != self._read[at]
            self._looks[at] += 1
            is_retried = bool(self._faults[at]) and self._looks[at] >= RETRY_LOOKS
            if one.paths and (is_told or (is_still and (is_other or is_retried))):
                self._read[at], self._looks[at] = now, 0
                fault = await _read_again(one, "" if is_other else self._faults[at])
                self._faults[at] = fault
                if not fault:
                    self._review()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._told.wait()
            except TimeoutError:
                pass
            is_told = self._told.is_set()
            self._told.clear()
            try:
                await self.look(is_told=is_told)
            except Exception:
                log.exception("files: check failed")


async def _read_again(one: Watched, known: str) -> str:
    """What is wrong with it, empty: it is in place. `known`: what the log says already."""
    try:
        put = await asyncio.to_thread(one.again)
        put()
    except Exception as error:
        fault = str(error) or repr(error)
        if fault != known:
            is_expected = isinstance(error, OSError | ValueError)
            text = "%s: not reloaded, the old content stays in force: %s"
            log.error(text, one.name, fault, exc_info=None if is_expected else error)
        return fault
    log.info("%s: reloaded", one.name)
    return ""


def stamps_of(paths: Sequence[Path]) -> Stamps:
    """What the files are now. A few system calls."""
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode
