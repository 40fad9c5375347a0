"""A copy of another node's data put in the place of this one's, whatever moment a kill comes at.

The data directory may be a mount of its own, which nobody can rename, and what else lies in it is not ours:
so files are changed for files, within it. The copy lies below it, and a rename goes from one to the next:

    copy/in       as it comes; a kill leaves it unfinished, and it is deleted
    copy/ready    whole, as its manifest says, and synced: from here on it counts, the old files do not
    copy/moving   the old files are gone; these are moved to where those were

`recover_swap` goes on from whichever there is. Between the first file that it deletes and the last that it
moves the directory is no store, and an engine would quietly make an empty one of it: so the engine's lock is
held meanwhile, and who does not go on asks `check_swapped` before opening.

Old and new are there at once: a disk has to have room for both.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shards.errors import StoreFailed, StoreLocked

FOLDER = "copy"
"""In the data directory: on its file system, also where that is a mount of its own."""
IN, READY, MOVING = "in", "ready", "moving"
_COPIED = re.compile(
    r"CURRENT|IDENTITY|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d+|\d+\.(sst|log)|rocksdict-config\.json",
    re.ASCII,
)
_OF_THE_STORE = re.compile(rf"{_COPIED.pattern}|[\w-]+\.dbtmp|bound(\.new)?|synced|jobs|beside", re.ASCII)
"""What goes with the old rows. The rest stays: when keys were used, files of the operator, `lost+found`."""


def is_copied(name: str) -> bool:
    """Whether a copy may have a file of this name."""
    return _COPIED.fullmatch(name) is not None


def recover_swap(data: Path) -> None:
    """Put a whole copy in the place of what is there; delete what is left of another. Blocks.

    To be called before the store is opened, each time. Raises StoreLocked, OSError.
    """
    folder = data / FOLDER
    if not folder.is_dir():
        return
    with _locked(data):
        if (folder / READY).is_dir():
            sync_folder(data)
            for path in list(data.iterdir()):
                if _OF_THE_STORE.fullmatch(path.name):
                    _delete(path)
            sync_folder(data)
            (folder / READY).rename(folder / MOVING)
            sync_folder(folder)
        if (folder / MOVING).is_dir():
            for path in list((folder / MOVING).iterdir()):
                path.rename(data / path.name)
            # Both, or a loss of power could bring a file back here that has been written on there.
            sync_folder(data)
            sync_folder(folder / MOVING)
        shutil.rmtree(folder, ignore_errors=True)
        sync_folder(data)


def check_swapped(data: Path) -> None:
    """Raises StoreFailed if what is there is half of one store and half of another, or about to be."""
    if any((data / FOLDER / name).is_dir() for name in (READY, MOVING)):
        raise StoreFailed(f"{data}: a copy of another node is half installed: start the node to finish it")


def sync_folder(folder: Path) -> None:
    """Have its names on the disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextmanager
def _locked(data: Path) -> Iterator[None]:
    """With the engine's lock, so that nobody opens the store."""
    lock = os.open(data / "LOCK", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise StoreLocked(f"{data} is open in another process") from None
        yield
    finally:
        os.close(lock)
