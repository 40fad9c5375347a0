"""`spread`: the server chooses the emptiest moment within an allowed window.

It divides the window into at most 64 equal parts, takes the part with the fewest pending messages (of several
the earliest), divides it again in the same way, and so on down to a millisecond. The same timeline gives the
same answer. A thousand messages with one window spread evenly over it, instead of all on its emptiest
millisecond.

    window of 5 min, nothing pending      its first ms
    the same again                        the first ms of the second part of 4.7 s
    ...                                   when all 64 have one, the first part again, 74 ms further on

Two requests must not interleave counting and placing, or both would find the same moment empty. So a request
holds `lock` until its messages are placed, and counts in turns of its own (`Turns.apart`), because others
wait for it, whatever else its client does. Counts are cached for one request, and its own choices are added.
"""

from collections.abc import Sequence

import msgspec
from sortedcontainers import SortedList

from .density import Density
from .timeline import Timeline
from .turns import Lock, Turn
from .values.message_body import ParsedMessage
from .values.reader import Item

PARTS = 64
REMEMBERED = 10_000
"""Maximum windows cached in one request; at the bound all are dropped and counted again."""
YIELD_EVERY = 50


class Spreader:
    """Chooses moments for one server."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.lock = Lock()

    async def settled(self, messages: Sequence[Item], now_ms: int, turn: Turn) -> list[Item]:
        """The messages, with chosen dues where a spread is allowed. Hold `lock`."""
        choice = _Choice(self._timeline, turn)
        found: list[Item] = []
        for index, message in enumerate(messages):
            if isinstance(message, ParsedMessage) and message.spread_ms:
                due_ms = await choice.due_of(message, now_ms)
                message = msgspec.structs.replace(message, due_ms=due_ms)
            else:
                choice.add(message.due_ms or now_ms)
            found.append(message)
            if index % YIELD_EVERY == 0:
                await turn.begin()
        return found


class _Window:
    """A span of time in parts: stored messages in each, plus the request's own."""

    def __init__(self, start_ms: int, end_ms: int) -> None:
        self.start_ms, self.end_ms = start_ms, end_ms
        self.width_ms = -(-(end_ms - start_ms) // PARTS)
        self.counts: list[int] = []
        self.seen = 0
        """How many of the request's own messages are in `counts`."""

    def add(self, due_ms: int) -> None:
        if self.start_ms <= due_ms < self.end_ms:
            self.counts[(due_ms - self.start_ms) // self.width_ms] += 1

    def emptiest(self) -> tuple[int, int]:
        """The bounds of the part with the fewest messages, the earliest of them."""
        start_ms = self.start_ms + self.counts.index(min(self.counts)) * self.width_ms
        return start_ms, min(start_ms + self.width_ms, self.end_ms)


class _Choice:
    """The choices of one request, and the windows that it has counted."""

    def __init__(self, timeline: Timeline, turn: Turn) -> None:
        self._timeline = timeline
        self._turn = turn
        self._windows: dict[tuple[int, int], _Window] = {}
        self._own: list[int] = []
        self._sorted: SortedList[int] = SortedList()

    async def due_of(self, message: ParsedMessage, now_ms: int) -> int:
        """The emptiest ms of the window that has not passed."""
        due_ms = message.due_ms or now_ms
        end_ms = due_ms + message.spread_ms + 1
        if end_ms > now_ms:
            due_ms = max(due_ms, now_ms)
            while end_ms - due_ms > 1:
                due_ms, end_ms = (await self._window(due_ms, end_ms)).emptiest()
        self.add(due_ms)
        return due_ms

    def add(self, due_ms: int) -> None:
        """Note that the request places a message here."""
        self._own.append(due_ms)
        self._sorted.add(due_ms)

    async def _window(self, start_ms: int, end_ms: int) -> _Window:
        """The window with current counts."""
        window = self._windows.get((start_ms, end_ms))
        if window is None:
            if len(self._windows) >= REMEMBERED:
                self._windows.clear()
            window = self._windows[start_ms, end_ms] = _Window(start_ms, end_ms)
            window.counts = await Density(self._timeline, start_ms, end_ms, window.width_ms).count(self._turn)
            fresh = list(self._sorted.irange(start_ms, end_ms - 1))
        else:
            fresh = self._own[window.seen :]
        for due_ms in fresh:
            window.add(due_ms)
        window.seen = len(self._own)
        return window
