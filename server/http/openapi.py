"""`GET /openapi.json` and `GET /docs`: the HTTP side described by itself, OpenAPI 3.1.

The paths come from the router and the bodies from the types that decode them, so neither can say something
that the server does not do. What neither knows, what a call is for and which parameters and answers it has,
is in the table `CALLS`; a route without an entry there is listed by its path alone.

The page is made from the same document, on the server, without scripts or anything from elsewhere.
"""

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from ..version import server_version
from .answers import LIMIT_DEFAULT, LIMIT_MAX, check_query, raw_answer
from .backups import BackupWish
from .clock import Advance
from .control import BulkRequest
from .jobs import Abort, Begin, CommitJob, NewJob, Renew
from .messages import Move
from .problems import MEDIA_TYPE, SLUGS
from .requests import MessageRequest
from .sessions import Rewind
from .views import STATES

Json = dict[str, Any]

TIME: Json = {"type": "string", "description": "RFC 3339 with offset, or Unix ms", "format": "date-time"}
DELAY: Json = {"type": "string", "description": "ISO 8601 or short: PT15M, 15m, 90s"}
FLAG: Json = {"type": "boolean", "default": False}
QUERY: Mapping[str, Json] = {
    "due_from": TIME,
    "due_to": TIME,
    "from": TIME,
    "to": TIME,
    "bucket": {**DELAY, "default": "PT1M"},
    "topic": {"type": "string", "description": "MQTT topic filter"},
    "state": {"type": "string", "enum": [*STATES, "all"], "default": "pending"},
    "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
    "cursor": {"type": "string", "description": "`next` of the page before"},
    "count": FLAG,
    "each": FLAG,
    "ids": FLAG,
}


class Call(NamedTuple):
    """What is known about a route beside its path."""

    summary: str
    query: tuple[str, ...] = ()
    body: type | None = None
    headers: tuple[str, ...] = ()
    status: int = 200
    media: str = "application/json"
    problems: tuple[str, ...] = ()


SELECTED = ("due_from", "due_to", "topic")
PAGED = ("limit", "cursor")
NO_JOB = ("too-near", "job-active", "nothing-to-expire", "no-spark", "over-quota")
NOT_NOW = ("not-found", "stale-token", "wrong-state", "too-near")
TOO_LATE = ("not-found", "already-dispatched", "cancelled", "precondition-failed")

CALLS: Mapping[tuple[str, str], Call] = {
    ("post", "/v1/messages"): Call(
        "Schedule a message; 200 with the first answer if the key was used by the same request before",
        body=MessageRequest,
        headers=("Idempotency-Key",),
        status=201,
        problems=("idempotency-mismatch", "over-quota"),
    ),
    ("get", "/v1/messages"): Call("List and count", (*SELECTED, "state", *PAGED, "count")),
    ("post", "/v1/messages:batch"): Call(
        "Schedule many, all or nothing; with each=true every item for itself (200)",
        ("each", "ids"),
        body=list[MessageRequest],
        status=201,
        problems=("too-large", "idempotency-mismatch", "over-quota"),
    ),
    ("post", "/v1/messages:cancel"): Call("Cancel all that match", body=BulkRequest),
    ("post", "/v1/messages:reschedule"): Call("Shift all that match", body=BulkRequest),
    ("get", "/v1/messages:export"): Call(
        "What is pending as NDJSON", (*SELECTED, "ids"), media="application/x-ndjson"
    ),
    ("get", "/v1/messages/{id}"): Call("Look at a message", problems=("not-found",)),
    ("patch", "/v1/messages/{id}"): Call(
        "Move a message; its id stays", body=Move, headers=("If-Match",), problems=TOO_LATE
    ),
    ("delete", "/v1/messages/{id}"): Call(
        "Cancel a message: nobody will get it", status=204, problems=TOO_LATE[:2]
    ),
    ("get", "/v1/messages/{id}/explain"): Call("Where a message lies", problems=("not-found",)),
    ("get", "/v1/timeline/density"): Call("Pending messages per bucket", ("from", "to", "bucket", "topic")),
    ("get", "/v1/slices"): Call("The spans of the timeline", PAGED),
    ("get", "/v1/slices/{start}"): Call("A slice and its shards", problems=("not-found",)),
    ("get", "/v1/slices/{start}/shards/{n}"): Call("A shard", problems=("not-found",)),
    ("get", "/v1/sessions"): Call("Subscribers and how far they have read", PAGED),
    ("get", "/v1/sessions/{client_id}"): Call("A session", problems=("not-found",)),
    ("delete", "/v1/sessions/{client_id}"): Call("Forget a session", status=204, problems=("not-found",)),
    ("post", "/v1/sessions/{client_id}:replay"): Call(
        "Set a session's read position back", body=Rewind, problems=("not-found",)
    ),
    ("post", "/v1/clock:advance"): Call(
        "Move a simulated clock", body=Advance, problems=("clock-not-simulated",)
    ),
    ("post", "/v1/jobs"): Call(
        "Start a job of the pipeline", body=NewJob, status=201, problems=("not-found", *NO_JOB)
    ),
    ("get", "/v1/jobs"): Call("Jobs, open ones first", PAGED),
    ("get", "/v1/jobs/{id}"): Call("A job", problems=("not-found",)),
    ("post", "/v1/jobs/{id}:begin"): Call("Cut the slice", body=Begin, problems=NOT_NOW),
    ("post", "/v1/jobs/{id}:commit"): Call(
        "Hand back what was moved or archived", body=CommitJob, problems=(*NOT_NOW, "bad-manifest")
    ),
    ("post", "/v1/jobs/{id}:abort"): Call("Forget the job", body=Abort, problems=NOT_NOW[:3]),
    ("post", "/v1/jobs/{id}:renew"): Call("Keep the lease", body=Renew, problems=NOT_NOW[:3]),
    ("post", "/v1/backups"): Call("A consistent copy to start a server on", body=BackupWish, status=201),
    ("get", "/v1/info"): Call("Version, clock, MQTT listeners"),
    ("get", "/livez"): Call("Whether the process lives"),
    ("get", "/readyz"): Call("Whether it can serve", problems=("not-ready",)),
    ("get", "/metrics"): Call("Prometheus metrics", media="text/plain"),
    ("get", "/openapi.json"): Call("This document"),
    ("get", "/docs"): Call("This document as a page", media="text/html"),
}
PROBLEM: Json = {
    "type": "object",
    "description": "RFC 9457; further members depend on the type",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "enum": [f"/problems/{slug}" for slug in SLUGS]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {"type": "array", "items": {"type": "object"}},
    },
}


class OpenApi:
    """The routes. The document is made when it is first asked for, when all routes are known."""

    def __init__(self) -> None:
        self._document: Json = {}

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/openapi.json", self.get), web.get("/docs", self.page)]

    async def get(self, request: web.Request) -> web.Response:
        check_query(request)
        return raw_answer(msgspec.json.format(msgspec.json.encode(self._of(request))))

    async def page(self, request: web.Request) -> web.Response:
        check_query(request)
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return web.Response(text=page_of(self._of(request)), content_type="text/html", headers=headers)

    def _of(self, request: web.Request) -> Json:
        if not self._document:
            self._document = document_of(request.app.router.routes())
        return self._document


def document_of(routes: Iterable[web.AbstractRoute]) -> Json:
    """The OpenAPI document of these routes."""
    bodies = [call.body for call in CALLS.values() if call.body is not None]
    kinds = list(dict.fromkeys(bodies))
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Json] = {}
    for route in routes:
        method = route.method.lower()
        if route.resource is not None and method != "head":
            path = route.resource.canonical
            paths.setdefault(path, {})[method] = _operation(method, path, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fasti",
            "version": server_version(),
            "description": "A delayed and scheduled message queue. Errors are RFC 9457 problem documents.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": {**components, "Problem": PROBLEM}},
    }


def _operation(method: str, path: str, schemas: Mapping[type, Json]) -> Json:
    call = CALLS.get((method, path), Call(path))
    operation: Json = {
        "operationId": re.sub(r"\W+", "_", f"{method} {path.removeprefix('/v1')}").strip("_"),
        "summary": call.summary,
        "parameters": [
            *(_parameter(name, "path", {"type": "string"}) for name in re.findall(r"\{(\w+)\}", path)),
            *(_parameter(name, "query", QUERY[name]) for name in call.query),
            *(_parameter(name, "header", {"type": "string"}) for name in call.headers),
        ],
        "responses": _responses(call),
    }
    if call.body is not None:
        content: Json = {"application/json": {"schema": schemas[call.body]}}
        if call.body == list[MessageRequest]:
            lines = {"type": "string", "description": "one message a line"}
            content = {"application/x-ndjson": {"schema": lines}, **content}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameter(name: str, where: str, schema: Json) -> Json:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _responses(call: Call) -> Json:
    done: Json = {"description": "done"}
    if call.status != 204:
        schema = {"type": "object" if call.media == "application/json" else "string"}
        done["content"] = {call.media: {"schema": schema}}
    problem = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    responses: Json = {str(call.status): done}
    for slug in call.problems:
        status, title = SLUGS[slug]
        responses[str(status)] = {"description": f"{slug}: {title}", "content": problem}
    return {**responses, "default": {"description": "any other problem", "content": problem}}


# -- the page

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
code,pre{font:13px/1.4 ui-monospace,monospace;background:#f4f4f4;padding:.1em .3em}
pre{overflow:auto;padding:.6em}
h2{font-size:1.05em;margin:2em 0 .3em;border-top:1px solid #ddd;padding-top:1em}td{padding:.1em 1em .1em 0;
vertical-align:top}b{text-transform:uppercase;color:#06c}"""


def page_of(document: Json) -> str:
    """The document as HTML."""
    info = document["info"]
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>',
        f"<style>{STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f'<p>{escape(info["description"])} As data: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for path, operations in document["paths"].items():
        parts += [_section(method, path, one) for method, one in operations.items()]
    parts.append("<h1>Types</h1>")
    for name, schema in document["components"]["schemas"].items():
        shown = msgspec.json.format(msgspec.json.encode(schema)).decode()
        parts.append(f'<h2 id="{escape(name)}">{escape(name)}</h2><pre>{escape(shown)}</pre>')
    return "\n".join(parts)


def _section(method: str, path: str, operation: Json) -> str:
    rows = [
        f"<tr><td><code>{escape(p['name'])}</code><td>{p['in']}<td>{escape(_said(p['schema']))}"
        for p in operation["parameters"]
    ]
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        rows.append(f"<tr><td>body<td><code>{media}</code><td>{_typed(content['schema'])}")
    rows += [
        f"<tr><td>{status}<td><td>{escape(answer['description'])}"
        for status, answer in operation["responses"].items()
    ]
    head = f"<h2><b>{method}</b> <code>{escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
    return f"{head}<table>{''.join(rows)}</table>"


def _said(schema: Json) -> str:
    known = ", ".join(map(str, schema.get("enum", ())))
    default = f"default {schema['default']}" if "default" in schema else ""
    return "; ".join(filter(None, (schema.get("description", schema["type"]), known, default)))


def _typed(schema: Json) -> str:
    """A link to the type, or what it is."""
    name = schema.get("$ref", schema.get("items", {}).get("$ref", "")).rpartition("/")[2]
    if not name:
        return escape(_said(schema))
    return f'{"array of " if "items" in schema else ""}<a href="#{name}">{name}</a>'
