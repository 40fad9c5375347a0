"""The ratios of an earlier run, kept in the repository, and what has fallen since.

recorded.json: for each form of a run ("quick pure": small sizes, the server as it is; "full compiled", ...)
the machine it was made on and the ratio of each row. A ratio is ours by the peer's of the same run, so that
it holds on other machines too, within limits: one has fallen that is by more than FALL worse than it was. Of
a row whose peers are not installed the ratio to its floor is compared, which is less certain.
"""

import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .results import Result

FILE = Path(__file__).with_name("recorded.json")
FALL = 0.2


def form(quick: bool, build: str) -> str:
    return f"{'quick' if quick else 'full'} {build}"


def record(results: Iterable[Result], form: str, file: Path = FILE) -> None:
    """Write their ratios; rows that were not measured now stay as they are."""
    known = _read(file)
    told: dict[str, Any] = known.setdefault(form, {"ratios": {}})
    told["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    told["made"] = time.strftime("%Y-%m-%d", time.gmtime())
    for result in results:
        if result.ratio is not None and result.baseline != "before":
            told["ratios"][_row(result)] = float(f"{result.ratio:.3g}")
    file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def fallen(results: Sequence[Result], form: str, file: Path = FILE) -> list[str]:
    """A line for each row that has fallen: which, from where to where."""
    ratios: dict[str, float] = _read(file).get(form, {}).get("ratios", {})
    beside_peers = {result.name for result in results if _has_peer(result)}
    lines = []
    for result in results:
        was, now = ratios.get(_row(result)), result.ratio
        if was is None or now is None or (result.is_floor and result.name in beside_peers):
            continue
        if (was / now if result.less else now / was) < 1 - FALL:
            lines.append(f"{_row(result)}: {was:.3g} -> {now:.3g}")
    return lines


def _has_peer(result: Result) -> bool:
    return bool(result.baseline) and not result.is_floor and result.baseline != "before"


def _row(result: Result) -> str:
    return f"{result.name} / {result.baseline}"


def _read(file: Path) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return known
