"""Whether an endpoint fails: how its last posts went, in RAM since the start.

It keeps a bit for each of LAST_POSTS posts and one reason: a thousand endpoints take less than 1 MiB. Posts
that were cut do not count, nor do those of `:test`.
"""

from collections import deque
from typing import NamedTuple

from .verdicts import Outcome, Verdict

LAST_POSTS = 20
"""Posts of an endpoint by which it is judged."""


class Failing(NamedTuple):
    """How the last posts of an endpoint went. `share`: of the last `of`, those that failed, 0 to 1;
    `last_reason`: why the newest of these did, empty if none did."""

    share: float = 0.0
    of: int = 0
    last_reason: str = ""


class LastPosts:
    """Notes how the last posts of one endpoint went: LAST_POSTS of them, and one reason."""

    def __init__(self) -> None:
        self._failed: deque[bool] = deque(maxlen=LAST_POSTS)
        self._reason = ""

    def note(self, verdict: Verdict) -> None:
        is_failed = verdict.outcome is not Outcome.DONE
        self._failed.append(is_failed)
        if is_failed:
            self._reason = verdict.reason

    def clear(self) -> None:
        self._failed.clear()

    @property
    def failing(self) -> Failing:
        failed, of = sum(self._failed), len(self._failed)
        return Failing(failed / of, of, self._reason) if failed else Failing(0.0, of)
