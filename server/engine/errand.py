"""Asks the writer for work in steps: items that wait, taken in pieces, each item decided alone.

One request is under way at a time. Whatever is added meanwhile shares the next one:

    add, source ──> waiting ──> a piece ──> the writer ──> done: durable
                       ^  ^        |             |
                       |  +--------+ no time     +──> failed: once more after a while, or dropped
                       +---------------------------------+

A piece ends at `most` items, after `seconds`, at GROUP_BYTES, or at the cost of its owners, whichever comes
first; it has one item at least. Items for which there was no time are the first of the next piece. With
1,000 items of one owner, 3 of another, `most` 200 and `turn` 16, the three are in the first piece: owners
take turns of 16. The order of one owner's items is kept.

An item that is Refused, or Corrupt before any change, fails alone. One that fails half way spoils the whole
group, once: the writer gives the group up, the item gets its own exception, and the other items of the piece
get StoreFailed. It is tried again after SPOILER_S only. When the writer takes nothing, all waiting items
fail.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import chain, filterfalse, islice
from typing import Generic, TypeVar

from shards.commit import Commit, Refused
from shards.errors import Corrupt, StoreFailed

from .clock import Clock
from .commit_hook import ignore
from .writer import GROUP_BYTES, Busy, Writer

RETRY_S = 1.0
SPOILER_S = 60.0
"""A spoiler may spoil the next group too, at the cost of others' requests."""
MOST = 250
DECIDE_S = 0.008
NEVER = float("inf")

Item = TypeVar("Item", bound=Hashable)
Result = TypeVar("Result")


class Errand(Generic[Item, Result]):
    """Queued writer requests of one part of the server."""

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        decide: Callable[[Commit, Item], Result],
        done: Callable[[Item, Result], None],
        failed: Callable[[Item, Exception], float | None],
        *,
        most: int = MOST,
        turn: int = MOST,
        owner: Callable[[Item], Hashable] = lambda _: None,
        cost: Callable[[Item], int] = lambda _: 0,
        cost_max: int = 1,
        source: Callable[[], Iterable[Item]] | None = None,
        begin: Callable[[Iterable[Item]], None] = ignore,
    ) -> None:
        """`decide`: in the writer. `done`: the answer is durable. `failed`: it is not; returns the seconds
        until the next try, None: none.

        `most`: items of a piece. `turn`: items of one `owner` in a row. `cost`: of the owner of an item in a
        piece; beyond `cost_max` no new owner comes in. `source`: yields items when nothing waits, except
        those that are to be tried again. `begin`: in the writer, before each piece.
        """
        self._writer = writer
        self._clock = clock
        self._decide = decide
        self._done = done
        self._failed = failed
        self._most = most
        self._turn = turn
        self._owner = owner
        self._cost = cost
        self._cost_max = cost_max
        self._source = source
        self._begin = begin
        self._waiting: dict[Hashable, deque[Item]] = {}
        """By owner; whose turn it is first. None is empty."""
        self._taken = 0
        """How many the first of them has had taken in its turn."""
        self.put_off: dict[Item, float] = {}
        """Failed items, and the time of their next try, s of monotonic time."""
        self._is_under_way = False
        self._paused_until = 0.0
        """The writer has failed: the source is not asked before."""
        self._spoiler: Item | None = None
        """Items that made the writer give a group up."""

    @property
    def is_settled(self) -> bool:
        """Whether all work is done, apart from what the writer does not take now."""
        if self._waiting or self._is_under_way:
            return False
        return self._source is None or next(iter(self._source()), None) is None or self._is_paused()

    def wait_s(self) -> float:
        """Seconds until `step` has work, as far as known."""
        if self._is_under_way or not self.put_off or self._writer.broken is not None:
            return NEVER
        return max(0.0, min(islice(self.put_off.values(), self._most)) - self._clock.mono())

    def add(self, item: Item) -> None:
        """Queue an item behind the others of its owner."""
        self._enqueue(item)
        self.step()

    def clear(self) -> None:
        """Drop the queue; its owner reads the items again."""
        self._waiting.clear()
        self.put_off.clear()

    def step(self) -> None:
        """Submit the next piece once the one before has been answered."""
        if self._is_under_way:
            return
        if self._source is not None and not self._waiting and not self._is_paused():
            # Not a generator expression: compiled, that would be a list of all there is.
            fresh = filterfalse(self.put_off.__contains__, self._source())
            for item in islice(fresh, self._most):
                self._enqueue(item)
        if self.put_off and self._writer.broken is None:
            self._take_put_off()
        if self._waiting:
            self._submit()

    def _is_paused(self) -> bool:
        if self._writer.broken is not None:
            return True
        return self._paused_until > 0.0 and self._clock.mono() < self._paused_until

    def _take_put_off(self) -> None:
        now_s = self._clock.mono()
        due = [item for item, at_s in islice(self.put_off.items(), self._most) if at_s <= now_s]
        for item in due:
            del self.put_off[item]
            self._enqueue(item)

    # -- pieces

    def _enqueue(self, item: Item) -> None:
        self._waiting.setdefault(self._owner(item), deque()).append(item)

    def _piece(self) -> list[Item]:
        """The next items, one at least."""
        piece: list[Item] = []
        last, cost = None, 0
        while self._waiting and len(piece) < self._most:
            owner, own = next(iter(self._waiting.items()))
            if not piece or owner is not last:
                if cost >= self._cost_max:
                    break
                last = owner
                cost += self._cost(own[0])
            piece.append(self._next(owner, own))
        return piece

    def _next(self, owner: Hashable, own: deque[Item]) -> Item:
        """The next item of the owner whose turn it is. After its turn the owner goes to the end."""
        item = own.popleft()
        self._taken += 1
        if not own or self._taken >= self._turn:
            self._taken = 0
            del self._waiting[owner]
            if own:
                self._waiting[owner] = own
        return item

    def _put_back(self, items: list[Item]) -> None:
        """Put items that there was no time for at the start of the next piece."""
        waiting, self._waiting, self._taken = self._waiting, {}, 0
        for item in items:
            self._enqueue(item)
        for owner, own in waiting.items():
            self._waiting.setdefault(owner, deque()).extend(own)

    # -- to the writer and back

    def _submit(self) -> None:
        piece = self._piece()
        self._is_under_way = True
        try:
            self._writer.submit(
                lambda commit: self._decide_piece(commit, piece),
                lambda answer: self._answered(piece, answer),
                cost=len(piece),
            )
        except (Busy, StoreFailed) as error:
            self._is_under_way = False
            waiting, self._waiting, self._taken = self._waiting, {}, 0
            self._all_failed([*piece, *chain.from_iterable(waiting.values())], error)

    def _decide_piece(self, commit: Commit, piece: list[Item]) -> list[Result | Refused | Corrupt]:
        """In the writer: one item after the other, as far as there is time and room."""
        answers: list[Result | Refused | Corrupt] = []
        group, until = commit.open_batch, self._clock.mono() + DECIDE_S
        self._begin(piece)
        for item in piece:
            mark = group.mark
            try:
                answers.append(self._decide(commit, item))
            except Refused as refused:  # before anything is changed, as everywhere
                answers.append(refused)
            except Exception as error:
                if not isinstance(error, Corrupt) or group.mark != mark:
                    self._spoiler = item
                    raise
                answers.append(error)
            if self._clock.mono() >= until or group.size >= GROUP_BYTES:
                break
        self._put_back(piece[len(answers) :])
        del piece[len(answers) :]
        return answers

    def _answered(self, piece: list[Item], answer: object) -> None:
        """Handle the answers: durable, or not written."""
        self._is_under_way = False
        if isinstance(answer, list):
            for item, its in zip(piece, answer, strict=True):
                if isinstance(its, Exception):
                    self._one_failed(item, its)
                else:
                    self._done(item, its)
        else:
            assert isinstance(answer, Exception), "a piece has a list of answers"
            self._all_failed(piece, answer)
        self.step()

    def _all_failed(self, items: list[Item], error: Exception) -> None:
        """The writer has taken nothing, or the group is given up: perhaps for one of them."""
        spoiler, self._spoiler = self._spoiler, None
        if spoiler is None:
            self._paused_until = self._clock.mono() + RETRY_S
        for item in items:
            if item is spoiler:
                self._one_failed(item, error, SPOILER_S)
            else:
                self._one_failed(item, error if spoiler is None else StoreFailed("a group was given up"))

    def _one_failed(self, item: Item, error: Exception, least_s: float = 0.0) -> None:
        retry_s = self._failed(item, error)
        if retry_s is not None:
            self.put_off[item] = self._clock.mono() + max(retry_s, least_s)
