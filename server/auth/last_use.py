"""When each key was last used, for people who want to know which ones nobody needs any more.

The server knows it in RAM and writes it beside its data now and then, never into the keys file, which may be
read only. It is a hint: what happened since it was last written is lost with a kill.

    {"meter-7": 1795248000000}      name -> wall ms
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

FILE = "keys-used.json"
NOTE_S = 60.0
"""How often it is written, if there is something new."""


class LastUse:
    """Notes it, in one folder."""

    def __init__(self, used: Callable[[], dict[str, int]], folder: Path) -> None:
        """`used`: name -> when its key was last used, wall ms."""
        self._used = used
        self._folder = folder
        self._noted: dict[str, int] = {}

    async def note(self) -> None:
        """Write when keys were last used, if one has been since."""
        used = self._used()
        if used == self._noted:
            return
        try:
            await asyncio.to_thread(write_last_use, self._folder, used)
        except OSError as error:
            log.warning("keys: last use not saved: %s", error)
        self._noted = used


def read_last_use(folder: Path) -> dict[str, int]:
    """What was written last; nothing if there is nothing that can be read."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: at_ms for name, at_ms in found.items() if isinstance(at_ms, int)}


def write_last_use(folder: Path, used: Mapping[str, int]) -> None:
    """Write it, with what was known before of other keys. Raises OSError."""
    known = read_last_use(folder)
    both = {name: max(at_ms, known.get(name, 0)) for name, at_ms in used.items()}
    path = folder / FILE
    beside = path.with_suffix(".new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(known | both, file)
    beside.replace(path)
