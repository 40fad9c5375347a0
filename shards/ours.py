"""Whether a data directory may be ours: before its mode is narrowed and anything is written in it.

A wrong `--data` is a home directory, a file, another user's directory, or another program's database. The
engine would open the last one and add its tables. A new directory may hold hidden files, `lost+found` and the
files that the settings name; once the store is in it the operator may put more there.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path

from rocksdict import Options, Rdict

from .errors import NotOurs
from .store import Table

COPIED = re.compile(
    r"CURRENT|IDENTITY|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d+|\d+\.(sst|log)|rocksdict-config\.json",
    re.ASCII,
)
OF_THE_STORE = re.compile(
    rf"{COPIED.pattern}|[\w-]+\.dbtmp|bound(\.new)?|synced|scrubbed(\.new)?|jobs|beside", re.ASCII
)
"""Deleted with the old rows. Other files stay: last uses of keys, the operator's files, `lost+found`."""
_BESIDES = re.compile(
    r"\..*|lost\+found|LOCK|copy|keys-used\.(json|new)|fasti-options-\w+", re.ASCII | re.DOTALL
)
_TABLES = frozenset(table.value for table in Table)


def check_ours(data: Path, named: Collection[Path]) -> None:
    """Raise NotOurs if the directory is another's. `named`: files that the settings name."""
    there = data
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise NotOurs(f"{there} is not a directory")
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK) and not os.statvfs(there).f_flag & os.ST_RDONLY:
        found = there.stat()
        raise NotOurs(
            f"{there} belongs to user {found.st_uid} (mode {found.st_mode & 0o7777:04o}), and the server runs"
            f" as user {os.geteuid()}, who may not write there"
        )
    if there != data:
        return
    names = sorted(os.listdir(data))
    if "CURRENT" in names:
        _check_database(data, names)
        return
    beside = {path.absolute().name for path in named if path.absolute().parent == data.absolute()}
    others = [
        name
        for name in names
        if not (OF_THE_STORE.fullmatch(name) or _BESIDES.fullmatch(name) or name in beside)
    ]
    if others:
        listed = ", ".join(others[:3]) + (" …" if len(others) > 3 else "")
        raise NotOurs(
            f"{data} has no store of fasti, but other files ({listed}); name a new or empty directory"
        )


def _check_database(data: Path, names: Collection[str]) -> None:
    """Raise NotOurs for a database of the same engine with other tables."""
    try:
        families = set(Rdict.list_cf(str(data), Options(raw_mode=True))) - {"default"}
    except Exception:
        return  # opening it names the file
    # A kill while the database is created leaves it without tables, and without rows.
    has_rows = any(
        name.endswith(".sst") or (name.endswith(".log") and (data / name).stat().st_size) for name in names
    )
    if not families & _TABLES and (families or has_rows):
        raise NotOurs(f"{data} has a database of another program; name a new or empty directory")
