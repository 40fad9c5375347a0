"""Begins a log that does not exist, or that is lost: asks all other nodes first (standing.py)."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import aiohttp
import msgspec
from aiohttp import web
from msgspec.structs import replace

from shards.errors import ShardsError
from shards.log.errors import LogError, NoLog
from shards.log.record import ORIGIN
from shards.replicated import ReplicatedStore, new_timeline

from ..http.calls import OPEN, Gives, described
from ..settings.config import Config
from .key import ClusterKey
from .members import Members
from .opening import begin_log
from .reports import CALL_S
from .standing import Standing, is_last, verdict, written_ms

log = logging.getLogger(__name__)

ANSWER_BYTES = 16 << 10
_STANDING = msgspec.json.Decoder(Standing)


async def ask(
    session: aiohttp.ClientSession, urls: Iterable[str], key: ClusterKey
) -> dict[str, Standing | None]:
    """The standing of the nodes at these URLs; None: no answer, or one of an earlier version."""
    each = list(dict.fromkeys(urls))
    return dict(zip(each, await asyncio.gather(*(_ask(session, url, key) for url in each)), strict=True))


async def _ask(session: aiohttp.ClientSession, url: str, key: ClusterKey) -> Standing | None:
    try:
        async with session.get(
            f"{url}/v1/cluster/standing",
            headers=key.headers(url),
            timeout=aiohttp.ClientTimeout(total=CALL_S),
            allow_redirects=False,
        ) as answer:
            body = await answer.content.read(ANSWER_BYTES)
            return _STANDING.decode(body) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        log.debug("standing: no answer of %s: %s", url, error)
        return None


class Beginning:
    """State of a node while there is no log."""

    def __init__(
        self,
        config: Config,
        key: ClusterKey,
        members: Members,
        store: Callable[[], ReplicatedStore | None],
        leads: Callable[[], bool],
    ) -> None:
        """`store`: the one that is open. `leads`: whether this node does."""
        self._config = config
        self._key = key
        self._members = members
        self._store = store
        self._leads = leads
        self._kept = Standing(config.cluster.node)
        """Standing of this node when the store was last opened or closed."""
        self.lost: NoLog | None = None
        """Why there is no log; None: there is one."""
        self.may_begin = False
        """Whether this node may write the first record of a log without any."""

    def keep(self, standing: Standing) -> None:
        """Set the standing of this node when its store is opened, in a thread, or closed."""
        self._kept = standing

    @property
    def timeline(self) -> str:
        """The id of this node's timeline; empty: it has none."""
        store = self._store()
        return self._kept.timeline if store is None else store.timeline

    @property
    def standing(self) -> Standing:
        """The current standing of this node."""
        store, mine = self._store(), self._kept
        if store is not None:
            with suppress(ShardsError):  # it is closed or damaged: the time of its opening counts
                mine = replace(mine, at_ms=written_ms(store))
            mine = mine.up_to(store.applied, store.timeline)
        return replace(
            mine,
            is_lost=store is None and self.lost is not None,
            leads=self._leads(),
            log=self._config.cluster.name,
            heard=max((row.member.applied for row in self._members.ours), default=0),
        )

    async def attempt(self, session: aiohttp.ClientSession, url: str, last: int) -> str:
        """Ask all, and begin the log if this node shall. `url`: its own. `last`: the lost log's last place:
        if another node writes there while the others are asked, this one has decided too late. Returns why
        not; empty: it has."""
        answers = await self._answers(session, url)
        mine = self.standing
        begins, why = verdict(mine, answers)
        if not begins:
            return why
        timeline = mine.timeline or new_timeline()
        seal = mine.seal if mine.seq else ORIGIN
        try:
            await asyncio.to_thread(begin_log, self._config, seal, timeline, last=last)
        except LogError as error:
            return str(error)
        log.warning("log: begun behind record %d, timeline %s", mine.seq, timeline)
        self.may_begin = True
        return ""

    async def last(self, session: aiohttp.ClientSession, url: str) -> int:
        """This node's last record, if all nodes answer, none leads, and none has one more; else -1."""
        mine = self.standing
        return mine.seq if is_last(mine, await self._answers(session, url)) else -1

    async def _answers(self, session: aiohttp.ClientSession, url: str) -> dict[str, Standing | None]:
        """The answers of all peers, with that of this node, whose own `url` is."""
        peers = self._config.cluster.peers
        answers = await ask(session, (peer for peer in peers if peer != url), self._key)
        return {**answers, url: self.standing} if url in peers else answers

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/cluster/standing", self.get)]

    @described("What a node has of the timeline, for another", OPEN, Gives(200, Standing))
    async def get(self, request: web.Request) -> web.Response:
        await self._key.check(request)
        return web.Response(body=msgspec.json.encode(self.standing), content_type="application/json")
