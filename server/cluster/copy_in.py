"""Fetches another node's data: writes the stream beside this node's own data, and checks it.

The stream is not trusted. Only an engine's file names are accepted; each file needs room before it is
written; and the last member lists sizes and hashes of all, so that a truncated copy, or one with a wrong bit,
is refused. Then all its rows are read: what has rotted on the way to this disk is refused too. swap.py takes
only a complete copy.

A thread writes, and asks the loop for each piece: meanwhile nothing is read. A sender that is silent for
IDLE_S is given up.
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
    body, thread = _Body(content), ThreadPoolExecutor(1, thread_name_prefix="copy")
    work = asyncio.get_running_loop().run_in_executor(thread, partial(unpack, body, data))
    try:
        await asyncio.wait({work})
    finally:
        # If the copy is given up the thread ends with the next piece, or at the next row.
        content.set_exception(ValueError("the copy was given up"))
        thread.shutdown(wait=False)
        await asyncio.wait({work})
        work.exception()  # retrieve it; the first error is raised
    work.result()


class _Body:
    """The body of an answer as a file, for a thread."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._loop = asyncio.get_running_loop()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises what the body raises."""
        return asyncio.run_coroutine_threadsafe(self._content.read(size), self._loop).result()

    def finish(self) -> None:
        """Wait for the end. Raises ValueError if there is more data."""
        trailer = 0
        while piece := self.read(PIECE):
            trailer += len(piece)
            if trailer > TRAILER_BYTES:
                raise ValueError("data follows the manifest")

    def check(self) -> None:
        """Raise if the copy was given up."""
        if (error := self._content.exception()) is not None:
            raise error


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


def unpack(body: _Body, data: Path) -> None:
    """Write a stream below `data`, and make it ready if it is complete and can be read. Raises OSError,
    TarError, ValueError, ShardsError."""
    folder = data / FOLDER
    incoming, ready = folder / IN, folder / READY
    _forget(incoming, ready)
    incoming.mkdir(parents=True)
    try:
        _write_files(body, incoming)
        body.finish()
        for _ in whole(incoming):
            body.check()
        sync_path(incoming)
        incoming.rename(ready)
        sync_path(folder)
        sync_path(data)
    except BaseException:
        _forget(incoming, ready)
        raise


def _forget(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _write_files(body: _Body, folder: Path) -> None:
    found: dict[str, tuple[int, str]] = {}
    with tarfile.open(fileobj=body, mode="r|", bufsize=PIECE, tarinfo=_Plain) as tar:  # type: ignore[call-overload]
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
    expected = json.loads(manifest)
    if expected != {name: list(one) for name, one in found.items()}:
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
