"""The cluster's key: this node sends it to others, and requires it from them.

    right key     answered at once, whatever its network sent before
    wrong key     logged with its address. After FREE of one network (server/auth/backoff.py) each answer is
                  held back for HOLD_S: a connection tries one key a second. A node waits longer than that for
                  another (reports.py), so one with a wrong key still learns why
    no key        answered at once

At most HELD_MAX answers are held back at a time; beyond that a connection with a wrong key is aborted, so
each try costs its client a new connection.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from urllib.parse import urlsplit

from aiohttp import web

from ..auth.backoff import Backoff
from ..http.problems import Problem, address_of
from ..net.networks import network_of
from ..observe.logs import by, clean
from ..settings.kinds import Address
from .members import MEMBERS_MAX

log = logging.getLogger(__name__)

HOLD_S = 1.0
HELD_MAX = 64
NAME = "cluster.key"


class ClusterKey:
    """The key of all nodes. While it is changed, they know two: the first is sent, each is taken."""

    def __init__(
        self,
        keys: Sequence[str],
        mono: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._bearers = [f"Bearer {key}" for key in keys]
        self._backoff = Backoff(mono)
        self._sleep = sleep
        self._held = 0
        """Answers currently held back."""
        self._warned: set[str] = set()
        """URLs to which the key was sent over plain http."""

    def headers(self, url: str) -> Mapping[str, str]:
        """Headers with the key for the node at `url`. Warns once about a URL without TLS."""
        parts = urlsplit(url)
        if parts.scheme == "http" and url not in self._warned:
            if len(self._warned) >= MEMBERS_MAX:
                self._warned.clear()
            self._warned.add(url)
            if not Address(parts.hostname or "", 0).is_loopback:
                text = "cluster.key is sent to %s over plain http: others can read it and the data; use https"
                log.warning(text, clean(url))
        return {"Authorization": self._bearers[0]}

    async def check(self, request: web.Request) -> None:
        """Raise Problem unless the request has the key."""
        header = request.headers.get("Authorization", "")
        given = header.encode(errors="surrogateescape")
        if any(hmac.compare_digest(given, bearer.encode()) for bearer in self._bearers):
            return
        if header:
            await self._refuse(request)
        raise Problem("unauthorized", "Only cluster nodes may call this; send the cluster key.")

    async def _refuse(self, request: web.Request) -> None:
        address = address_of(request)
        log.warning("cluster.key: wrong key from %s", address, extra=by(address))
        network = network_of(address)
        self._backoff.failed(network, NAME)
        if not self._backoff.wait_s(network, NAME):
            return
        if self._held >= HELD_MAX:
            if request.transport is not None:
                request.transport.abort()
            return
        self._held += 1
        try:
            await self._sleep(HOLD_S)
        finally:
            self._held -= 1
