"""Whether an endpoint fails: results of its last posts, in RAM since the start.

It keeps a bit for each of LAST_POSTS posts and one reason: a thousand endpoints take less than 1 MiB.
Cancelled posts and those of `:test` do not count.
"""

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

    __slots__ = ("_failed", "_of", "_reason")

    def __init__(self) -> None:
        self._failed = self._of = 0
        """A bit for each of the last `_of` posts: whether it failed."""
        self._reason = ""

    def note(self, verdict: Verdict) -> None:
        is_failed = verdict.outcome is not Outcome.DONE
        self._failed = (self._failed << 1 | is_failed) & (1 << LAST_POSTS) - 1
        self._of = min(self._of + 1, LAST_POSTS)
        if is_failed:
            self._reason = verdict.reason

    def clear(self) -> None:
        self._failed = self._of = 0

    @property
    def failing(self) -> Failing:
        failed, of = self._failed.bit_count(), self._of
        return Failing(failed / of, of, self._reason) if failed else Failing(0.0, of)
