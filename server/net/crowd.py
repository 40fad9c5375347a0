"""All connections under one bound, from their accept to the end of their socket: the same for every protocol.

Which newcomers are taken, by network (an address, of IPv6 its first 64 bits):

    bound on connections of a network    refused
    rate of new connections              refused; an eighth is for networks that have had less than a share
    bound on connections                 another one makes room, or it is refused

Who makes room, the first that is found:

    1. a connection that has ended and lingers; its client has had its answer, and it counts no more
    2. a stranger, which has shown no key: the oldest of the network that has most, if these are more than the
       newcomer's network has. Where no keys are asked for, a stranger is one that has not begun its work
    3. a connection of a key that has more than an equal share, the one that has been idle longest
    4. the same of the network that has most

3 and 4 are for newcomers of networks below an equal share. 4 gives an eighth of the bound away in all. So a
fleet of sleeping devices behind one address loses no more than that, however many networks come.

    bound 4,000, four addresses have 1,000 idle connections each    newcomers of others take up to 500 of them
    bound 10,000, one address has 10,000 half-sent CONNECTs         each newcomer of another takes one of them
    bound 10,000, one address has 10,000 connections                a newcomer from there is refused

A connection that a trusted proxy has for many clients (server/net/proxies.py) counts for the bound alone.

A connection counts from its accept until its socket is gone. A search for the one that has been idle
longest looks at SEARCHED connections, those that it looked at longest ago. What connections hold is counted
and bounded by the pool (pool.py).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from timeline.shares import RESERVED

from ..fair import Share
from ..observe.logs import by
from ..settings.config import Http, Limits
from .networks import Rate, network_of
from .proxies import Proxies

log = logging.getLogger(__name__)

SEARCHED = 64
TICK_S = 0.5
"""How often the connections look whether their clients are too slow."""
NO_PROXIES = Proxies((), has_header=False)
BUSY = float("inf")
"""Since when a connection is idle that is not."""


class Cause(Enum):
    """Why the server ends a connection."""

    STOPPING = "the server is stopping"
    MOVED = "another node leads"
    CROWDED = "its place went to another network or key"


class Connection(Protocol):
    """One connection, as the crowd sees it."""

    address: str
    """Of its client, without the port."""

    @property
    def idle_since_s(self) -> float:
        """When its client was heard last, by the loop's clock; BUSY: it waits for an answer."""

    def check(self, now_s: float, passed_s: float) -> None:
        """End it if its client is too slow; `passed_s` since the last time."""

    def close(self, cause: Cause) -> None:
        """End it in order; what it holds is freed now."""

    def abort(self) -> None:
        """End it now, whatever it is doing."""


One = TypeVar("One", bound=Connection)


class Bounds(NamedTuple):
    """Those of one crowd. 0: no bound, of `per_address` and `rate`."""

    section: str
    """Of config.toml: what has `connections` and `connections_per_address`."""
    connections: int
    per_address: int
    rate: int
    """New connections in a second: `limits.connect_rate`."""


def mqtt_bounds(limits: Limits) -> Bounds:
    most, each = limits.connections, limits.connections_per_address
    return Bounds("limits", most, each, limits.connect_rate)


def http_bounds(http: Http) -> Bounds:
    most, each = http.connections, http.connections_per_address
    return Bounds("http", most, each, 0)


class Ranked(Generic[One]):
    """Connections by name, in the order of their coming, and the name that has most of them."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[One, None]] = {}
        """None is empty."""
        self._by_count: dict[int, dict[str, None]] = {}
        """Names that have so many, those that have had them longest first. None is empty."""
        self.most = 0
        """As many as the name has that has most."""
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
        """The name that has most; empty: there is none."""
        return next(iter(self._by_count[self.most])) if self.most else ""

    def idlest(self, name: str) -> One | None:
        """The longest idle connection, of the least recently checked ones."""
        named = self._by_name.get(name, {})
        seen = list(islice(named, SEARCHED))
        for one in seen:
            named[one] = named.pop(one)
        found = min(seen, key=_idle_since, default=None)
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


def _idle_since(one: Connection) -> float:
    return one.idle_since_s


class Crowd(Generic[One]):
    """The connections under one bound."""

    def __init__(
        self,
        bounds: Bounds,
        bounded: Counter[str],
        told: Callable[[int], None],
        proxies: Proxies = NO_PROXIES,
        share: Share | None = None,
    ) -> None:
        """`bounded`: counts who is refused or ended, by the setting that is the bound. `told`: how many there
        are, whenever that changes. `share`: of how many a key may have; None: who calls counts that."""
        self._share = share
        self.proxies = proxies
        self.bounded = bounded
        self._bounds = bounds
        self._told = told
        self._all: dict[One, str] = {}
        """And whose key each has shown; empty: nobody's."""
        self._networks: Ranked[One] = Ranked()
        """Those that have a socket and are not ending."""
        self._strangers: Ranked[One] = Ranked()
        """By network."""
        self._keys: Ranked[One] = Ranked()
        self._ending: dict[One, None] = {}
        self._shared: set[One] = set()
        """Those of trusted proxies: each may be of many clients, so no bound of a network is theirs."""
        self._given: set[One] = set()
        """Those that have the place of one of the largest network."""
        self._gives = False
        """So has the next that is added."""
        self._rate = Rate(bounds.rate)
        self._looked_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[One]:
        return iter(list(self._all))

    # -- newcomers

    def is_full(self, address: str) -> bool:
        """Whether nobody would make room for one more from there."""
        return self._lacks_room and self._chosen(network_of(address)) is None

    def admits(self, address: str, now_s: float) -> bool:
        """Whether one more from there is taken, after another has made room for it. Says so if not.

        The rate comes last: who is refused for another reason does not use up that of the others.
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
        elif not (is_shared or self._rate.admits(network, now_s)):
            bound = "limits.connect_rate"
            text = f"more than {bound} a second"
        else:
            self._make_room(chosen)
            return True
        log.warning("connection refused: %s", text, extra=by(address))
        self.note(bound)
        return False

    def note(self, bound: str) -> None:
        """One has been refused, or ended, at this bound."""
        self.bounded[bound] += 1

    @property
    def _lacks_room(self) -> bool:
        """Those that have lost their socket, and are not done with what came, count beyond an eighth."""
        most, ending = self._bounds.connections, len(self._ending)
        return self._sockets >= most or len(self._all) - ending >= most + most // RESERVED

    @property
    def _sockets(self) -> int:
        return self._networks.total + len(self._shared)

    def _chosen(self, network: str) -> One | None:
        """Who makes room for a newcomer of that network; None: nobody."""
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
        """Whether so many are more than an equal share. One that is alone shares with the next to come."""
        return count * max(2, owners) > self._bounds.connections

    def _make_room(self, chosen: One | None) -> None:
        """A stranger goes at once. Another is told why, and goes when the next newcomer comes."""
        if self._ending and self._sockets + len(self._ending) >= self._bounds.connections:
            self._cut(next(iter(self._ending)))
        if chosen is None:
            return
        self.note(f"{self._bounds.section}.connections")
        if self._strangers.has(network_of(chosen.address), chosen):
            self._cut(chosen)
        else:
            log.info("connection closed: %s", Cause.CROWDED.value, extra=by(chosen.address))
            self.ends(chosen)
            chosen.close(Cause.CROWDED)

    def _cut(self, one: One) -> None:
        self.discard(one)
        one.abort()

    # -- the life of one

    def add(self, one: One) -> None:
        """It has been admitted, in this turn of the loop."""
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
        self._told(len(self._all))

    def is_shared(self, one: One) -> bool:
        """Whether a trusted proxy has it, for many clients perhaps."""
        return one in self._shared

    def let_in(self, one: One, key: str) -> str:
        """Its client is a stranger no more. `key`: the name that it has shown; empty: nobody is asked.

        What comes back is why the key may not have one more; then nothing has changed.
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

    def ends(self, one: One) -> None:
        """It has been answered for the last time, and lingers."""
        if one in self._all and one not in self._ending:
            self.gone(one)
            self._ending[one] = None

    def gone(self, one: One) -> None:
        """It has no socket any more; what it holds still counts."""
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
        """It is over."""
        if one in self._all:
            self.gone(one)
            del self._all[one]
            self._told(len(self._all))

    # -- all of them

    def look(self, now_s: float) -> None:
        """Hold all of them to their bounds in time."""
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
        """End them all in order, and at once those that are here after so long."""
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
