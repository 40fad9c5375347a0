"""Streams a copy of this node's data to another node.

A checkpoint is made beside the data (files are linked: a moment, and almost no room) and sent as a tar while
the node continues. Its last member is a *manifest* with the size and SHA-256 of every file: a stream without
it is truncated. One copy is made at a time; other requests are told to retry.

A thread reads and hashes; each piece of PIECE bytes waits until the client has taken the one before it.

All rows of the checkpoint are read before it is sent: damage is not handed on. Large data takes longer than
the other node waits, so meanwhile it gets a piece every KEEP_S. Without the rest these are worth nothing.
"""

import asyncio
import hashlib
import io
import json
import logging
import shutil
import tarfile
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from threading import Event
from time import monotonic
from types import SimpleNamespace
from typing import IO, cast

from aiohttp import web

from shards.errors import Corrupt, ShardsError
from shards.scrub import whole
from shards.store import Store

from ..http.answers import RETRY_AFTER
from ..http.calls import OPEN, Gives, described
from ..http.problems import Problem
from .key import ClusterKey
from .swap import FOLDER, is_copied

log = logging.getLogger(__name__)

OUT = "out"
MANIFEST = "manifest.json"
PIECE = 1 << 20
KEEP_S = 5.0
TAKE_S = 30.0
"""Maximum time for the other node to take a piece."""


class CopyRoutes:
    """`GET /v1/cluster/checkpoint`."""

    def __init__(
        self,
        store: Callable[[], Store | None],
        data: Path,
        key: ClusterKey,
        damaged: Callable[[str], None],
    ) -> None:
        """`store`: the currently open one. `damaged`: called when damage is found, in words."""
        self._store = store
        self._damaged = damaged
        self._folder = data / FOLDER / OUT
        self._key = key
        self._is_busy = False
        self._unchecked: Generator[None] | None = None
        """The check of the checkpoint, as far as it is to be done."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/cluster/checkpoint", self.get)]

    @described(
        "A copy of this node's data, for another node",
        OPEN,
        Gives(200, bytes, media="application/x-tar"),
        problems=("store-unavailable",),
    )
    async def get(self, request: web.Request) -> web.StreamResponse:
        await self._key.check(request)
        store = self._store()
        if store is None or self._is_busy:
            raise Problem("store-unavailable", "No copy can be made now.", headers=RETRY_AFTER)
        if store.damage:
            raise Problem("store-unavailable", "This node's data is damaged.", headers=RETRY_AFTER)
        self._is_busy = True
        loop = asyncio.get_running_loop()
        # A thread of its own: a slow client must not block the shared ones.
        thread = ThreadPoolExecutor(1, thread_name_prefix="copy")
        gone = Event()
        try:
            return await self._send(request, store, thread, gone)
        finally:
            gone.set()
            cleared = loop.run_in_executor(thread, self._clear)
            cleared.add_done_callback(self._free)
            thread.shutdown(wait=False)
            await asyncio.shield(cleared)

    async def _send(
        self, request: web.Request, store: Store, thread: ThreadPoolExecutor, gone: Event
    ) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(thread, partial(self._make, store, gone))
        except (ShardsError, OSError) as error:
            self._note(error)
            raise Problem("store-unavailable", f"The copy failed: {error}", headers=RETRY_AFTER) from None
        answer = web.StreamResponse(headers={"Content-Type": "application/x-tar"})
        await answer.prepare(request)

        def give(piece: bytes) -> None:
            self._check(gone, KEEP_S)
            taken = asyncio.run_coroutine_threadsafe(answer.write(piece), loop)
            try:
                taken.result(TAKE_S)
            finally:
                taken.cancel()

        try:
            await loop.run_in_executor(
                thread, partial(pack, self._folder, give, partial(self._check, gone, inf))
            )
        except BaseException as error:
            # Half a copy must not look complete; the thread must not wait on.
            if request.transport is not None:
                request.transport.abort()
            if not isinstance(error, OSError | TimeoutError | ShardsError):
                raise
            self._note(error)
            log.warning("copy: not sent completely: %s", error)
            return answer
        await answer.write_eof()
        return answer

    def _make(self, store: Store, gone: Event) -> None:
        """In the thread: make the checkpoint, and begin to check it. Raises ShardsError, OSError."""
        self._clear()
        self._folder.parent.mkdir(exist_ok=True)
        store.checkpoint(self._folder)
        self._unchecked = whole(self._folder)
        self._check(gone, KEEP_S)

    def _check(self, gone: Event, for_s: float) -> None:
        """In the thread: check for that time, or to the end. Raises ShardsError, OSError."""
        assert self._unchecked is not None, "there is a checkpoint"
        until = monotonic() + for_s
        for _ in self._unchecked:
            if gone.is_set() or monotonic() >= until:
                break
        if gone.is_set():
            raise ConnectionResetError("the receiving node is gone")

    def _note(self, error: BaseException) -> None:
        if isinstance(error, Corrupt):
            self._damaged(str(error))

    def _free(self, _: object) -> None:
        """Allow the next copy."""
        self._is_busy = False

    def _clear(self) -> None:
        if self._unchecked is not None:
            self._unchecked.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Hashed:
    """A file that computes its hash while it is read."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.sha = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sha.update(data)
        return data


def pack(folder: Path, give: Callable[[bytes], None], check: Callable[[], None]) -> None:
    """Pass the files of a folder on as a tar, in pieces. `check` is called before the manifest. Raises
    OSError, and what both raise."""
    manifest: dict[str, tuple[int, str]] = {}
    pieces = cast("IO[bytes]", SimpleNamespace(write=give))
    with tarfile.open(fileobj=pieces, mode="w|", bufsize=PIECE, format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(path for path in folder.iterdir() if is_copied(path.name)):
            with path.open("rb") as file:
                info = tarfile.TarInfo(path.name)
                info.size = path.stat().st_size
                hashed = _Hashed(file)
                tar.addfile(info, hashed)
                manifest[path.name] = info.size, hashed.sha.hexdigest()
        check()
        body = json.dumps(manifest).encode()
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(body)
        tar.addfile(info, io.BytesIO(body))
