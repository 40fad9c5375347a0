"""Requests that wait for the writer: in order for each owner, and the owners in turns.

An owner is a key. Requests without a key, and the server's own, have one more. Calls over HTTP have a line of
their own (`over_http`): in one line a plain publish, which writes nothing, would wait behind a call of its
key, and the call behind somebody's large batch. No order is promised across lines; a client that has an
answer comes after what was answered.

    a1 a2 a3 a4, then b1     ->  a1 b1 a2 a3 a4
    a1 cannot be decided yet ->  b1
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from shards.commit import Commit

from .commit_hook import Done

Request = tuple[int, int, bool, Callable[[Commit], Any], Done]
"""(messages' worth, bytes, whether it writes, `decide`, `done`): see writer.py."""


def over_http(key: str) -> str:
    """The owner of calls over HTTP with a key of that name; empty: without one."""
    return f"http {key}"


class Requests:
    """The fair queue of requests."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Request]] = OrderedDict()
        """None is empty; the owner whose turn is next comes first."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def all(self) -> list[Request]:
        return [request for line in self._lines.values() for request in line]

    def add(self, owner: str, request: Request) -> None:
        """Queue a request behind the others of its owner."""
        line = self._lines.get(owner)
        if line is None:
            self._lines[owner] = deque((request,))
        else:
            line.append(request)

    def take(self, *, may_write: bool, most: float) -> Request | None:
        """The next request within the cost, which unless `may_write` writes nothing; or None. Its owner goes
        behind the others."""
        lines = self._lines
        for owner, line in lines.items():
            first = line[0]
            if (may_write or not first[2]) and first[0] <= most:
                line.popleft()
                if not line:
                    del lines[owner]
                elif len(lines) > 1:
                    lines.move_to_end(owner)
                return first
        return None

    @property
    def writes_all(self) -> bool:
        """Whether the first request of every owner writes."""
        return all([line[0][2] for line in self._lines.values()])  # noqa: C419 - a generator costs more
