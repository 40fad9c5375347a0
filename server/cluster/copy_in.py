"""Another node's data in place of this one's, whatever moment a kill comes at.

What comes is written below the data directory, which may be a mount of its own, and looked at before anything
else is touched:

    copy/in       as it comes; a kill leaves it unfinished, and it is deleted
    copy/ready    whole, as its manifest says, and synced: from here on it counts, the old files do not
    copy/moving   the old files are gone; these are moved to where those were

From one to the next is a rename. `recover_swap` goes on from whichever there is, at each start and before the
store is opened.
"""

import asyncio
import hashlib
import json
import os
import queue
import re
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import aiohttp

from ..auth.last_use import FILE as LAST_USE
from .copy_out import FOLDER, MANIFEST, PIECE

IN, READY, MOVING = "in", "ready", "moving"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
"""Of a file of the store: none leads out of its directory."""
KEPT = frozenset((FOLDER, LAST_USE))
"""What is not the store's: it stays."""
CONNECT_S = 5.0
IDLE_S = 30.0
"""How long nothing may come."""
PIECES = 8
"""That wait to be written."""
SPARE_BYTES = 64 << 20
"""Of the file system, that a copy leaves free."""
MANIFEST_BYTES = 16 << 20


class CopyFailed(Exception):
    """No copy was made; what was there stays."""


async def fetch(session: aiohttp.ClientSession, url: str, key: str, data: Path) -> None:
    """Have a whole copy of the node at `url` in `data`'s copy/ready. Raises CopyFailed."""
    pieces: queue.Queue[bytes | None] = queue.Queue(PIECES)
    thread = ThreadPoolExecutor(1, thread_name_prefix="copy")
    loop = asyncio.get_running_loop()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=IDLE_S)
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with session.get(
            f"{url}/v1/cluster/checkpoint", headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                raise CopyFailed(f"status {answer.status}")
            work = loop.run_in_executor(thread, partial(unpack, pieces, data / FOLDER))
            try:
                async for piece in answer.content.iter_chunked(PIECE):
                    await _put(pieces, piece, work)
            finally:
                await _put(pieces, None, work)
                await work
    except (aiohttp.ClientError, TimeoutError, OSError, tarfile.TarError, ValueError) as error:
        raise CopyFailed(f"{type(error).__name__}: {error}") from error
    finally:
        thread.shutdown(wait=False)


async def _put(
    pieces: "queue.Queue[bytes | None]", piece: bytes | None, work: "asyncio.Future[None]"
) -> None:
    """Hand a piece on when there is room, if anybody still takes them."""
    while not work.done():
        try:
            pieces.put_nowait(piece)
        except queue.Full:
            await asyncio.sleep(0.005)
        else:
            return


class _Stream:
    """Pieces as a file."""

    def __init__(self, pieces: "queue.Queue[bytes | None]") -> None:
        self._pieces = pieces
        self._left = b""
        self._is_over = False

    def read(self, size: int) -> bytes:
        parts, lacking = [self._left], size - len(self._left)
        while lacking > 0 and not self._is_over:
            piece = self._pieces.get()
            if piece is None:
                self._is_over = True
                break
            parts.append(piece)
            lacking -= len(piece)
        whole = b"".join(parts)
        self._left = whole[size:]
        return whole[:size]


def unpack(pieces: "queue.Queue[bytes | None]", folder: Path) -> None:
    """Write a stream into `folder`/in, and make that `ready` if it is whole.

    In a thread. Raises OSError, TarError, ValueError.
    """
    target = folder / IN
    shutil.rmtree(folder, ignore_errors=True)
    target.mkdir(parents=True)
    found: dict[str, tuple[int, str]] = {}
    manifest: dict[str, tuple[int, str]] | None = None
    with tarfile.open(fileobj=_Stream(pieces), mode="r|", bufsize=PIECE) as tar:  # type: ignore[call-overload]
        for member in tar:
            if manifest is not None or not member.isreg() or not NAME.fullmatch(member.name):
                raise ValueError(f"a copy has no {member.name!r}")
            if member.name == MANIFEST:
                if member.size > MANIFEST_BYTES:
                    raise ValueError("the manifest is too large")
                said = json.loads(_reader(tar, member).read())
                manifest = {name: (int(size), str(sha)) for name, (size, sha) in said.items()}
                continue
            if shutil.disk_usage(target).free < member.size + SPARE_BYTES:
                raise ValueError(f"there is no room for {member.name}, of {member.size:,} bytes")
            found[member.name] = member.size, _written(_reader(tar, member), target / member.name)
    if manifest != found:
        raise ValueError("the copy was cut off" if manifest is None else "the copy is not what was sent")
    _sync_folder(target)
    target.rename(folder / READY)
    _sync_folder(folder)


def _reader(tar: tarfile.TarFile, member: tarfile.TarInfo) -> "tarfile.ExFileObject":
    file = tar.extractfile(member)
    assert file is not None, "it is a regular file"
    return file  # type: ignore[return-value]


def _written(source: "tarfile.ExFileObject", path: Path) -> str:
    """The hash of what was written and synced."""
    sha = hashlib.sha256()
    with path.open("xb") as file:
        while piece := source.read(PIECE):
            sha.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return sha.hexdigest()


def recover_swap(data: Path) -> None:
    """Put a whole copy in the place of what is there; delete what is left of another. Nothing is open.

    Raises OSError.
    """
    folder = data / FOLDER
    if (folder / READY).is_dir():
        for path in data.iterdir():
            if path.name not in KEPT:
                _delete(path)
        _sync_folder(data)
        (folder / READY).rename(folder / MOVING)
        _sync_folder(folder)
    if (folder / MOVING).is_dir():
        for path in (folder / MOVING).iterdir():
            path.rename(data / path.name)
        _sync_folder(data)
    shutil.rmtree(folder, ignore_errors=True)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _sync_folder(folder: Path) -> None:
    """Have its names on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
