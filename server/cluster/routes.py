"""The cluster's calls, on every node: for users, and between nodes.

    GET  /v1/cluster             the cluster as this node sees it
    POST /v1/cluster/nodes       a node's report; answered with all reports
    GET  /v1/cluster/checkpoint  a copy of this node's data (copy_out.py)

Nodes use the cluster's key, which is not in the keys file.
"""

from collections.abc import Callable
from urllib.parse import quote

import msgspec
from aiohttp import web

from ..http.answers import json_answer
from ..http.calls import ANY, OPEN, Gives, described
from ..http.problems import Problem
from .key import ClusterKey
from .members import Member, Members, Row
from .view import View

REPORT_BYTES = 16 << 10
NODE, CLOCK = "Fasti-Node", "Fasti-Clock"
"""Headers of the answer to a report: the node's name, quoted, and its wall time, ms."""

_REPORT = msgspec.json.Decoder(Member)


class ClusterRoutes:
    """The routes that need no store."""

    def __init__(
        self,
        view: Callable[[], View],
        members: Members,
        key: ClusterKey,
        node: str,
        wall_ms: Callable[[], int],
    ) -> None:
        """`wall_ms`: the clock of this `node`, which its answers tell."""
        self._view = view
        self._members = members
        self._key = key
        self._node = quote(node)
        self._wall_ms = wall_ms

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/cluster", self.get),
            web.post("/v1/cluster/nodes", self.report),
        ]

    @described("The cluster as this node sees it", ANY, Gives(200, View))
    async def get(self, _: web.Request) -> web.Response:
        return json_answer(self._view())

    @described("A node reports to another", OPEN, Gives(200, list[Row]), query=None)
    async def report(self, request: web.Request) -> web.Response:
        await self._key.check(request)
        if request.content_length is None or request.content_length > REPORT_BYTES:
            raise Problem("too-large", f"A report may have at most {REPORT_BYTES} bytes.")
        try:
            self._members.hear(_REPORT.decode(await request.read()))
        except msgspec.DecodeError as error:
            raise Problem("not-readable", f"The report cannot be read: {error}") from None
        return web.Response(
            body=msgspec.json.encode(list(self._members)),
            content_type="application/json",
            headers={NODE: self._node, CLOCK: str(self._wall_ms())},
        )
