"""`POST /v1/backups`: a consistent copy of the timeline, to start a server on.

It is a checkpoint. On the store's file system files are linked, which takes a moment and almost no room;
elsewhere they are copied. The server continues meanwhile.

A caller may not write everywhere: backups are below one directory, `store.backups`. The request names a path
in it, relative or absolute. Links are followed before the check. Placing a link there afterwards needs access
to the file system, which a caller does not have. Backups are made one at a time: the engine clears `x.tmp`
before it makes `x`, and that might be another backup, just finished.

    store.backups = "/backups"      tuesday, /backups/tuesday            /backups/tuesday
                                    ../etc, /etc/x, out/x if `out` is a link to elsewhere: 422
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web

from shards.errors import StoreFailed
from shards.private import OWN

from ...settings.config import Store
from ..answers import RETRY_AFTER, json_answer
from ..calls import ADMIN, Gives, described
from ..problems import Problem
from ..requests import body_of
from ..values import shapes
from ..values.bodies import FieldError

Work = Callable[[], Path]


class BackupRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body: a path below `store.backups`, or relative to it, which must not exist yet."""

    dir: str


_BODY = msgspec.json.Decoder(BackupRequest)


class Backups:
    """The route."""

    def __init__(
        self, checkpoint: Callable[[Path], None], in_thread: Callable[[Work], Awaitable[Path]], config: Store
    ) -> None:
        """`checkpoint`: the store's. `in_thread`: runs work in a thread."""
        self._checkpoint = checkpoint
        self._in_thread = in_thread
        self._root = config.backups_dir
        self._data = Path(config.dir)
        self._turn = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/backups", self.create)]

    @described(
        "A consistent copy to start a server on",
        ADMIN,
        Gives(201, shapes.Backup),
        body=BackupRequest,
        example={"dir": "monday"},
        problems=("store-unavailable",),
    )
    async def create(self, request: web.Request) -> web.Response:
        body = await body_of(request, _BODY)
        try:
            async with self._turn:
                path = await self._in_thread(partial(self._copy, body.dir))
        except StoreFailed as error:
            raise Problem("store-unavailable", f"The backup failed: {error}", headers=RETRY_AFTER) from None
        return json_answer(shapes.Backup(str(path)), 201)

    def _copy(self, wanted: str) -> Path:
        """Make the backup; returns its path. Raises FieldError, StoreFailed."""
        try:
            self._root.mkdir(mode=OWN, exist_ok=True)
            path = self._place(wanted)
        except (OSError, RuntimeError) as error:  # a name too long, a loop of links
            why = error.strerror if isinstance(error, OSError) else "a loop of links"
            raise FieldError("dir", f"cannot be made: {why}") from None
        self._checkpoint(path)
        return path

    def _place(self, wanted: str) -> Path:
        """The path with links above its last part resolved. Raises FieldError, OSError, RuntimeError."""
        root = self._root.resolve(strict=True)
        path = Path(wanted)
        if "\0" in wanted or ".." in path.parts or not path.name:
            raise FieldError("dir", "must be a path without '..' and NUL")
        above = root / path.parent  # an absolute path replaces the root
        if not above.is_dir():
            raise FieldError("dir", "cannot be made: its parent directory does not exist")
        above = above.resolve(strict=True)
        if not above.is_relative_to(root) or above.is_relative_to(self._data.resolve()):
            raise FieldError("dir", "must be inside store.backups")
        for name in (path.name, f"{path.name}.tmp"):  # the engine first writes under this name, and clears it
            try:
                (above / name).lstat()
            except FileNotFoundError:
                continue
            raise FieldError("dir", f"A backup needs a new directory, and {name} exists.")
        return above / path.name
