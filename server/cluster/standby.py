"""What a follower keeps in RAM, so that it takes the lead at once: sessions, as their rows say.

It loads them when it begins to follow, and reads them again as the log changes their rows. **Load, then
claim**: until all is current it does not take the lead, since who claims first and loads then serves nobody
meanwhile. While another node leads this takes a part of the time only. When the log is quiet it takes all,
and there is no end of the wait without an end of the work: without a leader nothing comes.
"""

import gc
from collections.abc import Callable

from shards.replicated import ReplicatedStore

from ..delivery.stored_sessions import StoredSessions
from ..settings.config import Config

LED_S = 0.01
"""Time of a step while records come, ..."""
QUIET_S = 0.1
"""... and while none do."""


class Standby:
    """The sessions of a store that follows."""

    def __init__(self, config: Config, store: ReplicatedStore, mono: Callable[[], float]) -> None:
        self._store = store
        self._mono = mono
        self.sessions = StoredSessions(config, store)

    def step(self, *, is_led: bool) -> bool:
        """Read rows for a while; whether there is more to read at once. `is_led`: records have just come.

        Raises StoreFailed.
        """
        sessions = self.sessions
        self._note()
        sessions.step(self._mono, self._mono() + (LED_S if is_led else QUIET_S))
        return not is_led and not sessions.is_current

    def unfit(self) -> str:
        """Why this node cannot lead now; empty: it can."""
        self._note()
        if self.sessions.is_current:
            return ""
        return f"it is still loading sessions: {len(self.sessions.by_id)} so far"

    def lead(self) -> StoredSessions:
        """The sessions for a server that starts to lead."""
        # Else a leader's garbage collector visits all of them before its first answer, for 2 s.
        gc.freeze()
        return self.sessions

    def forget(self) -> None:
        """The store is another from now on."""
        gc.unfreeze()

    def _note(self) -> None:
        for table, key in self._store.take_touched():
            self.sessions.changed(table, key)
