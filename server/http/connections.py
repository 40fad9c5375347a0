"""All HTTP connections of a server, and the bounds on them: how many, from where, how much they hold.

A connection has bounds of its own in time (server/http/front.py), which are looked at here for all of them,
twice a second: one timer instead of one for each request. What a client has sent ahead counts at once, what
it does not read when all are looked at, or when a large answer does not go out. Above `http.buffered_bytes`
one is cut, as often as it takes: of the network that holds most the one that holds most. Were it the largest
of all, a hundred that hold a little each would have everybody else's answers cut.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from ..net.networks import Networks, network_of
from ..observe.logs import by
from ..observe.metrics import Metrics
from ..settings.config import Http

log = logging.getLogger(__name__)

TICK_S = 0.5
CLOSE_S = 3.0
"""How long answers may take when the server stops."""


class Bounded(Protocol):
    """A connection, as its bounds see it."""

    address: str
    kept_bytes: int
    """Read and not handled; `Connections.keep` writes it."""

    @property
    def unsent_bytes(self) -> int:
        """What its client has not read yet."""

    def check(self, now_s: float, passed_s: float) -> None:
        """End it if its client is too slow; `passed_s` since the last time."""

    def stop(self) -> None:
        """Nothing new: end it, if need be after an answer."""

    def cut(self) -> None:
        """End it at once."""


class Connections:
    """Those that are open."""

    def __init__(self, config: Http, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._all: dict[Bounded, str] = {}
        """Those that are open, and the network that each is from."""
        self._networks = Networks()
        self._kept_bytes = 0
        self._looked_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Bounded]:
        return iter(list(self._all))

    def admits(self, address: str) -> bool:
        """Whether there is room for one more from there. Says so if not."""
        config, cause = self._config, by(address)
        if len(self._all) >= config.connections:
            text = "connection refused: %d are open, as many as http.connections"
            log.warning(text, len(self._all), extra=cause)
            self.note("http.connections")
            return False
        if self._networks.count(address) >= config.connections_per_address:
            text = "connection refused: as many are open from there as http.connections_per_address"
            log.warning(text, extra=cause)
            self.note("http.connections_per_address")
            return False
        return True

    def add(self, connection: Bounded) -> None:
        self._all[connection] = network_of(connection.address)
        self._metrics.connections += 1
        self._networks.add(connection.address)

    def discard(self, connection: Bounded) -> None:
        if connection not in self._all:
            return
        self.keep(connection, 0)
        del self._all[connection]
        self._metrics.connections -= 1
        self._networks.discard(connection.address)

    def keep(self, connection: Bounded, kept_bytes: int) -> None:
        """Note what a connection keeps."""
        self._kept_bytes += kept_bytes - connection.kept_bytes
        connection.kept_bytes = kept_bytes
        if self._kept_bytes > self._config.buffered_bytes:
            self.relieve()

    def note(self, bound: str) -> None:
        """One has been refused, or closed, at this bound."""
        self._metrics.bounded[bound] += 1

    def look(self, now_s: float) -> None:
        """Hold all of them to their bounds."""
        passed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        for connection in self:
            connection.check(now_s, passed_s)
        self.relieve()

    def look_on(self) -> None:
        """Do so twice a second from now on."""
        if self._timer is None:
            self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self.look(loop.time())
        self._timer = loop.call_later(TICK_S, self._look)

    async def close(self) -> None:
        """End them: who waits for an answer gets it, for `CLOSE_S` at most."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        for connection in self:
            connection.stop()
        deadline = loop.time() + CLOSE_S
        # Bounded, and only at the end.
        while self._all and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for connection in self:
            connection.cut()

    def relieve(self) -> None:
        """Cut connections, while all hold more than they may."""
        held = {one: one.kept_bytes + one.unsent_bytes for one in self._all}
        over = sum(held.values()) - self._config.buffered_bytes
        if over <= 0:
            return
        totals: Counter[str] = Counter()
        rising: dict[str, list[Bounded]] = {}
        for one in sorted(held, key=held.__getitem__):
            network = self._all[one]
            totals[network] += held[one]
            rising.setdefault(network, []).append(one)
        while over > 0:
            ((network, _),) = totals.most_common(1)
            connection = rising[network].pop()
            log.warning(
                "connection closed: http.buffered_bytes are held, and from nowhere else so many",
                extra=by(connection.address),
            )
            self.note("http.buffered_bytes")
            connection.cut()
            over -= held[connection]
            totals[network] -= held[connection]
