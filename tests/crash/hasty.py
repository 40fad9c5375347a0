"""A server that answers before the sync: what the tests of acks have to catch.

python -m tests.crash.hasty --data DATA ...
"""

import sys

import pytest

from server.__main__ import main
from server.rounds.app import App
from shards.commit import GroupCommit

LATE_S = 0.05


def answer_early(patch: pytest.MonkeyPatch) -> None:
    """Every group is settled as soon as it is written; its sync follows, when the answers have left."""

    def hasty(self: App, group: GroupCommit) -> None:
        assert self._loop is not None
        self.core.writer.settle()
        self._loop.call_later(LATE_S, self._disk.run, self._loop, self._store.flush, _ignore)

    patch.setattr(App, "_sync", hasty)


def _ignore(failure: Exception | None) -> None:
    """Nobody waits for it any more."""


if __name__ == "__main__":
    answer_early(pytest.MonkeyPatch())
    sys.exit(main(sys.argv[1:]))
