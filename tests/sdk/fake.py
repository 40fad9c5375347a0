"""A stand-in for the server's HTTP side: the shapes of the surface, in memory, with faults on demand.

It knows messages (schedule, batch, get, move, cancel, list), leases, a retry and a dead letter, a group and
an endpoint with something undone, one slice, one session, jobs, backups, info. A job is done when it was
asked for twice; one of a slice that starts at an odd minute is aborted.
`faults` is a list that each request takes one from: a (status, headers) to answer with instead, "lost" to do
the work and then cut the connection, "cut" to cut it at once, None for nothing.
"""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from aiohttp import web

Json = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SLICE = {
    "start": "2030-01-01T00:00:00.000Z",
    "end": "2030-01-01T00:15:00.000Z",
    "generation": 0,
    "count": 3,
    "live": 2,
    "bytes": 600,
}
SHARD = {"shard": 1, "structure": "a/+", "count": 3, "live": 2, "bytes": 600, "cap": 1000, "sealed": False}
LETTER = {
    "id": "0" * 31 + "7",
    "topic": "jobs/1",
    "deliver_at": "2030-01-01T00:00:00.000Z",
    "state": "dispatched",
    "qos": 1,
    "payload": "YmFk",
    "encoding": "base64",
    "headers": {"a": "b"},
    "group": "workers",
    "subscription": "$share/workers/jobs/#",
    "attempts": 3,
    "reason": "not acked after 3 deliveries",
    "died_at": "2030-01-01T00:00:01.000Z",
    "tries": [
        {
            "at": "2030-01-01T00:00:00.500Z",
            "by": "w/1",
            "outcome": "nacked",
            "reason": "db is down",
            "seconds": 0.25,
        }
    ],
}
RETRY = {name: value for name, value in LETTER.items() if name != "died_at"} | {
    "attempts": 1,
    "reason": "db is down",
    "retry_at": "2030-01-01T00:00:05.000Z",
}
UNDONE = {
    "lag": 12,
    "in_flight": 3,
    "retries": 2,
    "next_retry_at": "2030-01-01T00:00:05.000Z",
    "oldest_at": "2029-12-31T00:00:00.000Z",
}
PLACE = {"state": "active", "undone": UNDONE, "incarnation": 3, "expiry": "never"}
WORKERS = {**PLACE, "name": "workers", "filter": "jobs/#", "members": [], "in_flight": 3, "lag_messages": 12}
HOOK = {
    **PLACE,
    "name": "hook",
    "url": "https://example.com/hook",
    "failing": {"share": 0.85, "of": 20, "last_reason": "answered 500"},
}
LEFT = [
    {
        "group": "workers",
        "filter": "jobs/#",
        "state": "retry",
        "attempts": 2,
        "retry_at": "2030-01-01T00:00:05.000Z",
        "reason": "db is down",
        "tries": LETTER["tries"],
    },
    {
        "group": "pool",
        "filter": "jobs/#",
        "state": "in_flight",
        "attempts": 1,
        "lease_until": "2030-01-01T00:01:00.000Z",
    },
    {"session": "audit/1", "state": "dead", "attempts": 3, "reason": "no"},
    {"group": "late", "filter": "#", "state": "waiting", "attempts": 0},
    {"group": "quick", "filter": "#", "state": "done"},
    {
        "group": "late",
        "filter": "jobs/1",
        "state": "withheld",
        "attempts": 0,
        "withheld_by": "key 'shop' is revoked",
    },
]
"""Of a message that was cancelled too late."""
SESSION = {
    "client_id": "audit/1",
    "connected": False,
    "subscriptions": [{"filter": "a/#", "qos": 1, "since": "2030-01-01T00:00:00.000Z"}],
    "read_position": {"at": "2030-01-01T00:00:00.000Z", "seq": 0},
    "lag_messages": 7,
    "lag_seconds": 1.5,
    "in_flight": 0,
}


def text_of(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def problem(status: int, slug: str, **more: Any) -> web.Response:
    body = {"type": f"/problems/{slug}", "title": slug, "status": status, "detail": f"it is {slug}", **more}
    return web.json_response(body, status=status, content_type="application/problem+json")


class Fake:
    """The state and the routes."""

    def __init__(self) -> None:
        self.asked: Json = {}
        self.messages: dict[str, Json] = {}
        self.keys: dict[str, str] = {}
        self.gone: set[str] = set()
        self.faults: list[Any] = []
        self.requests: list[tuple[str, str]] = []
        self.headers: list[Json] = []
        self.jobs: dict[str, Json] = {}
        self.commits: list[Json] = []
        self.due_work: list[Json] = []
        self.leased: set[str] = set()
        self.mqtt_port = 1883
        self.now = NOW

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._meddle], client_max_size=64 << 20)
        app.add_routes(
            [
                web.get("/v1/info", self.info),
                web.post("/v1/clock:advance", self.advance),
                web.post("/v1/messages", self.post),
                web.post("/v1/messages:batch", self.batch),
                web.get("/v1/messages", self.list),
                web.delete("/v1/messages/by-key/gone", self.gone_by_key),
                web.get("/v1/messages/{id}", self.get),
                web.get("/v1/messages/{id}/explain", self.explain),
                web.get("/v1/messages/{id}/why", self.why),
                web.patch("/v1/messages/{id}", self.patch),
                web.delete("/v1/messages/{id}", self.delete),
                web.get("/v1/dead", self.dead),
                web.post("/v1/dead:{verb}", self.change_entries),
                web.get("/v1/retries", self.retries),
                web.post("/v1/retries:{verb}", self.change_entries),
                web.get("/v1/{places:groups|endpoints}", self.places),
                web.get("/v1/{places:groups|endpoints}/{name}", self.place),
                web.put("/v1/{places:groups|endpoints}/{name}", self.place),
                web.delete("/v1/{places:groups|endpoints}/{name}", self.delete_place),
                web.post("/v1/{places:groups|endpoints|sessions}/{name}:skip", self.skip),
                web.get("/v1/sessions", self.sessions),
                web.get("/v1/sessions/{id}", self.session),
                web.delete("/v1/sessions/{id}", self.session),
                web.post("/v1/sessions/{id}:replay", self.session),
                web.post("/v1/groups/{name}/messages:{verb}", self.work),
                web.get("/v1/slices", self.slices),
                web.get("/v1/slices/{start}", self.slice),
                web.get("/v1/slices/{start}/shards/{n}", self.shard),
                web.post("/v1/jobs", self.start_job),
                web.get("/v1/jobs", self.list_jobs),
                web.get("/v1/archive", self.archive),
                web.get("/v1/jobs/{id}", self.job),
                web.post("/v1/backups", self.backup),
            ]
        )
        return app

    @web.middleware
    async def _meddle(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requests.append((request.method, str(request.rel_url)))
        self.headers.append(dict(request.headers))
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, tuple):
            return web.json_response(
                {"type": "/problems/busy", "detail": "busy"}, status=fault[0], headers=fault[1]
            )
        if fault == "cut":
            assert request.transport is not None
            request.transport.close()
        answer = await handler(request)
        if fault == "lost":
            assert request.transport is not None
            request.transport.close()
        return answer

    def add(self, body: Json, key: str | None) -> Json:
        """Schedule, or repeat the first answer to the same key."""
        if key in self.keys:
            return self.messages[self.keys[key]]
        at = self.due(body)
        message_id = (
            f"{(at - EPOCH) // timedelta(milliseconds=1):012x}{1:04x}{0:04x}{len(self.messages):012x}"
        )
        message = {**body, "id": message_id, "deliver_at": text_of(at), "state": "pending"}
        message.pop("deliver_in", None)
        self.messages[message_id] = message
        if key is not None:
            self.keys[key] = message_id
        return message

    def due(self, body: Json) -> datetime:
        if "deliver_at" in body:
            wall, _, zone = body["deliver_at"].removesuffix("]").partition("[")
            at = datetime.fromisoformat(wall)
            return at.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) if zone else at
        span = body.get("deliver_in", "PT0S")
        return self.now + timedelta(seconds=float(span.removeprefix("PT").removesuffix("S")))

    async def info(self, request: web.Request) -> web.Response:
        listener = {"transport": "tcp", "host": "0.0.0.0", "port": self.mqtt_port}
        return web.json_response(
            {"version": "9", "node": 0, "clock": "simulated", "now": text_of(self.now), "mqtt": [listener]}
        )

    async def advance(self, request: web.Request) -> web.Response:
        self.now += timedelta(days=1)
        return web.json_response({"now": text_of(self.now)})

    async def post(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "topic" not in body or "#" in body["topic"]:
            return problem(422, "bad-message", errors=[{"field": "topic", "detail": "no wildcards"}])
        key = request.headers["Idempotency-Key"]
        assert body.pop("key", key) == key
        seen = key in self.keys
        headers = {"Idempotent-Replayed": "true"} if seen else {}
        made = self.add(body, key)
        if request.query.get("claims") == "true":
            made = {**made, "claims": {"groups": 2, "endpoints": 1, "sessions": 0}}
        return web.json_response(made, status=200 if seen else 201, headers=headers)

    async def batch(self, request: web.Request) -> web.Response:
        key = request.headers.get("Idempotency-Key", "")
        items = [
            {"key": f"{key}-{n}" if key else None, **json.loads(line)}
            for n, line in enumerate((await request.text()).splitlines())
        ]
        assert all(item["key"] for item in items)
        bad = [n for n, item in enumerate(items, 1) if "#" in item["topic"]]
        if "each" in request.query:
            return web.json_response({"results": [self.one(i) for i in items]})
        if bad:
            errors = [{"line": n, "field": "topic", "detail": "no wildcards"} for n in bad]
            return problem(422, "bad-message", errors=errors)
        ids = [self.add(item, item.pop("key"))["id"] for item in items]
        return web.json_response({"accepted": len(ids), "ids": ids}, status=201)

    def one(self, item: Json) -> Json:
        if "#" in item["topic"]:
            return {"problem": {"type": "/problems/bad-message", "status": 422, "detail": "no wildcards"}}
        key = item.pop("key")
        said = {"replayed": True} if key in self.keys else {}
        return {"id": self.add(item, key)["id"], **said}

    async def list(self, request: web.Request) -> web.Response:
        query = request.query
        state = query.get("state", "pending")
        found = [m for _, m in sorted(self.messages.items()) if state in ("all", m["state"])]
        start, limit = int(query.get("cursor", "0")), int(query["limit"])
        answer: Json = {"messages": found[start : start + limit], "next": None}
        if start + limit < len(found):
            answer["next"] = str(start + limit)
        if query.get("count") == "true":
            answer["count"] = len(found)
        return web.json_response(answer)

    async def get(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if name not in self.messages or name in self.gone:
            return problem(404, "not-found")
        return web.json_response(self.messages[name])

    async def gone_by_key(self, request: web.Request) -> web.Response:
        return problem(410, "gone", id="0" * 32)

    async def why(self, request: web.Request) -> web.Response:
        told = {"sentences": ["It was to be due \u202e[b]."], "waits_for": "its due time"}
        return web.json_response(told)

    async def explain(self, request: web.Request) -> web.Response:
        return web.json_response({"shard": 1})

    async def patch(self, request: web.Request) -> web.Response:
        message = self.messages.get(request.match_info["id"])
        if message is None:
            return problem(404, "not-found")
        if message["state"] != "pending":
            return self.too_late(message)
        message["deliver_at"] = text_of(self.due(await request.json()))
        return web.json_response(
            {"id": message["id"], "deliver_at": message["deliver_at"], "state": message["state"]}
        )

    async def delete(self, request: web.Request) -> web.Response:
        message = self.messages.get(request.match_info["id"])
        if message is None:
            return problem(404, "not-found")
        if message["state"] == "dispatched":
            return self.too_late(message)
        message["state"] = "cancelled"
        return web.Response(status=204)

    def too_late(self, message: Json) -> web.Response:
        if message["state"] == "cancelled":
            return problem(409, "cancelled")
        return problem(409, "already-dispatched", deliveries=LEFT)

    async def dead(self, request: web.Request) -> web.Response:
        self.asked = dict(request.query)
        found = [LETTER] if request.query.get("id", LETTER["id"]) == LETTER["id"] else []
        return web.json_response({"messages": found, "next": None})

    async def retries(self, request: web.Request) -> web.Response:
        self.asked = dict(request.query)
        return web.json_response({"retries": [RETRY], "next": None})

    async def places(self, request: web.Request) -> web.Response:
        name = request.match_info["places"]
        return web.json_response({name: [WORKERS if name == "groups" else HOOK], "next": None})

    async def place(self, request: web.Request) -> web.Response:
        """One, or made; the groups of a name are a list."""
        is_group, name = request.match_info["places"] == "groups", request.match_info["name"]
        if request.method == "PUT":
            self.asked = await request.json()
        elif name not in ("workers", "hook"):
            return problem(404, "not-found")
        elif is_group:
            return web.json_response({"groups": [WORKERS], "next": None})
        return web.json_response(WORKERS if is_group else HOOK)

    async def delete_place(self, request: web.Request) -> web.Response:
        self.asked = dict(request.query)
        if "undone" not in request.query:
            return problem(409, "undone", undone=UNDONE)
        return web.Response(status=204)

    async def skip(self, request: web.Request) -> web.Response:
        self.asked = {"name": request.match_info["name"], **request.query, **await request.json()}
        return web.json_response(
            {"from": "2029-12-31T00:00:00.000Z", "to": "2030-01-01T00:00:00.000Z", "undone": UNDONE}
        )

    async def change_entries(self, request: web.Request) -> web.Response:
        self.asked = {"verb": request.match_info["verb"], **await request.json()}
        count = len(self.asked.get("ids", "1"))
        return web.json_response({"matched": count, "changed": 0 if self.asked["dry_run"] else count})

    async def sessions(self, request: web.Request) -> web.Response:
        return web.json_response({"sessions": [SESSION], "next": None})

    async def session(self, request: web.Request) -> web.Response:
        if request.match_info["id"] != SESSION["client_id"]:
            return problem(404, "not-found")
        return web.Response(status=204) if request.method == "DELETE" else web.json_response(SESSION)

    async def work(self, request: web.Request) -> web.Response:
        """`:lease` gives `due_work`, `:ack` and the like end leases; who waits is answered with nothing."""
        if request.match_info["name"] == "nobody":
            return problem(404, "not-found")
        body = await request.json()
        if request.match_info["verb"] == "lease":
            some, self.due_work = self.due_work[: body["max"]], self.due_work[body["max"] :]
            self.leased |= {each["lease_id"] for each in some}
            self.asked = body
            return web.json_response({"messages": some})
        self.asked = {"verb": request.match_info["verb"], **body}
        assert len(body["lease_ids"]) <= 1_000
        gone = [name for name in body["lease_ids"] if name not in self.leased]
        if request.match_info["verb"] != "extend":
            self.leased -= set(body["lease_ids"])
        return web.json_response({"gone": gone})

    async def slices(self, request: web.Request) -> web.Response:
        if "cursor" in request.query:
            later = {**SLICE, "start": SLICE["end"], "end": "2030-01-01T00:30:00.000Z", "shards": 0}
            return web.json_response({"slices": [later], "next": None})
        return web.json_response({"slices": [{**SLICE, "shards": 1}], "next": "2"})

    async def slice(self, request: web.Request) -> web.Response:
        return web.json_response({**SLICE, "shards": [SHARD]})

    async def shard(self, request: web.Request) -> web.Response:
        return problem(404, "not-found") if request.match_info["n"] != "1" else web.json_response(SHARD)

    async def start_job(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["run"] == "server"
        if any(job["state"] == "planning" for job in self.jobs.values()):
            return problem(409, "job-active")
        start = body.get("slice")
        job = {
            "id": f"{len(self.jobs):032x}",
            "kind": body["kind"],
            "state": "planning",
            "slice": {"start": start} if start else None,
            "parts": body.get("parts"),
            "created_at": text_of(self.now),
            "detail": None,
        }
        self.jobs[str(job["id"])] = job
        return web.json_response(job, status=201)

    async def archive(self, request: web.Request) -> web.Response:
        """Two commits a page."""
        since = int(request.query["since"])
        found = [one for one in self.commits if one["number"] > since][:2]
        return web.json_response({"manifests": found, "next": found[-1]["number"] if found else since})

    async def list_jobs(self, request: web.Request) -> web.Response:
        return web.json_response({"jobs": list(self.jobs.values()), "next": None})

    async def job(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["id"])
        if job is None:
            return problem(404, "not-found")
        if "progress" not in job:
            job["progress"] = {"done": 1, "total": 2}
        elif job["state"] == "planning":
            is_bad = job["slice"] is not None and job["slice"]["start"].endswith("01:00.000Z")
            job |= {"progress": {"done": 2, "total": 2}, "state": "aborted" if is_bad else "done"}
            job |= {"detail": "lease lapsed" if is_bad else None, "ended_at": text_of(self.now)}
        return web.json_response(job)

    async def backup(self, request: web.Request) -> web.Response:
        folder = (await request.json())["dir"]
        if not folder.startswith("/"):
            return problem(422, "refused", errors=[{"field": "dir", "detail": "must be absolute"}])
        return web.json_response({"dir": folder}, status=201)
