"""minimal"""

import msgspec
from aiohttp import web

from shards.commit import Draft
from shards.record import Record, encode

from ..app import App
from ..jobs import Housekeeping
from .requests import *


def build_site(app: App, housekeeping: Housekeeping) -> web.Application:
    site = web.Application()

    async def post(request: web.Request) -> web.Response:
        b = msgspec.json.decode(await request.read())
        now = app.clock.wall_ms()
        due = now + int(b.get("ms", 0))
        r = Record(b["topic"].encode(), b["payload"].encode(), due, 1)
        ids = await app.ask(lambda c: c.put([Draft(due, r.topic, encode(r))]))
        return web.json_response({"id": f"{ids[0]:032x}"}, status=201)

    site.router.add_post("/v1/messages", post)

    async def m(request: web.Request) -> web.Response:
        return web.Response(body=app.metrics.render())

    site.router.add_get("/metrics", m)
    return site
