"""Last use of each key, so that unused keys can be found.

The server keeps it in RAM and writes it beside its data now and then, never into the keys file, which may be
read-only. It is a hint: a kill loses the uses since the last write.

    {"meter-7": 1795248000000}      name -> wall ms
    {"meter-7:0c9d81aa": 0}         of a rotated key also each hash, by its end: names contain no colon
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

log = logging.getLogger(__name__)

FILE = "keys-used.json"
NOTE_S = 60.0
"""How often changes are written."""


def noted(name: str, stored: str) -> str:
    """What stands for one of the hashes of a name."""
    return f"{name}:{stored[-8:]}"


class LastUse:
    """Writes last uses into a folder."""

    def __init__(self, used: Callable[[], dict[str, int]], folder: Path) -> None:
        """`used`: name -> last use of its key, wall ms."""
        self._used = used
        self._folder = folder
        self._noted: dict[str, int] = {}

    async def note(self) -> None:
        """Write last uses, if there are new ones."""
        used = self._used()
        if used == self._noted:
            return
        try:
            await asyncio.to_thread(write_last_use, self._folder, used)
        except OSError as error:
            log.warning("keys: last use not saved: %s", error)
        self._noted = used


def read_last_use(folder: Path) -> dict[str, int]:
    """The last uses written before, without what is none; empty if they cannot be read."""
    try:
        found = msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, Any])
    except (OSError, ValueError):
        return {}
    return {name: at_ms for name, at_ms in found.items() if isinstance(at_ms, int)}


def write_last_use(folder: Path, used: Mapping[str, int]) -> None:
    """Merge last uses into the file; hashes that are not in `used` are forgotten. Raises OSError."""
    known = read_last_use(folder)
    both = {name: max(at_ms, known.get(name, 0)) for name, at_ms in used.items()}
    path = folder / FILE
    beside = path.with_suffix(".new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump({name: at_ms for name, at_ms in known.items() if ":" not in name} | both, file)
    beside.replace(path)
