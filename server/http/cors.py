"""CORS: what lets pages of other origins read answers. Those of http.origins may; nobody else hears a word.

Keys go in `Authorization`, which a page has to set itself, so no credentials of the browser's are allowed.

Where there are such origins an answer that a cache may keep says that it depends on `Origin`, also to who has
named none: else the cache would give a page what is not open to it.

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
    """Answers a browser that asks whether a page may, if it may."""

    @web.middleware
    async def asked(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_asked = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if is_asked and pages.opens_to(request.headers.get("Origin")):
            return web.Response(status=204, headers=PREFLIGHT)
        return await handler(request)

    return asked


def opening(pages: Pages) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """For `on_response_prepare`: also what is streamed gets its headers."""

    async def prepare(request: web.Request, answer: web.StreamResponse) -> None:
        answer.headers.update(opened(pages, request.headers.get("Origin")))

    return prepare


def opened(pages: Pages, origin: str | None) -> dict[str, str]:
    """The headers of an answer to a page of this origin; None: to no page."""
    if origin is not None and pages.opens_to(origin):
        return {"Access-Control-Allow-Origin": origin, **EXPOSED, **VARY}
    return VARY if pages.opens_to_some else {}


def origin_in(head: bytes) -> str | None:
    """The origin that a head names which nobody has read, as it is refused: maybe none, or half of one."""
    found = _ORIGIN.findall(head.partition(b"\r\n\r\n")[0] + b"\r\n")
    return found[0].decode() if len(found) == 1 else None
