"""A few bytes in a file of their own that is overwritten in place: twice, each in a sector, with a checksum.

    raw · CRC-32 of it (4) · zeros up to SECTOR        twice

One that is torn or rotten leaves the other.
"""

import zlib

SECTOR = 4_096
_CHECKSUM_BYTES = 4


def sealed(raw: bytes) -> bytes:
    """One of the two sectors."""
    return (raw + zlib.crc32(raw).to_bytes(_CHECKSUM_BYTES, "big")).ljust(SECTOR, b"\0")


def unsealed(file: bytes, size: int) -> list[bytes]:
    """What the sectors of a file say whose checksums fit; `size`: bytes of each."""
    found = []
    for sector in (file[:SECTOR], file[SECTOR:]):
        raw, checksum = sector[:size], sector[size : size + _CHECKSUM_BYTES]
        if len(checksum) == _CHECKSUM_BYTES and zlib.crc32(raw) == int.from_bytes(checksum, "big"):
            found.append(raw)
    return found
