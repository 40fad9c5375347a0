"""Opens a timeline at rest, read-only: a checkpoint, a backup, or the data of a stopped server.

The binding writes a small file into every directory that it opens, read-only or not. That fails on a
read-only file system, and is a race between two tasks on one checkpoint. So a directory of links to the files
is opened instead, with a copy of that one file. It is deleted with the snapshot, and the original stays
unchanged, byte for byte.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from shards.errors import ShardsError, WrongFormat
from shards.read import Reader
from shards.recover import format_of, read_directory, read_structures, stored_cursor
from shards.rocks import RocksStore, is_open
from shards.state import Journal
from shards.store import Store
from shards.tables import StoredCursor
from timeline.structures import Structures

from .errors import NotAStore
from .job import path_of

OWN_FILE = "rocksdict-config.json"
ANY_NUMBER = 1 << 40


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A timeline at rest: rows through `reader`, and the stored cursor."""

    store: Store
    reader: Reader
    cursor: StoredCursor

    def journal(self) -> Journal:
        """When dispatch reached a message. What a rotten block has of it is not known."""
        return Journal(self.store, skips_damage=True)


@contextmanager
def opened_store(uri: str) -> Iterator[Store]:
    """The tables of a checkpoint. Raises NotAStore, which says what to do."""
    path = path_of(uri)
    check_readable(path)
    with TemporaryDirectory(prefix="fasti-read-") as folder:
        links = Path(folder)
        _link(path, links)
        try:
            store = RocksStore(links, read_only=True)
        except ShardsError as error:
            text = str(error).replace(str(links), str(path))
            raise NotAStore(f"{path} cannot be opened: {text}") from error
        try:
            yield store
        finally:
            store.close()


@contextmanager
def opened_snapshot(uri: str) -> Iterator[Snapshot]:
    """The tables with the directory. Raises NotAStore also for another format."""
    with opened_store(uri) as store:
        try:
            if format_of(store) is None:
                raise NotAStore(f"{path_of(uri)}: the data has no format")
        except WrongFormat as error:
            raise NotAStore(f"{path_of(uri)}: {error}") from None
        cursor = stored_cursor(store, 0)
        directory = read_directory(store, ANY_NUMBER)
        directory.floor = cursor.floor
        structures = Structures(max_structures=ANY_NUMBER)
        structures.restore(read_structures(store))
        yield Snapshot(store, Reader(store, directory, structures), cursor)


def check_readable(path: Path) -> None:
    """Raise NotAStore unless there is a timeline that no process writes to."""
    if not (path / "CURRENT").is_file():
        raise NotAStore(f"{path} is no fasti data directory, backup or checkpoint")
    if is_open(path):
        raise NotAStore(f"{path} is the data of a running server: take a backup first (POST /v1/backups)")


def _link(path: Path, links: Path) -> None:
    for file in path.resolve().iterdir():
        if not file.is_file() or file.name == "LOCK":
            continue
        if file.name == OWN_FILE:
            shutil.copyfile(file, links / file.name)
        else:
            (links / file.name).symlink_to(file)
