"""Reports between nodes, over HTTP with the cluster's key."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from urllib.parse import unquote

import aiohttp
import msgspec

from .clocks import Clocks
from .key import ClusterKey
from .members import MEMBERS_MAX, Member, Members, Row, is_other
from .routes import CLOCK, NODE

log = logging.getLogger(__name__)

CALL_S = 2.0
"""How long a node waits for another."""
ANSWER_BYTES = 256 << 10
SET_S = 0.5
"""A call in which wall and monotonic time differ by more says nothing of the other's clock."""
WARN_S = 60.0
UNAUTHORIZED = 401

_ROWS = msgspec.json.Decoder(list[Row])


class Reports:
    """Sends this node's reports, and collects those of all."""

    def __init__(
        self,
        members: Members,
        node: str,
        key: ClusterKey,
        peers: Iterable[str],
        clocks: Clocks,
        wall_ms: Callable[[], int],
        mono: Callable[[], float] = monotonic,
    ) -> None:
        """`peers`: URLs of nodes that have not been heard yet. `clocks`: told of others' clocks, as measured
        by `wall_ms`."""
        self._members = members
        self._node = node
        self._key = key
        self._peers = tuple(peers)
        self._clocks = clocks
        self._wall_ms = wall_ms
        self._mono = mono
        self._warned: dict[tuple[str, int], float] = {}
        """Until when a warning is not repeated, by URL and status."""
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP session; call it on a running loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def tell(self, member: Member, leader_url: str = "") -> None:
        """Report to all other nodes, and compare clocks. `leader_url`: of another node, as its claim has
        it."""
        self._members.hear(member)
        urls = dict.fromkeys(url for url in (leader_url, *self.others()) if url)
        await asyncio.gather(*(self._tell(url, member) for url in urls))

    def others(self) -> Iterator[str]:
        """The URLs of all other nodes; first those with the most of the log that do not lead."""
        rows = [row for row in self._members if row.member.node != self._node]
        rows.sort(key=_worth, reverse=True)
        mine = {row.member.url for row in self._members if row.member.node == self._node}
        yield from dict.fromkeys(
            url for url in (*(row.member.url for row in rows), *self._peers) if url and url not in mine
        )

    def sources(self, first: int, timeline: str) -> list[str]:
        """The URLs of others whose data may continue with a log that begins with record `first`. If one of
        them is fit, only of fit ones: else a copy may have an end that the log has abandoned."""
        lacking = {
            row.member.url
            for row in self._members
            if row.member.applied + 1 < first or is_other(row.member.timeline, timeline)
        }
        fit = {row.member.url for row in self._members if row.is_alive and row.member.fit}
        urls = [url for url in self.others() if url not in lacking]
        return [url for url in urls if url in fit] or urls

    async def _tell(self, url: str, member: Member) -> None:
        sent_ms, sent_at = self._wall_ms(), self._mono()
        try:
            async with self.session.post(
                f"{url}/v1/cluster/nodes",
                data=msgspec.json.encode(member),
                headers={**self._key.headers(url), "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=CALL_S),
                allow_redirects=False,
            ) as answer:
                body = await answer.content.read(ANSWER_BYTES)
                if answer.status == 200:
                    self._compare(answer.headers, sent_ms, sent_at)
                    self._members.hear_all(_ROWS.decode(body), self._mono() - sent_at)
                else:
                    self._warn(url, answer.status)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            log.debug("report: not sent to %s: %s", url, error)

    def _compare(self, headers: Mapping[str, str], sent_ms: int, sent_at: float) -> None:
        """The other's clock, unless ours was set meanwhile, or an older version answers."""
        node, text, now_ms = unquote(headers.get(NODE, "")), headers.get(CLOCK, ""), self._wall_ms()
        was_set = abs((now_ms - sent_ms) / 1000 - (self._mono() - sent_at)) > SET_S
        if node and text.isascii() and text.isdigit() and not was_set:
            self._clocks.measured(node, int(text) - now_ms, int(text) - sent_ms)

    def _warn(self, url: str, status: int) -> None:
        """Log a warning, once in `WARN_S` for each node and status."""
        now = self._mono()
        if now < self._warned.get((url, status), 0.0):
            return
        if len(self._warned) >= MEMBERS_MAX:
            self._warned.clear()
        self._warned[url, status] = now + WARN_S
        why = "its cluster.key differs from this node's" if status == UNAUTHORIZED else f"status {status}"
        log.warning("report: refused by %s: %s", url, why)


def _worth(row: Row) -> tuple[bool, bool, int]:
    """Sort key of a node as a source of a copy."""
    return row.is_alive, row.member.state == "follower", row.member.applied
