"""File modes: who besides the server may read the data. Nobody, or the group of its directory.

A data directory holds payloads, and tokens for webhook endpoints. It gets mode 0700 and its new files 0600,
whatever the umask. The engine creates files in its own threads, so the process changes its umask (`private`).
Existing files keep their modes: their directory keeps others out.

    new                                          0700
    0750, set by a user                          shared with its group, as with Spark workers that run as
                                                 another user: kept, with setgid; logged at each start;
                                                 new files 0640, of that group
    others may enter, or the group may write     narrowed to 0700 if it is this user's, and logged;
                                                 else, or with the sticky bit (it is /tmp), only logged

Backups are made under the same umask. Their directory may be shared on purpose, so it keeps its mode;
`warn_of_open` logs a warning if others can read an old backup.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISGID, S_ISVTX

log = logging.getLogger(__name__)

OWN = 0o700
_BESIDES = 0o077
_TOO_MUCH = 0o027
"""Bits cleared from a data directory's mode: all for others, writing for the group."""
_SHARED = 0o050
BACKUPS_MAX = 1_000
"""Maximum backups checked when the server starts."""


@contextmanager
def private(data: Path) -> Iterator[int]:
    """Context: new files of this process are its user's alone, or also its group's if the data directory is
    shared. Yields the umask from before."""
    shared = False
    with suppress(OSError):
        shared = S_IMODE(data.stat().st_mode) & _BESIDES == _SHARED
    before = os.umask(_TOO_MUCH if shared else _BESIDES)
    try:
        yield before
    finally:
        os.umask(before)


def narrow(data: Path) -> None:
    """Narrow the mode of an existing data directory, and log it; also log a failure."""
    try:
        found = data.stat()
    except OSError:
        return  # opening it will report this
    mode = S_IMODE(found.st_mode)
    if not mode & _BESIDES:
        return
    if not mode & _TOO_MUCH:
        text = "%s: mode %04o, so group %d can read the data: chmod 700 unless it is shared on purpose"
        log.warning(text, data, mode, found.st_gid)
        _share(data, mode, found.st_gid)
        return
    if found.st_uid == os.geteuid() and not mode & S_ISVTX:
        with suppress(OSError):
            data.chmod(mode & ~_BESIDES)
            log.warning("%s: mode %04o let others in: narrowed to %04o", data, mode, mode & ~_BESIDES)
            return
    text = (
        "%s: mode %04o and owner %d, so others can read or change the data: give it to this user, chmod 700"
    )
    log.warning(text, data, mode, found.st_uid)


def _share(data: Path, mode: int, group: int) -> None:
    """Give new files and directories the directory's group in place of the process's."""
    if group == os.getegid():
        return
    with suppress(OSError):
        data.chmod(mode | S_ISGID)
    # The system clears the bit silently if the group is not one of this user's.
    if not data.stat().st_mode & S_ISGID:
        text = "%s: new files do not get its group %d: add user %d to it, or set the bit setgid (chmod g+s)"
        log.warning(text, data, group, os.geteuid())


def warn_of_open(backups: Path) -> None:
    """Log a warning if others can read one of the backups."""
    with suppress(OSError):
        if not backups.stat().st_mode & 0o001:
            return
        with os.scandir(backups) as entries:
            for entry in islice(entries, BACKUPS_MAX):
                mode = entry.stat(follow_symlinks=False).st_mode
                if S_ISDIR(mode) and mode & 0o005:
                    text = "%s: mode %04o, so others can read this backup: chmod 700, or 750 for its group"
                    log.warning(text, entry.path, S_IMODE(mode))
                    return
