"""An answer on a connection that has gone meanwhile: no traceback, and the front is told."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from server.http.protocol import Protocol


@pytest.mark.parametrize("is_closing", [True, False])
async def test_a_transport_that_is_closed_while_it_is_answered(
    monkeypatch: pytest.MonkeyPatch, *, is_closing: bool
) -> None:
    """uvloop raises RuntimeError then; any other one is a fault."""

    async def closed(*_: object) -> Any:
        raise RuntimeError("the handler is closed")

    monkeypatch.setattr(RequestHandler, "finish_response", closed)
    told: list[bool] = []
    server = web.Server(cast("Any", None), loop=asyncio.get_running_loop())
    made = Protocol(server, told.append, lambda _: "", loop=asyncio.get_running_loop())
    made.transport = cast("Any", SimpleNamespace(is_closing=lambda: is_closing))
    finishing = made.finish_response(cast("Any", None), web.Response(), None)
    if is_closing:
        assert (await finishing)[1]
        assert told == [False]
    else:
        with pytest.raises(RuntimeError):
            await finishing
