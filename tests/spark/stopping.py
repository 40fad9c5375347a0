"""`python -m tests.spark.stopping N ...`: `python -m spark ...`, killed at its N-th step.

Steps are calls that change something: before and after each write to the archive, and each POST to the
server. A program that has fewer ends by itself.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from spark import archive
from spark.__main__ import main
from spark.remote import Remote
from spark.storage import Storage


class Steps:
    def __init__(self, left: int) -> None:
        self._left = left

    def around(self, real: Callable[..., Any], *, is_step: Callable[..., bool]) -> Callable[..., Any]:
        def stepping(*given: Any, **named: Any) -> Any:
            if not is_step(*given):
                return real(*given, **named)
            self._step()
            found = real(*given, **named)
            self._step()
            return found

        return stepping

    def _step(self) -> None:
        self._left -= 1
        if self._left == -1:
            os.kill(os.getpid(), signal.SIGKILL)


def always(*_: Any) -> bool:
    return True


if __name__ == "__main__":
    steps = Steps(int(sys.argv[1]))
    posts = steps.around(Remote.ask, is_step=lambda _, kind, method, *more: method == "POST")
    with (
        patch.object(Remote, "ask", posts),
        patch.object(Storage, "write", steps.around(Storage.write, is_step=always)),
        patch.object(archive, "write_file", steps.around(archive.write_file, is_step=always)),
    ):
        sys.exit(main(sys.argv[2:]))
