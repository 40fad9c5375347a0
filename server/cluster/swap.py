"""Replaces this node's data by a copy of another node's, safely at any moment of a kill.

The data directory may be a mount, which cannot be renamed, and may contain other files. So single files are
replaced within it. The copy is below it, and renames lead from one state to the next:

    copy/in       being received; after a kill it is deleted
    copy/ready    complete by its manifest, and synced: from here on it counts, the old files do not
    copy/moving   the old files are gone; these are moved to their place

`recover_swap` continues from the state that it finds. Between its first deletion and its last move the
directory is not a store, and an engine would silently create an empty one there. So it holds the engine's
lock meanwhile, and other programs call `check_swapped` before opening.

Old and new data exist at the same time: the disk needs room for both.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shards.errors import StoreFailed, StoreLocked
from shards.ours import COPIED, OF_THE_STORE
from shards.sectors import sync_path

FOLDER = "copy"
"""In the data directory, so on its file system, also if that is a mount."""
IN, READY, MOVING = "in", "ready", "moving"


def is_copied(name: str) -> bool:
    """Whether a copy may contain a file of this name."""
    return COPIED.fullmatch(name) is not None


def recover_swap(data: Path) -> None:
    """Put a complete copy in place of the data; delete the rest of an incomplete one. Blocks.

    Call it each time before the store is opened. Raises StoreLocked, OSError.
    """
    folder = data / FOLDER
    if not folder.is_dir():
        return
    with _locked(data):
        if (folder / READY).is_dir():
            sync_path(data)
            for path in list(data.iterdir()):
                if OF_THE_STORE.fullmatch(path.name):
                    _delete(path)
            sync_path(data)
            (folder / READY).rename(folder / MOVING)
            sync_path(folder)
        if (folder / MOVING).is_dir():
            for path in list((folder / MOVING).iterdir()):
                path.rename(data / path.name)
            # Both: otherwise a power cut could bring back a file here that was moved and written there.
            sync_path(data)
            sync_path(folder / MOVING)
        shutil.rmtree(folder, ignore_errors=True)
        sync_path(data)


def check_swapped(data: Path) -> None:
    """Raise StoreFailed if the directory has parts of two stores, or is about to."""
    if any((data / FOLDER / name).is_dir() for name in (READY, MOVING)):
        raise StoreFailed(f"{data}: a copy of another node is half installed: start the node to finish it")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextmanager
def _locked(data: Path) -> Iterator[None]:
    """Context that holds the engine's lock, so that no process opens the store."""
    lock = os.open(data / "LOCK", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise StoreLocked(f"{data} is open in another process") from None
        yield
    finally:
        os.close(lock)
