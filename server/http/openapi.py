"""`GET /openapi.json` and `GET /docs`: the HTTP API described by itself, OpenAPI 3.1.

Everything is derived. Paths come from the router; parameters and answers of a call from the `@described`
above its handler (calls.py), which also checks the query; bodies from the types that decode them; answers
from the types that the views are checked against. A test finds routes without a description.

Calls are in the order of use, under tags, each with a shell command. Its body is the example beside the
handler; tests send each of them.

Problems: every possible status of a call is listed with its slugs. 500 and the errors of HTTP itself (no such
path, wrong method) are possible for any call, and are not listed.
"""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import web

from ..observe.version import server_version
from .answers import raw_answer
from .calls import ANY, JSON, NDJSON, OPEN, Call, Gives, call_of, described
from .page import page_of
from .problems import MEDIA_TYPE, SLUGS
from .schemas import REF, Json, Types
from .values import shapes
from .values.scalars import PATH, PATH_EXAMPLES, RetryAfter

DESCRIPTION = (
    "A delayed and scheduled message queue. Errors are RFC 9457 problem documents: 400 is what cannot be "
    "read, 422 what was read and is refused, naming field and line. Any call can answer 500 (internal)."
)
WAITING = (429, 503)
"""Statuses with Retry-After."""
NOBODY = "; ".join(f"{what} 'none'" for what in ("default-src", "base-uri", "form-action", "frame-ancestors"))
POLICY = f"{NOBODY}; style-src 'unsafe-inline'"
"""Content-Security-Policy of the page: it loads nothing, and may not be framed."""
PROBLEMS = "x-problems"
"""Member of an answer: the types that its problem can have."""
KEY = "key"
KEY_TEXT = "A key of this server, and the scope that it has to have; none named: any key."
_VERBS = ("post", "put", "get", "patch", "delete")
TAGS = {
    "messages": "Schedule a message, look at it, move it, cancel it: one, a batch, or all that match.",
    "schedules": "Messages that come again: cron, every so often, RFC 5545 rules; with zone and calendar.",
    "groups": "Workers that share the messages of a filter, by MQTT or by pull.",
    "sessions": "Who subscribes, how far each has read; set back, forget.",
    "retries": "What waits for its next try: look, try now, give up, drop.",
    "dead": "What was given up: look, send again, drop.",
    "endpoints": "Where messages are posted to over HTTP.",
    "timeline": "What is where in time: density, slices, shards, what moves just now.",
    "jobs": "Splits of overfull slices and expiry of old ones.",
    "backups": "Consistent copies.",
    "cluster": "The nodes, and what they say to each other.",
    "server": "The server itself: whether it is well, metrics, its clock, this description, the console.",
}
"""In the order of use."""
_OF = {"slices": "timeline", "events": "timeline"}
"""First part of a path below /v1 -> tag, where they differ."""
_LAST = "server"


class OpenApi:
    """The routes. The document is made on first use, when all routes are known."""

    def __init__(self, *, has_api_keys: bool) -> None:
        """`has_api_keys`: calls need a key."""
        self._has_api_keys = has_api_keys
        self._document: Json = {}

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/openapi.json", self.get), web.get("/docs", self.page)]

    @described("This document", ANY, Gives(200, dict[str, Any]))
    async def get(self, request: web.Request) -> web.Response:
        return raw_answer(msgspec.json.format(msgspec.json.encode(self._of(request))))

    @described("This document as a page", ANY, Gives(200, str, media="text/html"))
    async def page(self, request: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
        return web.Response(text=page_of(self._of(request)), content_type="text/html", headers=headers)

    def _of(self, request: web.Request) -> Json:
        if not self._document:
            self._document = document_of(request.app.router.routes(), has_api_keys=self._has_api_keys)
        return self._document


def document_of(routes: Iterable[web.AbstractRoute], *, has_api_keys: bool = False) -> Json:
    """The OpenAPI document of these routes; `has_api_keys`: those that are not open need a key."""
    types = Types()
    types.of(shapes.Problem)
    paths: dict[str, Json] = {}
    for route in routes:
        call = call_of(route.handler)
        if call is not None and route.resource is not None and route.method != "HEAD":
            path, method = route.resource.canonical, route.method.lower()
            paths.setdefault(path, {})[method] = _operation(method, path, call, types, has_api_keys)
            if has_api_keys:
                paths[path][method]["security"] = _security(call.scope)
    used = {_tag(path) for path in paths}
    components: Json = {"schemas": dict(sorted(types.components.items()))}
    if has_api_keys:
        components["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer", "description": KEY_TEXT}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fasti",
            "version": server_version(),
            "description": DESCRIPTION,
            "contact": {"name": "The fasti project"},
        },
        "servers": [{"url": "/", "description": "The server that gave this document."}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items() if name in used],
        "paths": {path: _sorted(paths[path]) for path in sorted(paths, key=_place)},
        "components": components,
    }


def _security(scope: str) -> list[Json]:
    """Empty: no key needed."""
    return [{KEY: [] if scope == ANY else [scope]}] if scope != OPEN else []


def _tag(path: str) -> str:
    first = re.match(r"/v1/(\w+)", path)
    name = _OF.get(first[1], first[1]) if first else _LAST
    return name if name in TAGS else _LAST


def _place(path: str) -> tuple[int, bool, str]:
    """Sort key: the order of use, the server's own paths behind those of the API."""
    return list(TAGS).index(_tag(path)), not path.startswith("/v1/"), path


def _sorted(operations: Json) -> Json:
    return {verb: operations[verb] for verb in _VERBS if verb in operations}


def _operation(method: str, path: str, call: Call, types: Types, has_api_keys: bool) -> Json:
    operation: Json = {
        "operationId": re.sub(r"\W+", "_", f"{method} {path.removeprefix('/v1')}").strip("_"),
        "tags": [_tag(path)],
        "summary": call.summary,
        "description": _needed(call),
        "x-codeSamples": [
            {"lang": "Shell", "label": "curl", "source": _sample(method, path, call, has_api_keys)}
        ],
        "parameters": [
            *(
                _parameter(name, "path", PATH[name], types) | {"example": PATH_EXAMPLES[name]}
                for name in re.findall(r"\{(\w+)\}", path)
            ),
            *(_parameter(name, "query", kind, types) for name, kind in (call.query or {}).items()),
            *(_parameter(name, "header", kind, types) for name, kind in call.headers.items()),
        ],
        "responses": _responses(call, types),
    }
    if call.body is not None:
        content: Json = {JSON: {"schema": types.of(call.body), "example": call.example}}
        if call.as_lines:
            content[NDJSON] = {"schema": {"type": "string", "description": "one item a line"}}
        operation["requestBody"] = {"required": call.needs_body, "content": content}
    return operation


def _needed(call: Call) -> str:
    """Who may call it, and in what forms."""
    needed = {OPEN: "Needs no key.", ANY: "Any key will do, where the server has keys."}
    scope = f"Needs a key with the scope `{call.scope}`, where the server has keys."
    lines = " The items can be sent as NDJSON too, one a line." if call.as_lines else ""
    return needed.get(call.scope, scope) + lines


def _sample(method: str, path: str, call: Call, has_api_keys: bool) -> str:
    """The call as a shell command."""
    filled = re.sub(r"\{(\w+)\}", lambda found: quote(PATH_EXAMPLES[found[1]], safe=":"), path)
    parts = ["curl"] if method == "get" else ["curl", "-X", method.upper()]
    parts.append(f'"$FASTI_URL{filled}"')
    if has_api_keys and call.scope != OPEN:
        parts.append('-H "Authorization: Bearer $FASTI_KEY"')
    if call.body is not None:
        parts += [f"-H 'Content-Type: {JSON}'", "-d", shlex.quote(json.dumps(call.example))]
    return " ".join(parts)


def _parameter(name: str, where: str, kind: Any, types: Types) -> Json:
    return {"name": name, "in": where, "required": where == "path", "schema": types.of(kind)}


def _responses(call: Call, types: Types) -> Json:
    """Each possible status of the call."""
    responses = {str(gives.status): _given(gives, types) for gives in call.gives}
    by_status: dict[int, list[str]] = {}
    for slug in call.problems:
        by_status.setdefault(SLUGS[slug][0], []).append(slug)
    for status, slugs in sorted(by_status.items()):
        responses[str(status)] = _refused(status, slugs, types)
    return responses


def _given(gives: Gives, types: Types) -> Json:
    answer: Json = {"description": gives.description or "done"}
    if gives.headers:
        answer["headers"] = _headers(gives.headers, types)
    if gives.body is not None:
        answer["content"] = {gives.media: {"schema": types.of(gives.body)}}
    return answer


def _refused(status: int, slugs: Sequence[str], types: Types) -> Json:
    """A problem with one of these slugs."""
    answer: Json = {
        "description": ", ".join(slugs),
        "content": {MEDIA_TYPE: {"schema": {"$ref": f"{REF}Problem"}}},
        PROBLEMS: [f"/problems/{slug}" for slug in slugs],
    }
    if status in WAITING:
        answer["headers"] = _headers({"Retry-After": RetryAfter}, types)
    return answer


def _headers(headers: Any, types: Types) -> Json:
    return {name: {"required": True, "schema": types.of(kind)} for name, kind in headers.items()}
