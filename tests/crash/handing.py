"""A server that ends itself by SIGKILL at a named step of a split.

    python -m tests.crash.handing POINT [arguments of the server]

POINT is `before STEP` or `after STEP`, where a step is one of STEPS, or `written STEP`, `synced STEP`: when
the batch of that step has been written, or is durable, and nobody has been told.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from server.__main__ import main
from server.jobs import pipeline, splitting
from shards import handover
from shards.rocks import RocksStore

STEPS: dict[str, tuple[ModuleType, str]] = {
    "begin": (handover, "begin"),
    "plan": (pipeline, "_plan"),
    "cut": (handover, "cut"),
    "count": (splitting, "_count"),
    "remove": (pipeline, "_remove"),
}
POINTS = (
    *(f"{when} {step}" for step in STEPS for when in ("before", "after")),
    *(f"{when} {step}" for step in ("begin", "cut") for when in ("written", "synced")),
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """See to it that the process ends there."""
    when, step = point.split()
    handover.FEW_ROWS = 0  # so that what has come since is counted in a thread
    module, name = STEPS[step]
    is_passed = False

    def passed() -> None:
        nonlocal is_passed
        is_passed = True

    def watched(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if step == "remove" and args[0].name == "jobs":
                return work(*args, **named)  # at the start
            if when == "before":
                die()
            answer = work(*args, **named)
            if when == "after":
                die()
            passed()
            return answer

        return call

    def after(work: Callable[..., Any], wanted: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            was_passed = is_passed
            answer = work(*args)
            if when == wanted and was_passed:
                die()
            return answer

        return call

    setattr(module, name, watched(getattr(module, name)))
    RocksStore.write = after(RocksStore.write, "written")  # type: ignore[method-assign]
    RocksStore.flush = after(RocksStore.flush, "synced")  # type: ignore[method-assign]


if __name__ == "__main__":
    arm(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
