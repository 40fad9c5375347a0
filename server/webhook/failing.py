"""Whether an endpoint fails: results of its last posts, in RAM since the start.

It keeps a bit for each of LAST_POSTS posts and one reason: a thousand endpoints take less than 1 MiB.
Cancelled posts and those of `:test` do not count.
"""

from collections import deque
from typing import NamedTuple

from .verdicts import Outcome, Verdict

LAST_POSTS = 20
"""Number of posts by which an endpoint is judged."""


class Failing(NamedTuple):
    """Results of an endpoint's last posts. `share`: failed part of the last `of`, 0 to 1; `last_reason`: of
    the newest failure, empty if none."""

    share: float = 0.0
    of: int = 0
    last_reason: str = ""


class LastPosts:
    """Notes the results of one endpoint's last LAST_POSTS posts, and one reason."""

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
