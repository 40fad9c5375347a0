"""How many bytes of request bodies may be in the server at once, all connections together.

`http.max_body` bounds one body; this bounds their sum (`limits.queued_bytes`), from the first byte read
to the answer. Beyond it a request is refused with 429 before its body is read. A body whose length is not
announced, or that comes compressed, counts as the largest that may be. One request is let through however
large, so that none starves.
"""

from aiohttp import web
from aiohttp.typedefs import Middleware

from ..config import Config
from .answers import RETRY_AFTER, Handler
from .problems import Problem


class Gate:
    """A count of bytes under way."""

    def __init__(self, config: Config) -> None:
        self._max_bytes = config.limits.queued_bytes
        self._max_body = config.http.max_body
        self.bytes = 0

    def middleware(self) -> Middleware:
        @web.middleware
        async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not request.body_exists:
                return await handler(request)
            size = self.enter(None if "Content-Encoding" in request.headers else request.content_length)
            try:
                return await handler(request)
            finally:
                self.bytes -= size

        return bounded

    def enter(self, length: int | None) -> int:
        """Count a body of this announced length; the bytes to give back. Raises Problem."""
        size = self._max_body if length is None else length
        if size > self._max_body:
            raise Problem("too-large", f"the body has {size} bytes, http.max_body is {self._max_body}")
        if self.bytes and self.bytes + size > self._max_bytes:
            raise Problem("over-quota", f"{self.bytes} bytes of requests are under way", headers=RETRY_AFTER)
        self.bytes += size
        return size
