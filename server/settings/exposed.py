"""Files with secrets that other users can read: the settings file and private keys for TLS.

The keys file is not checked here: the server refuses one that others can read (server/auth/keys_file.py).
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from .config import Config
from .kinds import HIDDEN
from .reading import FILE, keys, value_of

OTHERS_READ = 0o004


def exposed(config: Config, origins: Mapping[str, str], path: Path | None) -> list[str]:
    """Warnings about files with secrets that other users can read. `path`: the settings file."""
    return [
        f"{file} has mode {mode:04o}: other users can read {what} in it; chmod 600 {file}"
        for file, what in _files(config, origins, path)
        if os.access(file, os.R_OK) and (mode := file.stat().st_mode & 0o777) & OTHERS_READ
    ]


def _files(config: Config, origins: Mapping[str, str], path: Path | None) -> Iterator[tuple[Path, str]]:
    for name, _, kind in keys():
        if path and origins[name].startswith(FILE) and HIDDEN in kind.show(value_of(config, name)):
            yield path, name
    for one in dict.fromkeys(part.tls_key or part.tls_cert for part in (config.http, config.mqtt)):
        if one:  # a certificate without a key beside it has the key in its file
            yield Path(one), "the private key"
