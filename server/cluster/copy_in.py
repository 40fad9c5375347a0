"""Fetches another node's data: writes the stream beside this node's own data, and checks it.

The stream is not trusted. Only an engine's file names are accepted; each file needs room before it is
written; and the last member lists sizes and hashes of all, so that a truncated copy, or one with a wrong bit,
is refused. Then all its rows are read: what has rotted on the way to this disk is refused too. swap.py takes
only a complete copy.

The loop reads from the socket and a thread writes. At most PIECES wait in between; then nothing is read. A
sender that is silent for IDLE_S is given up.
"""

import asyncio
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import aiohttp
import msgspec

from shards.errors import ShardsError
from shards.log.errors import Trimmed
from shards.scrub import whole
from shards.sectors import sync_path

from .copy_out import MANIFEST, PIECE
from .key import ClusterKey
from .swap import FOLDER, IN, READY, is_copied

CONNECT_S = 5.0
IDLE_S = 30.0
"""Maximum silence: the sender makes its checkpoint meanwhile."""
PIECES = 8
"""Maximum pieces that wait to be written."""
SPARE_BYTES = 64 << 20
"""Bytes of the file system that a copy leaves free."""
MANIFEST_BYTES = 16 << 20
FILES = 100_000
PROBLEM_BYTES = 4_096
TRAILER_BYTES = 2 * PIECE
"""Maximum bytes of padding at a tar's end."""


class CopyFailed(Exception):
    """No copy was made; the existing data is unchanged."""


class Rounds:
    """Whether copies lead anywhere: while one is made, the log may go on by more than it keeps."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._since = 0.0
        self.fault = ""
        """What a copy that is needed now has to do with the last one; empty: nothing."""

    def begin(self) -> None:
        self._since = self._mono()

    def end(self) -> None:
        """The data has been replaced by a copy."""
        self.fault = (
            f"the copy before took {self._mono() - self._since:.0f} s, and the log kept less than came"
            " meanwhile: raise cluster.keep, or the bound of the stream"
        )

    def has_followed(self) -> None:
        """All that is in the log has been read."""
        self.fault = ""

    def judged(self, error: ShardsError) -> ShardsError:
        """The error of a node that needs a copy, with what is known of the last one."""
        return Trimmed(f"{error}; {self.fault}") if self.fault and isinstance(error, Trimmed) else error


async def fetch(session: aiohttp.ClientSession, url: str, key: ClusterKey, data: Path) -> None:
    """Fetch a copy of the node at `url` to where `recover_swap` takes it from. Raises CopyFailed."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=IDLE_S)
    try:
        async with session.get(
            f"{url}/v1/cluster/checkpoint", headers=key.headers(url), timeout=timeout, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                raise CopyFailed(f"status {answer.status}{_detail(await answer.content.read(PROBLEM_BYTES))}")
            await _take(answer.content, data)
    except (aiohttp.ClientError, TimeoutError, OSError, tarfile.TarError, ValueError, ShardsError) as error:
        raise CopyFailed(f"{type(error).__name__}: {error}") from error


def _detail(problem: bytes) -> str:
    """The `detail` of a refusal, as the end of a sentence; empty: there is none, or it is unreadable."""
    try:
        return f": {msgspec.json.decode(problem)['detail'].rstrip('.')}"
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError):
        return ""


async def _take(content: aiohttp.StreamReader, data: Path) -> None:
    feed = _Feed()
    thread = ThreadPoolExecutor(1, thread_name_prefix="copy")
    work = asyncio.get_running_loop().run_in_executor(thread, partial(unpack, feed, data))
    work.add_done_callback(feed.wake)
    try:
        async for piece in content.iter_chunked(PIECE):
            await feed.put(piece)
            if work.done():
                break
        feed.end(is_whole=True)
        await asyncio.wait({work})  # all rows are read
    except BaseException:
        feed.is_given_up = True
        feed.end(is_whole=False)
        raise
    finally:
        thread.shutdown(wait=False)
        await asyncio.wait({work})
        work.exception()  # retrieve it; the first error is raised
    work.result()


class _Feed:
    """Passes pieces from the loop to a thread, as a file."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(PIECES)
        self._pieces: SimpleQueue[bytes | bool] = SimpleQueue()
        """Pieces; a bool at the end: whether it is complete."""
        self._left = b""
        self._is_over = False
        self.is_given_up = False

    async def put(self, piece: bytes) -> None:
        """Add a piece; waits for room."""
        await self._room.acquire()
        self._pieces.put(piece)

    def end(self, *, is_whole: bool) -> None:
        self._pieces.put(is_whole)

    def wake(self, _: object) -> None:
        """The thread has ended: free a sender that waits for room."""
        self._room.release()

    def read(self, size: int) -> bytes:
        """In the thread: read; less than `size` only at the end. Raises ValueError for a truncated stream."""
        parts, lacking = [self._left], size - len(self._left)
        while lacking > 0 and (piece := self._next()):
            parts.append(piece)
            lacking -= len(piece)
        whole = b"".join(parts)
        self._left = whole[size:]
        return whole[:size]

    def finish(self) -> None:
        """In the thread: wait for the end. Raises ValueError if it is truncated, or has more data."""
        trailer = len(self._left)
        while piece := self._next():
            trailer += len(piece)
            if trailer > TRAILER_BYTES:
                raise ValueError("data follows the manifest")

    def _next(self) -> bytes:
        if self._is_over:
            return b""
        piece = self._pieces.get()
        if isinstance(piece, bytes):
            self._loop.call_soon_threadsafe(self._room.release)
            return piece
        self._is_over = True
        if not piece:
            raise ValueError("the copy is incomplete")
        return b""


class _Plain(tarfile.TarInfo):
    """A file of an engine, or the manifest. Anything else is refused by its header, before more is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Plain":
        info = super().frombuf(buf, encoding, errors)
        is_known = info.name == MANIFEST or is_copied(info.name)
        if info.type != tarfile.REGTYPE or not is_known or info.size < 0:
            raise ValueError(f"unexpected entry {info.name[:100]!r} in a copy")
        if info.name == MANIFEST and info.size > MANIFEST_BYTES:
            raise ValueError("the manifest is too large")
        return info


def unpack(feed: _Feed, data: Path) -> None:
    """Write a stream below `data`, and make it ready if it is complete and can be read. Raises OSError,
    TarError, ValueError, ShardsError."""
    folder = data / FOLDER
    incoming, ready = folder / IN, folder / READY
    _forget(incoming, ready)
    incoming.mkdir(parents=True)
    try:
        _write_files(feed, incoming)
        feed.finish()
        _check_rows(feed, incoming)
        sync_path(incoming)
        incoming.rename(ready)
        sync_path(folder)
        sync_path(data)
    except BaseException:
        _forget(incoming, ready)
        raise


def _check_rows(feed: _Feed, folder: Path) -> None:
    for _ in whole(folder):
        if feed.is_given_up:
            raise ValueError("the copy was given up")


def _forget(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _write_files(feed: _Feed, folder: Path) -> None:
    found: dict[str, tuple[int, str]] = {}
    with tarfile.open(fileobj=feed, mode="r|", bufsize=PIECE, tarinfo=_Plain) as tar:  # type: ignore[call-overload]
        while (member := tar.next()) is not None:
            tar.members = []  # tarfile would keep them
            file = tar.extractfile(member)
            if member.name == MANIFEST:
                _check(file.read(), found)
                return
            if len(found) >= FILES:
                raise ValueError(f"more than {FILES:,} files")
            free = shutil.disk_usage(folder).free
            if free < member.size + SPARE_BYTES:
                raise ValueError(f"no room for {member.name}, {member.size:,} bytes: {free:,} are free")
            found[member.name] = member.size, _written(file, folder / member.name)
    raise ValueError("the copy is incomplete")


def _check(manifest: bytes, found: dict[str, tuple[int, str]]) -> None:
    said = json.loads(manifest)
    if said != {name: list(one) for name, one in found.items()}:
        raise ValueError("the copy differs from what was sent")


def _written(source: IO[bytes], path: Path) -> str:
    """Write and sync a file; returns its hash."""
    sha = hashlib.sha256()
    with path.open("xb") as file:
        while piece := source.read(PIECE):
            sha.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return sha.hexdigest()
