"""CORS: what lets pages of other origins read answers. Those of http.origins may; nobody else hears a word.

Keys go in `Authorization`, which a page has to set itself, so no credentials of the browser's are allowed.

Source: the Fetch standard, "CORS protocol".
"""

from aiohttp import web
from aiohttp.typedefs import Middleware

from ..browsers import Pages
from .answers import Handler

PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match",
    "Access-Control-Max-Age": "600",
}
EXPOSED = {"Access-Control-Expose-Headers": "ETag, Idempotent-Replayed, Location, Retry-After"}


def cors(pages: Pages) -> Middleware:
    """Opens answers to the pages that may read them."""

    @web.middleware
    async def opened(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is None or not pages.opens_to(origin):
            return await handler(request)
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return web.Response(status=204, headers={**_opened_to(origin), **PREFLIGHT})
        request[ORIGIN] = origin
        return await handler(request)

    return opened


async def open_answer(request: web.Request, answer: web.StreamResponse) -> None:
    """For `on_response_prepare`: also what is streamed gets its headers."""
    origin = request.get(ORIGIN)
    if origin is not None:
        answer.headers.update({**_opened_to(origin), **EXPOSED})


ORIGIN = web.RequestKey("origin", str)


def _opened_to(origin: str) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
