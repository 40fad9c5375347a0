"""aiohttp's side of a connection: one request after the other, whose heads the front has read.

The front (server/http/front.py) keeps the socket and passes in bytes; answers go to the socket from here.
After each answer the front is called, and passes in the next request.

A request that aiohttp's parser still refuses never reaches a route or middleware. aiohttp would answer it
with plain text and log a traceback, so that strangers could fill the log; here it is a problem like any
other, and the connection is closed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from ..net.lingering import LINGER_S
from ..net.unsent import counting
from ..observe.logs import by, clean
from .answers import SERVER
from .problems import Problem

log = logging.getLogger(__name__)


NEVER_S = 1e9
"""The front limits idle time instead."""


def is_gone(request: web.BaseRequest) -> bool:
    """Whether the client is gone, or has shut down its side of the connection."""
    protocol = request.protocol
    return (isinstance(protocol, Protocol) and protocol.is_ended) or request.transport is None


class Protocol(RequestHandler):
    """One connection."""

    __slots__ = ("_answered", "address", "claim", "is_ended")

    def __init__(
        self,
        server: web.Server,
        answered: Callable[[bool], None],
        claim: Callable[[str], str],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`answered`: called after each answer, with whether the connection continues. `claim`: called with
        the name of a request's key; returns why the key may not have another connection."""
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=NEVER_S,
            lingering_time=LINGER_S,  # for the unread body behind an answer
            auto_decompress=False,  # it would unpack a body that is read only to find its end
        )
        self._answered = answered
        self.address = ""
        """Address of the last request's client; set by the front."""
        self.claim = claim
        self.is_ended = False
        """The client has shut down its sending side; set by the front."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(counting(cast("asyncio.Transport", transport)))

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            answer, is_gone = await super().finish_response(request, resp, start_time)
        except RuntimeError:
            if self.transport is not None and not self.transport.is_closing():
                raise
            answer, is_gone = resp, True  # uvloop says so of a handle that has been closed meanwhile
        goes_on = bool(answer.keep_alive) and not is_gone
        if not goes_on:
            self.transport = None  # the front closes it
        self._answered(goes_on)
        return answer, is_gone

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The last answer, for an error of the parser or below the middlewares."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has already begun")
        if 400 <= status < 500:
            log.debug("not readable: %s", clean((message or "").partition("\n")[0]))
            problem = Problem("not-readable", "Not an HTTP/1.1 request.")
        else:
            log.error("a request failed", exc_info=exc, extra=by(self.address))
            problem = Problem("internal")
        answer = problem.response()
        answer.force_close()
        answer.headers["Server"] = SERVER
        return answer
