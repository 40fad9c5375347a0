"""`POST /v1/backups`: a consistent copy of the timeline, to start a server on.

It is a checkpoint: files are linked where the new directory is on the store's file system, so it takes a
moment and next to no room; elsewhere they are copied. The server goes on meanwhile.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web

from shards.errors import StoreFailed

from ...jobs.workers import Workers
from ..answers import json_answer
from ..calls import ADMIN, Gives, described
from ..problems import Problem
from ..requests import body_of
from ..values import shapes
from ..values.bodies import FieldError


class BackupWish(msgspec.Struct, forbid_unknown_fields=True):
    """The body: an absolute path of the server's machine at which there is nothing yet."""

    dir: str


_WISH = msgspec.json.Decoder(BackupWish)


class Backups:
    """The route."""

    def __init__(self, checkpoint: Callable[[Path], None], workers: Workers) -> None:
        """`checkpoint`: the store's."""
        self._checkpoint = checkpoint
        self._workers = workers

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/backups", self.create)]

    @described(
        "A consistent copy to start a server on",
        ADMIN,
        Gives(201, shapes.Backup),
        body=BackupWish,
        problems=("store-unavailable",),
    )
    async def create(self, request: web.Request) -> web.Response:
        wish = await body_of(request, _WISH)
        path = Path(wish.dir)
        if not path.is_absolute() or "\0" in wish.dir:
            raise FieldError("dir", "must be an absolute path")
        try:
            await self._workers.in_thread(partial(self._copy, path))
        except StoreFailed as error:
            raise Problem("store-unavailable", f"no backup was made: {error}") from None
        return json_answer({"dir": str(path)}, 201)

    def _copy(self, path: Path) -> None:
        """Raises FieldError, StoreFailed."""
        if path.exists():
            raise FieldError("dir", "exists: a backup needs a new directory")
        if not path.parent.is_dir():
            raise FieldError("dir", "cannot be made: the directory above it is not there")
        self._checkpoint(path)
