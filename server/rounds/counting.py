"""Keeps the cells of slices (shards/cells.py) current: saves changed ones, and counts slices without any.

A slice that this server opened, or whose saved cells are current, has them. Others, after a kill or in data
of an older version, are counted one after the other, nearest first, in steps of COUNT_ROWS rows between which
the loop turns. Ten million messages take some ten seconds of processor time, spread over some minutes; after
a restart the slices that are not saved remain to be counted. A slice with unreadable rows is skipped.
"""

import asyncio
import logging

from shards.cells import is_changed, save, step
from shards.commit import Commit
from shards.errors import ShardsError
from shards.recover import Opened
from timeline.position import END
from timeline.slices import CELLED_MAX, Home, Slice

from ..engine.writer import Ask, Busy, Writer

log = logging.getLogger(__name__)

INTERVAL_S = 5
COUNT_ROWS = 500
COUNT_STEPS = 400
"""Steps per interval, of less than 1 ms each: a twentieth of the time."""


class Counting:
    """The cells of one server's slices."""

    def __init__(self, ask: Ask, writer: Writer, opened: Opened) -> None:
        self._ask = ask
        self._writer = writer
        self._opened = opened
        self._next_ms = 0
        """Where saving continues."""
        self._left_alone: set[Home] = set()

    async def look(self) -> None:
        """Count for a while, then save for a while. Does nothing while the store fails: rows may be
        missing."""
        if self._writer.broken is not None:
            return
        try:
            for _ in range(COUNT_STEPS):
                if not self._step():
                    break
                await asyncio.sleep(0)
            if any(is_changed(piece) for piece in self._opened.directory):
                await self._ask(self._save)
        except (ShardsError, Busy) as error:
            log.warning("counts by time: saving postponed: %s", error)

    def _save(self, commit: Commit) -> None:
        self._next_ms = save(commit, self._next_ms)

    def _step(self) -> bool:
        """Count some rows. Returns whether there is more to count."""
        if self._writer.is_deciding or self._writer.broken is not None:
            return True  # not all rows can be read
        piece = self._uncounted()
        if piece is None:
            return False
        opened = self._opened
        is_done = step(opened.reader, piece, opened.horizon.seq, COUNT_ROWS)
        if is_done and piece.cells is None:
            self._left_alone.add(piece.home)
        return True

    def _uncounted(self) -> Slice | None:
        """The nearest slice ahead that must be counted."""
        opened = self._opened
        if len(opened.directory) > CELLED_MAX or len(self._left_alone) > CELLED_MAX:
            return None
        for piece in opened.directory.over(opened.horizon.position, END):
            is_counted = piece.cells is not None and piece.cells.is_exact
            if not is_counted and piece.home not in self._left_alone:
                return piece
        return None
