"""`/` and `/console/{file}`: the files of the console, read once and served from memory.

The files are part of the server and say nothing of what it holds, so nobody is asked for a key: the page
asks its user for one when the API does. What a page may do is said to the browser by a strict policy:
scripts, styles and requests of this origin alone, none written into the page, nobody may frame it. So text
of a message that looks like HTML could do nothing even where a page of ours forgot that it is text.

A browser asks each time whether a file has changed (`no-cache`) and hears 304: after an upgrade no page is
half old. Source of the policy: W3C, Content Security Policy Level 3.
"""

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from aiohttp import ETag, web

from ..http.calls import OPEN, Gives, described
from ..http.problems import Problem

INDEX = "index.html"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class File(NamedTuple):
    """One file as it is served."""

    body: bytes
    content_type: str
    tag: str


def shipped() -> dict[str, File]:
    """The files by name. Blocks: for the start."""
    found = {}
    for path in files(__package__).joinpath("static").iterdir():
        kind = TYPES.get(path.name[path.name.rfind(".") :])
        if kind is not None:
            body = path.read_bytes()
            found[path.name] = File(body, kind, sha256(body).hexdigest()[:16])
    return found


class Console:
    """The routes."""

    def __init__(self, shipped: Mapping[str, File]) -> None:
        self._files = shipped

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/", self.page), web.get("/console/{file}", self.file)]

    @described("The console, a page", OPEN, Gives(200, str, media="text/html"), query=None)
    async def page(self, request: web.Request) -> web.Response:
        return self._answer(request, INDEX)

    @described(
        "Its scripts and styles",
        OPEN,
        Gives(200, str, media="text/javascript"),
        query=None,
        problems=("not-found",),
    )
    async def file(self, request: web.Request) -> web.Response:
        return self._answer(request, request.match_info["file"])

    def _answer(self, request: web.Request, name: str) -> web.Response:
        """Raises Problem."""
        file = self._files.get(name)
        if file is None:
            raise Problem("not-found", "The console has no such file.")
        tag = ETag(file.tag)
        known = {
            one.value for one in request.if_none_match or ()
        }  # weak ones, too: a proxy may have packed it
        if file.tag in known or "*" in known:
            answer = web.Response(status=304, headers=HEADERS)
        else:
            answer = web.Response(
                body=file.body, content_type=file.content_type, charset="utf-8", headers=HEADERS
            )
        answer.etag = tag
        return answer
