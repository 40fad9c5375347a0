"""A connection of aiohttp's that answers with a problem what is not even HTTP.

What the parser of the protocol refuses (a URL of 9,000 characters, a NUL in a header) never reaches a route
or a middleware. aiohttp answers it with plain text and logs each with a traceback, so strangers fill the log
at will; here it is a problem like any other, and the connection ends.
"""

import logging

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from ..logs import by
from .problems import Problem

log = logging.getLogger(__name__)


class Protocol(RequestHandler):
    """One connection."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What the parser, or something below the middlewares, has raised, as the last answer."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way already")
        if 400 <= status < 500:
            log.debug("not readable: %s", (message or "").partition("\n")[0])
            problem = Problem("not-readable", message or "")
        else:
            log.error("a request failed", exc_info=exc, extra=by(request.remote or "?"))
            problem = Problem("internal")
        answer = problem.response()
        answer.force_close()
        return answer
