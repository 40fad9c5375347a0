"""Who may read the data besides the server: nobody, or the group of its directory.

A data directory holds payloads, and tokens that endpoints of webhooks are sent. It gets mode 0700 and what is
written into it 0600, whatever the umask. The engine creates files by itself, in threads of its own, so the
process changes its umask (`private`). Files that are there already keep their modes: their directory keeps
others out.

    new                                          0700
    0750, set by somebody                        shared with its group, as with workers of Spark that run as
                                                 another user: kept, said at each start; files 0640
    others may enter, or the group may write     narrowed to 0700 if it is this user's, and said;
                                                 else, or with the sticky bit (it is /tmp), only said

Backups are made under the same umask. The directory that they lie in may be shared on purpose, so it keeps
its mode; `warn_of_open` says it if others can read an old backup.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISVTX

log = logging.getLogger(__name__)

OWN = 0o700
_BESIDES = 0o077
_TOO_MUCH = 0o027
"""What no data directory is left with: anything for others, writing for its group."""
_SHARED = 0o050
BACKUPS_MAX = 1_000
"""Backups that are looked at when the server starts."""


@contextmanager
def private(data: Path) -> Iterator[int]:
    """While it lasts, what this process creates is its user's alone, or its group's too as far as the data
    directory is; gives the umask before."""
    shared = False
    with suppress(OSError):
        shared = S_IMODE(data.stat().st_mode) & _BESIDES == _SHARED
    before = os.umask(_TOO_MUCH if shared else _BESIDES)
    try:
        yield before
    finally:
        os.umask(before)


def narrow(data: Path) -> None:
    """Keep others out of a data directory that is there, and say so; say it if that cannot be done."""
    try:
        found = data.stat()
    except OSError:
        return  # whoever opens it says why
    mode = S_IMODE(found.st_mode)
    if not mode & _BESIDES:
        return
    if not mode & _TOO_MUCH:
        text = "%s: mode %04o, so group %d can read the data: chmod 700 unless it is shared on purpose"
        log.warning(text, data, mode, found.st_gid)
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


def warn_of_open(backups: Path) -> None:
    """Say if others can read one of the backups."""
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
