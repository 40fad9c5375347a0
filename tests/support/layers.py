"""Which tests run when: `make quick`, which is in `make test`, and `make proof` (tests/README.md, "Layers").

The folder of a test says it, and a mark says otherwise. FASTI_LAYER is what is asked for; without it all are.
"""

import os
from collections.abc import Collection

LAYER = os.environ.get("FASTI_LAYER", "")
"""quick; test, which includes quick; proof. Empty: all tests."""
QUICKLY = {"timeline", "shards", "store", "server", "told", "house", "ledger"}
"""Folders of tests that start no process, but for those that are marked `process`."""
PROVES = {"browser", "cluster", "crash", "fuzz", "log", "oracle", "overload", "spark"}
"""Folders of tests that wait for processes. What is marked `short` there runs in `make test`."""


def layer_of(folder: str | None, marks: Collection[str]) -> str:
    """quick, test or proof, of a test in this folder of `tests`."""
    if "proof" in marks or (folder in PROVES and "short" not in marks):
        return "proof"
    return "quick" if folder in QUICKLY and not {"process", "long"}.intersection(marks) else "test"


def is_asked_for(layer: str, asked: str = LAYER) -> bool:
    return asked in ("", layer) or (asked, layer) == ("test", "quick")


def may_have(folder: str | None, text: str, asked: str = LAYER) -> bool:
    """Whether a file of tests can have one that is asked for: who has none need not be imported."""
    if asked == "quick":
        return folder in QUICKLY
    if asked == "test":
        return folder not in PROVES or "mark.short" in text
    return asked != "proof" or folder in PROVES or "mark.proof" in text
