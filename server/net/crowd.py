"""All connections under one bound, from accept to the end of the socket: the same for every protocol.

Admission, by network (an address, of IPv6 its first 64 bits):

    bound on connections of a network    refused
    rate of new connections              refused; an eighth is for networks that have had less than a share
    bound on connections                 another is evicted, or it is refused

Eviction, the first of these that is found:

    1. a connection that lingers after its end; its client has had its answer
    2. a stranger, without a key: the oldest of the network that has most, if it has more than the newcomer's
       network. If no keys are needed, a stranger is a connection that has not begun its work
    3. the longest idle connection of a key that has more than an equal share
    4. the same of the network that has most

3 and 4 apply only for newcomers of networks below an equal share. 4 gives away at most an eighth of the
bound. So a fleet of sleeping devices behind one address loses no more than that, however many networks come.

    bound 4,000, four addresses have 1,000 idle connections each    newcomers of others take up to 500 of them
    bound 10,000, one address has 10,000 half-sent CONNECTs         each newcomer of another takes one of them
    bound 10,000, one address has 10,000 connections                a newcomer from there is refused

A connection of a trusted proxy for many clients (server/net/proxies.py) counts only for the overall bound.

A connection counts from its accept until its socket is gone. A search for the longest idle one looks at
SEARCHED connections, the least recently checked. The pool (pool.py) bounds the bytes that connections hold.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeVar

from timeline.shares import RESERVED

from ..fair import Share
from ..observe.logs import by
from ..settings.config import Http, Limits
from .networks import ConnectRateLimiter, network_of
from .proxies import Proxies

log = logging.getLogger(__name__)

SEARCHED = 64
TICK_S = 0.5
"""How often connections check whether their clients are too slow."""
NO_PROXIES = Proxies((), has_header=False)
BUSY = float("inf")
"""Idle time of a connection that is not idle."""


class Cause(Enum):
    """Why the server closes a connection."""

    STOPPING = "the server is stopping"
    MOVED = "another node leads"
    CROWDED = "its place went to another network or key"


class Connection(Protocol):
    """One connection, as the crowd sees it."""

    address: str
    """The client's address, without the port."""

    @property
    def idle_since_s(self) -> float:
        """When the client last sent data, by the loop's clock; BUSY: it waits for an answer."""

    def check(self, now_s: float, passed_s: float) -> None:
        """Close it if its client is too slow; `passed_s` since the last check."""

    def close(self, cause: Cause) -> None:
        """Close it in order; frees what it holds at once."""

    def abort(self) -> None:
        """Close it now, whatever it is doing."""


One = TypeVar("One", bound=Connection)


class Bounds(NamedTuple):
    """Bounds of one crowd. 0: no bound, for `per_address` and `rate`."""

    section: str
    """Section of config.toml with `connections` and `connections_per_address`."""
    connections: int
    per_address: int
    rate: int
    """Maximum new connections in a second: `limits.connect_rate`."""


def mqtt_bounds(limits: Limits) -> Bounds:
    return Bounds("limits", limits.connections, limits.connections_per_address, limits.connect_rate)


def http_bounds(http: Http) -> Bounds:
    return Bounds("http", http.connections, http.connections_per_address, 0)


class Ranked(Generic[One]):
    """Connections by name, in order of arrival, and the name with most of them."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[One, None]] = {}
        """No entry is empty."""
        self._by_count: dict[int, dict[str, None]] = {}
        """Names by their number of connections, the longest at it first. No entry is empty."""
        self.most = 0
        """The largest number of connections of a name."""
        self.total = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def count(self, name: str) -> int:
        return len(self._by_name.get(name, ()))

    def has(self, name: str, one: One) -> bool:
        return one in self._by_name.get(name, ())

    def add(self, name: str, one: One) -> None:
        named = self._by_name.setdefault(name, {})
        if one not in named:
            named[one] = None
            self.total += 1
            self._moved(name, len(named) - 1, len(named))

    def discard(self, name: str, one: One) -> None:
        named = self._by_name.get(name, {})
        if one in named:
            del named[one]
            self.total -= 1
            self._moved(name, len(named) + 1, len(named))
            if not named:
                del self._by_name[name]

    def largest(self) -> str:
        """The name with most connections; empty: none."""
        return next(iter(self._by_count[self.most])) if self.most else ""

    def idlest(self, name: str) -> One | None:
        """The longest idle connection, of the least recently checked ones."""
        named = self._by_name.get(name, {})
        seen = list(islice(named, SEARCHED))
        for one in seen:
            named[one] = named.pop(one)
        found = min(seen, key=attrgetter("idle_since_s"), default=None)
        return None if found is None or found.idle_since_s == BUSY else found

    def _moved(self, name: str, before: int, after: int) -> None:
        if before:
            del self._by_count[before][name]
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[name] = None
        if after > self.most or self.most not in self._by_count:
            self.most = after


class Crowd(Generic[One]):
    """The connections under one bound."""

    def __init__(
        self,
        bounds: Bounds,
        bounded: Counter[str],
        report_count: Callable[[int], None],
        proxies: Proxies = NO_PROXIES,
        share: Share | None = None,
    ) -> None:
        """`bounded`: counts refused and closed connections, by the setting of the bound. `report_count`: gets
        the number of connections whenever it changes. `share`: of connections by key; None: the caller counts
        them."""
        self._share = share
        self.proxies = proxies
        self.bounded = bounded
        self._bounds = bounds
        self._report_count = report_count
        self._all: dict[One, str] = {}
        """The key of each; empty: none."""
        self._networks: Ranked[One] = Ranked()
        """Connections that have a socket and are not closing."""
        self._strangers: Ranked[One] = Ranked()
        """By network."""
        self._keys: Ranked[One] = Ranked()
        self._ending: dict[One, None] = {}
        self._shared: set[One] = set()
        """Connections of trusted proxies: each may be for many clients, so bounds by network do not apply."""
        self._given: set[One] = set()
        """Connections that took the place of one of the largest network."""
        self._gives = False
        """The next one that is added takes such a place."""
        self._rate_limiter = ConnectRateLimiter(bounds.rate)
        self._looked_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[One]:
        return iter(list(self._all))

    # -- admission

    def is_full(self, address: str) -> bool:
        """Whether no connection could be evicted for one more from there."""
        return self._lacks_room and self._chosen(network_of(address)) is None

    def admits(self, address: str, now_s: float) -> bool:
        """Whether one more from there is admitted, perhaps after an eviction. Logs a refusal.

        The rate comes last: a connection that is refused for another reason does not use it up.
        """
        network, bounds, chosen = network_of(address), self._bounds, None
        self._gives = False
        is_shared = self.proxies.trusts(address)
        if 0 < bounds.per_address <= self._networks.count(network):
            bound = f"{bounds.section}.connections_per_address"
            text = f"as many are open from there as {bound}"
        elif self._lacks_room and (chosen := self._chosen(network)) is None:
            bound = f"{bounds.section}.connections"
            text = f"{len(self._all)} are open, as many as {bound}"
        elif not (is_shared or self._rate_limiter.admits(network, now_s)):
            bound = "limits.connect_rate"
            text = f"more than {bound} a second"
        else:
            self._make_room(chosen)
            return True
        log.warning("connection refused: %s", text, extra=by(address))
        self.note(bound)
        return False

    def note(self, bound: str) -> None:
        """Count a connection refused or closed at this bound."""
        self.bounded[bound] += 1

    @property
    def _lacks_room(self) -> bool:
        """Connections without a socket that still process input count beyond an eighth."""
        most, ending = self._bounds.connections, len(self._ending)
        return self._sockets >= most or len(self._all) - ending >= most + most // RESERVED

    @property
    def _sockets(self) -> int:
        return self._networks.total + len(self._shared)

    def _chosen(self, network: str) -> One | None:
        """The connection to evict for a newcomer of that network; None: none."""
        strangers, keys, networks = self._strangers, self._keys, self._networks
        found = None
        if strangers.most > strangers.count(network):
            found = strangers.idlest(strangers.largest())
        mine = networks.count(network)
        owners = len(networks) + (not mine)
        if found is not None or self._exceeds(mine + 1, owners):
            return found
        if self._exceeds(keys.most, len(keys)):
            found = keys.idlest(keys.largest())
        has_reserve = len(self._given) < self._bounds.connections // RESERVED
        if found is None and has_reserve and self._exceeds(networks.most, owners):
            found = networks.idlest(networks.largest())
            self._gives = found is not None
        return found

    def _exceeds(self, count: int, owners: int) -> bool:
        """Whether `count` is more than an equal share. A lone owner shares with the next."""
        return count * max(2, owners) > self._bounds.connections

    def _make_room(self, chosen: One | None) -> None:
        """Abort a stranger at once. Close another in order; it is aborted when the next newcomer comes."""
        if self._ending and self._sockets + len(self._ending) >= self._bounds.connections:
            self._abort(next(iter(self._ending)))
        if chosen is None:
            return
        self.note(f"{self._bounds.section}.connections")
        log.info("connection closed: %s", Cause.CROWDED.value, extra=by(chosen.address))
        if self._strangers.has(network_of(chosen.address), chosen):
            self._abort(chosen)
        else:
            self.lingers(chosen)
            chosen.close(Cause.CROWDED)

    def _abort(self, one: One) -> None:
        self.discard(one)
        one.abort()

    # -- life cycle

    def add(self, one: One) -> None:
        """Add an admitted connection, in the same turn of the loop."""
        network = network_of(one.address)
        self._all[one] = ""
        if self.proxies.trusts(one.address):
            self._shared.add(one)
        else:
            self._networks.add(network, one)
            self._strangers.add(network, one)
        if self._gives:
            self._given.add(one)
        self._gives = False
        self._report_count(len(self._all))

    def is_shared(self, one: One) -> bool:
        """Whether it belongs to a trusted proxy, perhaps for many clients."""
        return one in self._shared

    def let_in(self, one: One, key: str) -> str:
        """Its client has authenticated. `key`: name of its key; empty: no keys are needed.

        Returns why the key may not have another connection; then nothing has changed.
        """
        if one in self._ending or one in self._shared or one not in self._all:
            return ""
        before = self._all[one]
        if before != key:
            why = self._share.refusal(key) if self._share is not None and key else ""
            if why:
                return why
            self._disown(one)
            self._all[one] = key
        if key and before != key:
            self._keys.add(key, one)
            if self._share is not None:
                self._share.add(key)
        self._strangers.discard(network_of(one.address), one)
        return ""

    def lingers(self, one: One) -> None:
        """It has had its last answer, and lingers."""
        if one in self._all and one not in self._ending:
            self.lost_socket(one)
            self._ending[one] = None

    def lost_socket(self, one: One) -> None:
        """Its socket is gone; what it holds still counts."""
        network = network_of(one.address)
        self._networks.discard(network, one)
        self._strangers.discard(network, one)
        self._disown(one)
        self._ending.pop(one, None)
        self._shared.discard(one)
        self._given.discard(one)

    def _disown(self, one: One) -> None:
        key = self._all.get(one, "")
        if self._share is not None and self._keys.has(key, one):
            self._share.add(key, -1)
        self._keys.discard(key, one)

    def discard(self, one: One) -> None:
        """Remove it."""
        if one in self._all:
            self.lost_socket(one)
            del self._all[one]
            self._report_count(len(self._all))

    # -- all connections

    def look(self, now_s: float) -> None:
        """Enforce the time limits of all connections."""
        passed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        for one in self:
            one.check(now_s, passed_s)

    def look_on(self) -> None:
        """Do so twice a second from now on."""
        if self._timer is None:
            self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self.look(loop.time())
        self._timer = loop.call_later(TICK_S, self._look)

    async def close(self, cause: Cause, patience_s: float) -> None:
        """Close all in order, and abort those left after `patience_s`."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        for one in self:
            one.close(cause)
        deadline = loop.time() + patience_s
        # Bounded, and only at the end.
        while self._all and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for one in self:
            one.abort()
