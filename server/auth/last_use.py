"""When each key was last used, for people who want to know which ones nobody needs any more.

The server knows it in RAM and writes it beside its data now and then, never into the keys file, which may be
read only. It is a hint: what happened since it was last written is lost with a kill.

    {"meter-7": 1795248000000}      name -> wall ms
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

FILE = "keys-used.json"


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
