"""The last posts to an endpoint, in RAM since the start: their answers, and the share that failed.

Answers are packed, 30 bytes each, and equal reasons are one string: those of a thousand endpoints take some
1 MiB. Cancelled posts and those of `:test` are not here.
"""

from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import NamedTuple

from .verdicts import Outcome, Reply, Verdict

LAST_POSTS = 20
"""Number of posts by which an endpoint is judged."""

_PACKED = Struct(">QHI16s")
"""Time, status, latency and message of an answer."""


class Failing(NamedTuple):
    """Results of an endpoint's last posts. `share`: failed part of the last `of`, 0 to 1; `last_reason`: of
    the newest failure, empty if none."""

    share: float = 0.0
    of: int = 0
    last_reason: str = ""


class PostResult(NamedTuple):
    """Answer to a post. `at_ms`: when the post had ended, by the machine's clock; `status` 0: there was none;
    `reason`: empty if the message is done."""

    at_ms: int
    message: str
    status: int
    latency_ms: int
    reason: str


class LastPosts:
    """The last LAST_POSTS posts to one endpoint."""

    __slots__ = ("_packed", "_reasons")

    def __init__(self) -> None:
        self._packed = b""
        """Newest first."""
        self._reasons: tuple[str, ...] = ()

    def note(self, at_ms: int, message: str, verdict: Verdict, reply: Reply) -> None:
        """`message`: its id."""
        reason = "" if verdict.outcome is Outcome.DONE else verdict.reason
        known = next((one for one in self._reasons if one == reason), reason)
        self._reasons = (known, *self._reasons)[:LAST_POSTS]
        packed = _PACKED.pack(at_ms, reply.status, round(reply.latency_ms), bytes.fromhex(message))
        self._packed = (packed + self._packed)[: LAST_POSTS * _PACKED.size]

    def answers(self, most: int = LAST_POSTS) -> Iterator[PostResult]:
        """Newest first."""
        every = zip(_PACKED.iter_unpack(self._packed), self._reasons, strict=True)
        for (at_ms, status, latency_ms, message), reason in islice(every, most):
            yield PostResult(at_ms, message.hex(), status, latency_ms, reason)

    @property
    def failing(self) -> Failing:
        failed = [reason for reason in self._reasons if reason]
        of = len(self._reasons)
        return Failing(len(failed) / of, of, failed[0]) if failed else Failing(0.0, of)
