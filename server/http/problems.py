"""Errors over HTTP: one format for all, RFC 9457 `application/problem+json`.

    409 Conflict
    {"type": "/problems/already-dispatched", "title": "The message has been dispatched", "status": 409,
     "detail": "...", "dispatched_at": "2026-11-21T08:00:00.123Z"}

A *slug* is the stable name that clients may compare. It decides status and title; one table here has them
all. `detail` is for people and may change. Further members are the problem's own data.

A route raises `Problem`, or lets a `RequestError` of the parsers pass. `problem_middleware` turns these, the
exceptions of aiohttp (no such route, wrong method, body too large) and everything unexpected into an answer.
The log gets all of an unexpected error, the client only the fact. An answer that has already begun cannot
become a problem: the connection is closed, so that half an export does not look complete.

Source: RFC 9457.
"""

import errno
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import msgspec
from aiohttp import web

from shards.errors import Corrupt, ShardsError, StoreFailed

from ..observe.logs import by, clean
from .values.batch_body import BatchError, TooMany
from .values.bodies import FieldError, NotReadable, RequestError, UnsupportedMedia

MEDIA_TYPE = "application/problem+json"

SLUGS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "not-readable": (400, "The request cannot be read"),
        "unauthorized": (401, "A valid key is needed"),
        "forbidden": (403, "The key does not allow this"),
        "foreign-origin": (403, "The origin of this page is not allowed"),
        "not-found": (404, "Not found"),
        "method-not-allowed": (405, "Method not allowed"),
        "already-dispatched": (409, "The message has been dispatched"),
        "cancelled": (409, "The message has been cancelled"),
        "clock-not-simulated": (409, "This server runs on the real clock"),
        "wrong-state": (409, "The state does not allow this"),
        "several-results": (409, "Several groups have a result"),
        "undone": (409, "Some messages are not finished"),
        "too-near": (409, "The slice starts too soon to be cut"),
        "job-active": (409, "Another job has the slice or the archive"),
        "stale-token": (409, "The token is not the job's"),
        "nothing-to-expire": (409, "No slice is behind retention"),
        "nothing-to-do": (409, "A job would have nothing to do"),
        "no-spark": (409, "The server cannot run this job itself"),
        "gone": (410, "The message is gone"),
        "request-timeout": (408, "The request took too long to arrive"),
        "precondition-failed": (412, "The resource has changed"),
        "too-large": (413, "The request is too large"),
        "uri-too-long": (414, "The URL is too long"),
        "unsupported-media-type": (415, "The media type is not supported"),
        "expectation-failed": (417, "The expectation cannot be met"),
        "foreign-host": (421, "The host is not one of this server"),
        "other-timeline": (421, "The message is of another timeline"),
        "refused": (422, "The request is invalid"),
        "idempotency-mismatch": (422, "The key was used for another request"),
        "bad-manifest": (422, "The counts differ from the stored ones"),
        "over-quota": (429, "A quota is used up"),
        "result-quota": (429, "There is no room for more results"),
        "head-too-large": (431, "The headers are too large"),
        "unreadable": (500, "The stored data cannot be read"),
        "internal": (500, "Internal server error"),
        "store-unavailable": (503, "The store cannot be written"),
        "not-implemented": (501, "Not implemented"),
        "not-ready": (503, "The server is not ready"),
        "no-leader": (503, "No node leads at the moment"),
        "version-not-supported": (505, "This version of HTTP is not supported"),
    }
)
_AIOHTTP = MappingProxyType(
    {
        SLUGS[slug][0]: slug
        for slug in ("not-readable", "not-found", "method-not-allowed", "too-large", "unsupported-media-type")
    }
)

_LACKING = {
    os.strerror(errno.ENOSPC): "The disk is full: no write can be made durable until there is room.",
    os.strerror(errno.EROFS): "The file system is read-only: no write can be made durable.",
    "being reopened": "The store is being reopened; try again.",
}
"""Text in a store error -> detail for the client."""

log = logging.getLogger(__name__)


class Problem(Exception):
    """An error answer. `slug` is one of SLUGS, `extra` further members of the body.

    `headers` are sent with it: `Retry-After` with over-quota, `WWW-Authenticate` with unauthorized.
    """

    def __init__(
        self, slug: str, detail: str = "", *, headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(f"{slug}: {detail}" if detail else slug)
        self.slug = slug
        self.status, self.title = SLUGS[slug]
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = extra

    def members(self) -> dict[str, Any]:
        """The body as a dict, also for a problem inside an answer (`?each=true`)."""
        members: dict[str, Any] = {
            "type": f"/problems/{self.slug}",
            "title": self.title,
            "status": self.status,
        }
        if self.detail:
            members["detail"] = self.detail
        return members | self.extra

    def to_bytes(self) -> bytes:
        """The body."""
        return msgspec.json.encode(self.members())

    def response(self) -> web.Response:
        """The answer."""
        return web.Response(
            body=self.to_bytes(), status=self.status, headers=self.headers, content_type=MEDIA_TYPE
        )


def problem_of(error: RequestError) -> Problem:
    """A parser's refusal as a problem; refused fields are listed in `errors`."""
    match error:
        case BatchError():
            return Problem("refused", str(error), errors=error.errors, error_count=error.count)
        case FieldError():
            return Problem("refused", str(error), errors=[{"field": error.field, "detail": error.detail}])
        case TooMany():
            return Problem("too-large", str(error), limit=error.limit)
        case UnsupportedMedia():
            return Problem("unsupported-media-type", str(error))
        case NotReadable():
            return Problem("not-readable", str(error))
    return Problem("refused", str(error))


def problem_of_store(error: StoreFailed) -> Problem:
    """A store that cannot be written or read now."""
    detail = why_unavailable(error) or "No write can be made durable now."
    return Problem("store-unavailable", detail, headers={"Retry-After": "1"})


def why_unavailable(error: ShardsError) -> str:
    """What the client learns about a store failure. Empty if nobody could do anything about it."""
    return next((detail for words, detail in _LACKING.items() if words in str(error)), "")


def _of_aiohttp(error: web.HTTPException) -> web.Response:
    """aiohttp's own error in our format, with its headers (Allow) kept."""
    slug = _AIOHTTP.get(error.status)
    plain = f"{error.status}: {error.reason}"
    detail = error.text if error.text and error.text != plain else ""
    headers = {name: value for name, value in error.headers.items() if not name.startswith("Content-")}
    if slug is not None:
        return Problem(slug, detail, headers=headers).response()
    phrase = HTTPStatus(error.status).phrase
    members = {"type": "about:blank", "title": phrase, "status": error.status, "detail": detail or phrase}
    body = msgspec.json.encode(members)
    return web.Response(body=body, status=error.status, headers=headers, content_type=MEDIA_TYPE)


def _answer(request: web.Request, error: Exception) -> web.Response:
    match error:
        case Problem():
            return error.response()
        case RequestError():
            return problem_of(error).response()
        case web.HTTPException():
            return _of_aiohttp(error)
        case web.RequestPayloadError():
            return _closing(request, Problem("not-readable", "the body does not match its headers"))
        case StoreFailed():
            return problem_of_store(error).response()
        case Corrupt():
            cause = by(address_of(request))
            log.error("%s %s: %s", request.method, clean(request.raw_path, 200), error, extra=cause)
            return Problem("unreadable").response()
    cause = by(address_of(request))
    log.error("%s %s failed", request.method, clean(request.raw_path, 200), exc_info=error, extra=cause)
    return Problem("internal").response()


def address_of(request: web.BaseRequest) -> str:
    """The client's address, also behind a trusted proxy: the front knows it."""
    return getattr(request.protocol, "address", "") or request.remote or "?"


def _closing(request: web.Request, problem: Problem) -> web.Response:
    """A problem that closes the connection, because the start of the next request is unknown.

    The rest of the body is not read, although aiohttp would read it to find its end.
    """
    request.content.feed_eof()
    answer = problem.response()
    answer.force_close()
    return answer


def _under_way(request: web.Request) -> bool:
    """Whether an answer has begun: bytes are out, or aiohttp's writer is set up for its body."""
    writer = request.writer
    return bool(writer.output_size or getattr(writer, "chunked", False)) or writer.length is not None


@web.middleware
async def problem_middleware(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn every error of a route into a problem answer."""
    try:
        return await handler(request)
    except ConnectionResetError:
        raise  # the client is gone
    except Exception as error:
        if isinstance(error, web.HTTPException) and error.status < 400:
            raise
        if _under_way(request):
            if request.transport is not None:
                request.transport.abort()
            raise
        return _answer(request, error)
