"""A core turned by hand: no loop, no thread, no socket.

What server/rounds/app.py has done in a round is a step here, which a test takes when it likes: `heartbeat`,
`compose`, `sync`, `settle`, `dispatch`, `load`, `replay`, `step`. `turn` is what a round does beside the
writer. `round` is the whole of it, with the sync in its place; after its steps `reached(point)` is called,
where a test may look, or end the process.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from server.auth.checking import at_once
from server.auth.keyring import Keyring
from server.core import Core
from server.delivery.dispatch import TURN_MESSAGES
from server.engine.clock import Clock
from server.engine.loader import STEP_ROWS
from server.observe.tracing import Traces
from server.settings.config import Config
from shards.errors import StoreFailed
from shards.recover import reopen_store
from shards.store import Store
from tests.support.memory_store import MemoryStore

ROUNDS_MAX = 20_000


def _nobody_looks(point: str) -> None:
    """Nobody waits for a point."""


@runtime_checkable
class Stepwise(Protocol):
    """A store that can be told which batches a sync takes with it: those written before it began."""

    def written(self) -> int:
        """Batches that were ever written."""

    def flush_to(self, written: int) -> None:
        """As `flush`, of so many. Raises StoreFailed."""


class Stepper:
    """One server, over every start of it on the same store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: Config | None = None,
        reached: Callable[[str], None] = _nobody_looks,
        traces: Traces | None = None,
    ) -> None:
        self._traces = traces
        self._store = store
        self._clock = clock
        self._config = config or Config()
        self._reached = reached
        self._unsynced: deque[int] = deque()
        """Of each group whose sync has not ended: how much was written when it was."""
        self.core = self.start()

    def start(self, config: Config | None = None) -> Core:
        """A server on what the store has; what the one before it had open is forgotten.

        `config`: other than so far.
        """
        self._config = config or self._config
        self._unsynced.clear()
        self.keyring = Keyring(self._config, self._clock, at_once)
        self.core = Core(
            self._config,
            self._clock,
            self._store,
            wake=lambda: None,
            auth=self.keyring,
            chance=lambda: 0.5,
            traces=self._traces,
        )
        return self.core

    # -- the writer

    @property
    def unsynced(self) -> int:
        """Groups whose sync has not ended."""
        return len(self._unsynced)

    def compose(self, between: Callable[[], object] | None = None, decide_s: float = 1.0) -> bool:
        """Decide what is queued and write it as one group. Whether anything moved.

        `between`: as between the two when a group is large. `decide_s`: 0 for one step of a large request.
        """
        writer = self.core.writer
        queued, could = writer.queued, writer.can_compose
        if between is None:
            group = writer.compose(decide_s=decide_s)
        else:
            group = writer.compose(between, large=1, decide_s=decide_s)
        if group is not None:
            self._unsynced.append(self._written())
        self._reached("composed")
        return could or group is not None or writer.queued != queued

    def sync(self) -> bool:
        """The sync of the oldest open group ends, nobody is told. Whether one was open. Raises StoreFailed.

        In RAM what was written after that group is not durable with it.
        """
        if not self._unsynced:
            return False
        mark, store = self._unsynced.popleft(), self._store
        if isinstance(store, MemoryStore) and not store.fail_flushes:
            store.durable = max(store.durable, mark)
        elif isinstance(store, Stepwise):
            store.flush_to(mark)
        else:
            store.flush()
        self._reached("flushed")
        return True

    def settle(self) -> bool:
        """The oldest open group is synced, and settled unless the writer has given it up. Whether one was."""
        if not self.sync():
            return False
        if self.core.writer.broken is None:
            self.core.writer.settle()
        return True

    def fail_sync(self) -> None:
        """The sync of the oldest open group fails; those after it may still end."""
        self._unsynced.popleft()
        self.core.writer.fail(StoreFailed("the sync failed"))

    def recover(self) -> bool:
        """The server tries to take the store into use again. Whether it is."""
        self._unsynced.clear()
        writer = self.core.writer
        return writer.broken is None or writer.reopened(reopen_store(self.core.opened))

    # -- beside the writer

    def heartbeat(self) -> None:
        self.core.heartbeat()

    def dispatch(self, limit: int = TURN_MESSAGES) -> bool:
        """Whether the horizon moved, or something that is not stored was handed on."""
        core = self.core
        before, live = core.horizon.position, core.dispatch.live
        core.dispatch.turn(limit)
        return core.horizon.position != before or core.dispatch.live != live

    def load(self, rows: int = STEP_ROWS) -> bool:
        """Whether anything was loaded."""
        loader = self.core.loader
        return loader.is_behind and loader.step(rows) > 0

    def replay(self) -> bool:
        """Whether a session read on."""
        if self.core.replay.is_idle:
            return False
        self.core.replay.turn()
        return True

    def answer(self) -> bool:
        """Whether a call for messages was answered."""
        waiting = self.core.pull.waiting
        self.core.pull.step()
        return self.core.pull.waiting != waiting

    def step(self) -> None:
        self.core.step()

    def mark(self) -> None:
        """While no group can be written the bound of dispatch goes to the disk by itself."""
        writer = self.core.writer
        bound_ms = writer.mark_ms
        if bound_ms is None:
            return
        error = None
        try:
            self._store.mark(bound_ms)
        except StoreFailed as failed:
            error = failed
        writer.marked(bound_ms, error)

    def turn(self) -> bool:
        """All that a round does beside the writer. Whether anything moved."""
        self.heartbeat()
        self.mark()
        moved = any([self.dispatch(), self.load(), self.replay(), self.answer()])
        self.step()
        return moved

    # -- all of it

    def round(self) -> None:
        """One turn of the server's loop."""
        self.heartbeat()
        self.mark()
        self.compose()
        if self._unsynced:
            # The sync runs in a thread: dispatch and replay go on meanwhile.
            self.dispatch()
            self.replay()
            self._reached("overtaken")
            try:
                self.settle()
            except StoreFailed as error:
                self.core.writer.fail(error)
        self._reached("settled")
        self.dispatch()
        self._reached("dispatched")
        self.load()
        self._reached("loaded")
        self.replay()
        self._reached("read on")
        self.answer()
        self.step()
        if self.core.writer.broken is not None:
            self.recover()

    def rest(self, turn: Callable[[], None]) -> None:
        """Take turns until nothing is left to do at this time."""
        for _ in range(ROUNDS_MAX):
            turn()
            if self.core.is_settled() and not self.core.can_advance() and not self.core.loader.is_behind:
                return
        raise AssertionError("it does not come to rest")

    def _written(self) -> int:
        store = self._store
        if isinstance(store, MemoryStore):
            return len(store.log)
        return store.written() if isinstance(store, Stepwise) else 0
