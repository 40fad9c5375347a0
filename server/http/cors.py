"""CORS: lets pages of the origins in http.origins read answers, and no others.

Keys go in `Authorization`, which a page must set itself, so the browser's credentials are not allowed.

If there are such origins every answer has `Vary: Origin`, also to requests without one: otherwise a cache
could serve a page an answer that is not open to it.

Source: the Fetch standard, "CORS protocol" and "CORS protocol and HTTP caches".
"""

import re
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from ..net.browsers import Pages
from .answers import Handler

PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match",
    "Access-Control-Max-Age": "600",
}
EXPOSED = {"Access-Control-Expose-Headers": "ETag, Idempotent-Replayed, Location, Retry-After"}
VARY = {"Vary": "Origin"}
_ORIGIN = re.compile(rb"\r\nOrigin:[ \t]*([\x21-\x7e]+)[ \t]*\r\n", re.IGNORECASE)


def preflight(pages: Pages) -> Middleware:
    """Middleware that answers a browser's preflight request, if the page is allowed."""

    @web.middleware
    async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_preflight = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if is_preflight and pages.opens_to(request.headers.get("Origin")):
            return web.Response(status=204, headers=PREFLIGHT)
        return await handler(request)

    return answer_preflight


def opening(pages: Pages) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Handler for `on_response_prepare`: streamed answers get the headers too."""

    async def prepare(request: web.Request, answer: web.StreamResponse) -> None:
        answer.headers.update(opened(pages, request.headers.get("Origin")))

    return prepare


def opened(pages: Pages, origin: str | None) -> dict[str, str]:
    """CORS headers of an answer to a page of this origin; None: no page."""
    if origin is not None and pages.opens_to(origin):
        return {"Access-Control-Allow-Origin": origin, **EXPOSED, **VARY}
    return VARY if pages.opens_to_some else {}


def origin_in(head: bytes) -> str | None:
    """The origin in an unparsed head of a refused request; None if there is none, or not exactly one."""
    found = _ORIGIN.findall(head.partition(b"\r\n\r\n")[0] + b"\r\n")
    return found[0].decode() if len(found) == 1 else None
