"""A few bytes in their own file, overwritten in place: two copies, each in its sector with a checksum.

    raw · CRC-32 of it (4) · zeros up to SECTOR        twice

If one is torn or rotten the other remains. Here is also how anything at a path is synced.
"""

import os
import zlib
from pathlib import Path

SECTOR = 4_096
_CHECKSUM_BYTES = 4


def sealed(raw: bytes) -> bytes:
    """The bytes of one sector."""
    return (raw + zlib.crc32(raw).to_bytes(_CHECKSUM_BYTES, "big")).ljust(SECTOR, b"\0")


def unsealed(file: bytes, size: int) -> list[bytes]:
    """Contents of the sectors whose checksums fit; `size`: bytes of each."""
    found = []
    for sector in (file[:SECTOR], file[SECTOR:]):
        raw, checksum = sector[:size], sector[size : size + _CHECKSUM_BYTES]
        if len(checksum) == _CHECKSUM_BYTES and zlib.crc32(raw) == int.from_bytes(checksum, "big"):
            found.append(raw)
    return found


def sync_path(path: Path) -> None:
    """Make a file's bytes, or the names in a folder, durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
