"""A few bytes in their own file, overwritten in place: two copies, each in its sector with a checksum.

    raw · CRC-32 of it (4) · zeros up to SECTOR        twice

If one is torn or rotten the other remains.
"""

import zlib

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
