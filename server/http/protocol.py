"""What aiohttp has of a connection: whole requests, one after the other, that the front has read the head of.

The front (server/http/front.py) keeps the socket and hands in bytes; answers go to the socket from here. When
one is out the front is told, and hands in the next request.

What aiohttp's parser refuses all the same never reaches a route or a middleware. It would be answered with
the parser's plain text and logged with a traceback, so that strangers fill the log at will; here it is a
problem like any other, and the connection ends.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from ..net.lingering import LINGER_S
from ..net.unsent import counting
from ..observe.logs import by, shown
from .answers import SERVER
from .problems import Problem

log = logging.getLogger(__name__)


NEVER_S = 1e9
"""The front knows for how long a connection may be idle."""


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
        """`answered`: called after each answer, with whether the connection goes on. `claim`: called with the
        name of the key that a request shows; says why it may not have one more connection."""
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=NEVER_S,
            lingering_time=LINGER_S,  # of a body that nobody wants, behind its answer
            auto_decompress=False,  # it would unpack what is read on only to find its end
        )
        self._answered = answered
        self.address = ""
        """Of the client that has sent the last request; the front writes it."""
        self.claim = claim
        self.is_ended = False
        """The client sends no more; the front writes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(counting(cast("asyncio.Transport", transport)))

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        answer, is_gone = await super().finish_response(request, resp, start_time)
        goes_on = bool(answer.keep_alive) and not is_gone
        if not goes_on:
            self.transport = None  # the front ends it
        self._answered(goes_on)
        return answer, is_gone

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What the parser, or something below the middlewares, has raised, as the last answer."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has already begun")
        if 400 <= status < 500:
            log.debug("not readable: %s", shown((message or "").partition("\n")[0]))
            problem = Problem("not-readable", "Not an HTTP/1.1 request.")
        else:
            log.error("a request failed", exc_info=exc, extra=by(self.address))
            problem = Problem("internal")
        answer = problem.response()
        answer.force_close()
        answer.headers["Server"] = SERVER
        return answer
