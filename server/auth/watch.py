"""Files of keys, read again when they change or when somebody says so.

Every LOOK_S the files are looked at (a few system calls); those that are others now, and have been for one
look, are read in a thread and put in place on the loop, and whoever holds rights looks at them again
(`review`). A file that is being written is not read: of half a file keys are missing, or the rules of one,
which would then allow every topic. A file that cannot be used leaves all as it was, and the log says what is
wrong with it, once for each change. When keys were last used is written every NOTE_S.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from .keyring import Keyring
from .keys_file import KeysFileError
from .last_use import write_last_use

log = logging.getLogger(__name__)

LOOK_S = 2.0
NOTE_S = 60.0


class Watch:
    """Looks after the files of one keyring."""

    def __init__(self, keyring: Keyring, folder: Path, review: Callable[[], None]) -> None:
        """`folder`: where last uses are noted. `review`: called when keys or rules are others now."""
        self._keyring = keyring
        self._folder = folder
        self._review = review
        self._told = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._noted: dict[str, int] = {}
        self._stamps = keyring.stamps()
        """What the files were at the last look."""

    def start(self) -> None:
        """Begin to look, if there is anything to look at."""
        if not self._keyring.is_open:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more, and note what is to be noted."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await self.note()

    def hurry(self) -> None:
        """Read the files now, whether they look changed or not."""
        self._told.set()

    async def look(self, *, is_told: bool) -> None:
        """Read what has changed and stands still; `is_told`: read it anyway."""
        keyring = self._keyring
        stamps = keyring.stamps()
        is_still, self._stamps = stamps == self._stamps, stamps
        if not is_told and not (is_still and keyring.is_changed):
            return
        try:
            found = await asyncio.to_thread(keyring.read)
        except KeysFileError as error:
            keyring.seen(stamps)
            log.error("keys are as they were: %s", error)
            return
        keyring.take(found)
        self._review()
        log.info("keys read again: %d", len(found.entries))

    async def note(self) -> None:
        """Write when keys were last used, if one has been since."""
        used = self._keyring.used()
        if used == self._noted:
            return
        try:
            await asyncio.to_thread(write_last_use, self._folder, used)
        except OSError as error:
            log.warning("when keys were used is not noted: %s", error)
        self._noted = used

    async def _run(self) -> None:
        noted = looks = 0
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
                looks += 1
                if (looks - noted) * LOOK_S >= NOTE_S:
                    noted = looks
                    await self.note()
            except Exception:
                log.exception("keys could not be looked after")
