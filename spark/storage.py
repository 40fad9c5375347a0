"""Files below the root of an archive: in a directory, or in an object store through `pyarrow.fs`.

    storage_at("/var/fasti/archive")        storage_at("s3://bucket/fasti")

Credentials and endpoints come from each system's usual variables (AWS_*, GOOGLE_APPLICATION_CREDENTIALS,
AZURE_STORAGE_*), of this process. Paths are relative to the root. A written file is complete: in a directory
it is written under another name, synced, renamed, and the directory synced; in an object store it appears
when its upload ends. An upload that fails may leave a part of a file under that name: names are never used
twice, and a file counts only if a manifest names it. Every failure is a `StorageFailed` of one line.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from shards.archives import ArchivedFile, archive_url, is_local
from shards.sectors import sync_path

from .errors import SparkError

CONNECT_S, REQUEST_S, TRIES = 10, 60, 5
"""Bounds of one request to an object store, and how often it is tried."""
CHUNK = 1 << 20


class StorageFailed(SparkError):
    """The archive cannot be read or written."""


class Missing(StorageFailed):
    """No such file."""


class Entry(NamedTuple):
    """A file of the archive."""

    path: str
    bytes: int
    changed_s: float
    """When it was written, or moved to that path, Unix s."""


class Storage:
    """The files below a root."""

    def __init__(self, system: fs.FileSystem, root: str, name: str) -> None:
        """`name`: of the archive, for people."""
        self.system = system
        self.root = root
        self.name = name
        self._folder = Path(root) if isinstance(system, fs.LocalFileSystem) else None

    def full(self, path: str) -> str:
        """The path in `system`. Raises StorageFailed for one that leads out of the archive."""
        if path.startswith("/") or ".." in path.split("/"):
            raise StorageFailed(f"{self.name}: {path} is not inside it")
        return f"{self.root}/{path}" if path else self.root

    def exists(self, path: str) -> bool:
        with self.failing(path):
            return bool(self.system.get_file_info(self.full(path)).type == fs.FileType.File)

    def read(self, path: str) -> bytes:
        with self.opened(path) as file, self.failing(path):
            return bytes(file.read())

    def find(self, path: str) -> bytes | None:
        """What a file has; None: it is missing."""
        with suppress(Missing):
            return self.read(path)
        return None

    @contextmanager
    def opened(self, path: str) -> Iterator[pa.NativeFile]:
        """A file to read at any place of it. Raises Missing."""
        with self.failing(path):
            file = self.system.open_input_file(self.full(path))
        with file:
            yield file

    def sum_of(self, path: str) -> tuple[int, str]:
        """(bytes, SHA-256 in hexadecimal). Raises Missing."""
        size, found = 0, hashlib.sha256()
        with self.opened(path) as file, self.failing(path):
            while chunk := file.read(CHUNK):
                size += len(chunk)
                found.update(chunk)
        return size, found.hexdigest()

    def fault_in(self, file: ArchivedFile) -> str:
        """Read a file back. Returns what is wrong with it; empty: nothing. Raises StorageFailed."""
        try:
            size, digest = self.sum_of(file.path)
        except Missing as error:
            return str(error)
        if size != file.bytes:
            return f"{self.name}/{file.path} has {size} bytes, not {file.bytes}"
        return "" if digest == file.sha256 else f"{self.name}/{file.path} has other bytes than were written"

    @contextmanager
    def writing(self, path: str) -> Iterator[pa.NativeFile]:
        """A new file, which is there when the context ends without an error."""
        with self.failing(path):
            if self._folder is None:
                with self.system.open_output_stream(self.full(path)) as file:
                    yield file
                return
            self._make_folder(path)
            target = Path(self.full(path))
            unfinished = target.with_name(f".{target.stem}.{uuid4().hex[:12]}.tmp")
            try:
                with self.system.open_output_stream(str(unfinished)) as file:
                    yield file
                sync_path(unfinished)
                unfinished.rename(target)
                sync_path(target.parent)
            finally:
                unfinished.unlink(missing_ok=True)

    def write(self, path: str, data: bytes) -> None:
        with self.writing(path) as file:
            file.write(data)

    def list(self, folder: str = "", *, recursive: bool = False) -> list[Entry]:
        """The files in a folder by path; none if it is not there. Not those that are being written."""
        selector = fs.FileSelector(self.full(folder), allow_not_found=True, recursive=recursive)
        with self.failing(folder):
            found = self.system.get_file_info(selector)
        return sorted(
            Entry(one.path[len(self.root) + 1 :], one.size, one.mtime.timestamp())
            for one in found
            if one.type == fs.FileType.File and not one.base_name.startswith(".")
        )

    def move(self, path: str, to: str) -> None:
        """Not atomic in an object store. Raises Missing."""
        with self.failing(path):
            if self._folder is not None:
                self._make_folder(to)
                os.utime(self.full(path))
            try:
                self.system.move(self.full(path), self.full(to))
            except OSError as error:  # An object store has words of its own for what is not there.
                raise (error if self.exists(path) else FileNotFoundError) from None

    def delete(self, path: str) -> None:
        """Nothing if it is not there."""
        with self.failing(path), suppress(FileNotFoundError):
            self.system.delete_file(self.full(path))

    def clear_unfinished(self, older_s: float) -> None:
        """In a directory, remove files that were being written before that time, Unix s."""
        for path in self._folder.glob("**/.*.tmp") if self._folder is not None else ():
            if path.stat().st_mtime < older_s:
                path.unlink(missing_ok=True)

    def _make_folder(self, path: str) -> None:
        """Make the folders of a path, each durable."""
        missing = [one for one in Path(self.full(path)).parents if not one.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            sync_path(folder.parent)

    @contextmanager
    def failing(self, path: str) -> Iterator[None]:
        """What fails there is told as a StorageFailed."""
        try:
            yield
        except FileNotFoundError:
            raise Missing(f"{self.name}/{path} is missing") from None
        except (OSError, pa.ArrowException) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise StorageFailed(f"{self.name}/{path}: {' '.join(why.split())[:500]}") from error


def storage_at(name: str) -> Storage:
    """The archive of that name: a path, or a URL as `archive_url` takes it. Raises StorageFailed."""
    try:
        url = archive_url(name)
        if is_local(url):
            return Storage(fs.LocalFileSystem(), url.rstrip("/"), url)
        scheme, rest = url.split("://")
        return Storage(_remote(scheme, rest), _path_of(scheme, rest), url)
    except ValueError as error:
        raise StorageFailed(f"the archive {error}, not {name!r}") from None
    except (OSError, pa.ArrowException) as error:
        raise StorageFailed(f"{name}: {' '.join(str(error).split())[:500]}") from error


def _remote(scheme: str, rest: str) -> fs.FileSystem:
    if scheme == "s3":
        retries = fs.AwsStandardS3RetryStrategy(max_attempts=TRIES)
        return fs.S3FileSystem(
            endpoint_override=s3_endpoint(),
            allow_delayed_open=True,  # A small file is one request, and is there whole or not at all.
            connect_timeout=CONNECT_S,
            request_timeout=REQUEST_S,
            retry_strategy=retries,
        )
    if scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=REQUEST_S))
    system, _ = fs.FileSystem.from_uri(f"{scheme}://{rest}")
    return system


def s3_endpoint() -> str | None:
    """Another server than Amazon's. pyarrow looks at these variables for URLs only."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _path_of(scheme: str, rest: str) -> str:
    """The root within the file system: bucket or container, and folder."""
    if scheme != "abfs":
        return rest
    _, path = fs.FileSystem.from_uri(f"{scheme}://{rest}")
    return str(path).rstrip("/")
