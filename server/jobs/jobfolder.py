"""A job's folder in the store's directory: `<store>/jobs/<id>/plan` is the checkpoint that the job reads.

It lies on the store's file system, so that a checkpoint is links. What is there when the server starts
belongs to nobody and goes, also what jobs of older versions have written. All of this blocks: it is for
threads.
"""

import shutil
from pathlib import Path

from shards.store import Store


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def plan(store: Store, folder: Path) -> None:
    """Make the folder, with a checkpoint. Raises StoreFailed, OSError."""
    folder.mkdir(parents=True)
    store.checkpoint(folder / "plan")
