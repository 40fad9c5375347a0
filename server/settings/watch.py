"""Rereads files of keys, rules and certificates when they change, or on request.

Every LOOK_S it checks the files (a few system calls). Files that have changed, and were stable for one look,
are read in a thread and put in place on the loop. Then connections are checked again (`review`), before
anything else is read. A file that is being written is not read: in half a file keys are missing, or the rules
of one, which would then allow every topic. If files cannot be used nothing changes, and the log says once
why. The error may not be in the files (no descriptors were left), so that they would never change. So a
failed read is tried again; otherwise a revoked key would stay valid.

    12:00:00   keys.toml has changed          it may be half written
    12:00:02   it is as at 12:00:00           read; connections of removed keys are closed
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

LOOK_S = 2.0
AT_ONCE_BYTES = 16 << 10
"""Files up to this size are read in the loop on request, so that the new rules hold for a client that
connects after a SIGHUP."""
RETRY_LOOKS = 5
"""Number of looks after which a failed read is tried again."""

Stamps = tuple[tuple[int, int, int, int] | None, ...]
"""Identity of each file's content; None: missing."""


class Watched(Protocol):
    """A thing read from files."""

    name: str
    """Its name in the log."""
    paths: tuple[Path, ...]
    stamps: Stamps
    """The files' stamps from just before they were first read."""

    def again(self) -> Callable[[], None]:
        """Read them, in any thread; returns a function that puts the result in place, on the loop. OSError,
        ValueError."""


class Watch:
    """Watches the files of everything `watched`."""

    def __init__(self, watched: Sequence[Watched], review: Callable[[], None]) -> None:
        """`review`: called after a change."""
        self._watched = watched
        self._review = review
        self._hurried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._read = [one.stamps for one in watched]
        """Stamps at the last read, even if it failed."""
        self._seen = list(self._read)
        """Stamps at the last look."""
        self._faults = [""] * len(watched)
        """The current error of each, if any."""
        self._looks = [0] * len(watched)
        """Looks since the last read."""

    def start(self) -> None:
        """Start watching, if there are files."""
        if any(one.paths for one in self._watched):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def hurry(self) -> None:
        """Read the files now, changed or not."""
        self._hurried.set()

    async def look(self, *, is_forced: bool) -> None:
        """Read what has changed and is stable; `is_forced`: read everything."""
        for at, one in enumerate(self._watched):
            now = stamps_of(one.paths)
            is_still, self._seen[at] = now == self._seen[at], now
            is_other = is_forced or now != self._read[at]
            self._looks[at] += 1
            is_retried = bool(self._faults[at]) and self._looks[at] >= RETRY_LOOKS
            if one.paths and (is_forced or (is_still and (is_other or is_retried))):
                self._read[at], self._looks[at] = now, 0
                is_small = sum(stamp[2] for stamp in now if stamp) <= AT_ONCE_BYTES
                fault = await _read_again(
                    one, "" if is_other else self._faults[at], at_once=is_forced and is_small
                )
                self._faults[at] = fault
                if not fault:
                    self._review()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._hurried.wait()
            except TimeoutError:
                pass
            is_forced = self._hurried.is_set()
            self._hurried.clear()
            try:
                await self.look(is_forced=is_forced)
            except Exception:
                log.exception("files: check failed")


async def _read_again(one: Watched, known: str, *, at_once: bool) -> str:
    """Reread one. Returns its error; empty: done. `known`: the error already logged. `at_once`: nothing else
    runs before."""
    try:
        put = one.again() if at_once else await asyncio.to_thread(one.again)
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
    """Stamps of the files now. A few system calls."""
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode
