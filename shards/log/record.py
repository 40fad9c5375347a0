"""One record of the log as bytes: a *frame*, sealed by a digest and chained to the one before it.

    version (1) · seq (8) · epoch (8) · digest of the frame before (16) · data · digest of all that (16)

Numbers are big-endian. The digest is the first half of SHA-256. It is the checksum of the frame and its name
in the next frame: a frame that was left out, put twice or taken from elsewhere does not fit. 250 KB take 0.2
ms. Before the first frame is the ORIGIN, zeros.

The digest comes last and covers the version, in every version. This tells damaged bytes from those of a later
version.

A record is a claim if its epoch is its own seq. Its data is JSON: the node, its URL for clients, and a nonce.
The nonce makes two claims of one node for one place differ, since only one of them was granted.
"""

import hashlib
from typing import Any, NamedTuple

import msgspec

from .errors import Damaged, UnknownVersion

FIRST_VERSION = 1
VERSION = 1
DIGEST_BYTES = 16
_NUMBER_BYTES = 8
_HEAD_BYTES = 1 + 2 * _NUMBER_BYTES + DIGEST_BYTES
EXTRA_BYTES = _HEAD_BYTES + DIGEST_BYTES
"""Bytes of a frame beside its data."""


class Seal(NamedTuple):
    """What names a record: a store keeps it, and the next frame is chained to it."""

    seq: int
    epoch: int
    digest: bytes = b""
    """Empty: not known."""
    version: int = FIRST_VERSION

    def __str__(self) -> str:
        return f"with the log up to record {self.seq:,} of epoch {self.epoch:,}"


ORIGIN = Seal(0, 0, bytes(DIGEST_BYTES))
"""Before the first record."""


class Record(NamedTuple):
    """An opened frame. `before`: digest of the frame before it."""

    seal: Seal
    before: bytes
    data: bytes


class Claim(NamedTuple):
    """The node that leads from this record on."""

    node: str
    url: str
    nonce: str
    has_base: bool = False
    """The node's store had rows before the log had records: an empty store cannot begin with the first
    record."""


def frame_of(seq: int, epoch: int, before: Seal, data: bytes) -> bytes:
    """The bytes of record `seq`, which follows `before`."""
    assert seq == before.seq + 1
    head = bytes((VERSION,)) + seq.to_bytes(_NUMBER_BYTES, "big") + epoch.to_bytes(_NUMBER_BYTES, "big")
    body = b"".join((head, before.digest, data))
    return body + _digest(body)


def digest_in(frame: bytes) -> bytes:
    return frame[-DIGEST_BYTES:]


def opened(frame: bytes, seq: int) -> Record:
    """The record in the frame at `seq`. Raises Damaged, UnknownVersion."""
    if len(frame) < EXTRA_BYTES or _digest(memoryview(frame)[:-DIGEST_BYTES]) != digest_in(frame):
        raise Damaged(f"record {seq} of the log is not what was written: its checksum does not fit")
    if frame[0] != VERSION:
        raise UnknownVersion(f"record {seq} of the log is of version {frame[0]}; known is {VERSION}")
    numbers = frame[1 : 1 + 2 * _NUMBER_BYTES]
    said, epoch = (int.from_bytes(part, "big") for part in (numbers[:_NUMBER_BYTES], numbers[_NUMBER_BYTES:]))
    if said != seq:
        raise Damaged(f"record {said} of the log stands at {seq}")
    before = frame[_HEAD_BYTES - DIGEST_BYTES : _HEAD_BYTES]
    return Record(Seal(seq, epoch, digest_in(frame)), before, frame[_HEAD_BYTES:-DIGEST_BYTES])


def follows(record: Record, before: Seal) -> bool:
    """Whether a record was written directly after `before`, by the same leader or by a claim."""
    seal = record.seal
    return (
        seal.seq == before.seq + 1
        and record.before == before.digest
        and seal.epoch in (before.epoch, seal.seq)
    )


def claim_data(claim: Claim) -> bytes:
    return msgspec.json.encode(claim._asdict())


def claim_of(data: bytes) -> Claim:
    """Read a claim. Raises Damaged."""
    try:
        said: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        return Claim(
            str(said["node"]), str(said["url"]), str(said["nonce"]), bool(said.get("has_base", False))
        )
    except (msgspec.MsgspecError, KeyError) as error:
        raise Damaged(f"a claim of the log cannot be read: {error}") from error


def _digest(body: bytes | memoryview) -> bytes:
    return hashlib.sha256(body).digest()[:DIGEST_BYTES]
