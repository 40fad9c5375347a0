"""One record of the log as bytes: a *frame*, sealed by a digest and chained to the record before it.

    version (1) · seq (8) · epoch (8) · digest of the record before (16) · kind (1) · data ·
    digest of all that (16)

Numbers are big-endian. The digest is the first half of SHA-256. It is the checksum of the frame and its name
in the next frame: a frame that was left out, put twice or taken from elsewhere does not fit. 250 KB take 0.2
ms. Before the first frame is the ORIGIN, zeros. The record before may stand further back than the place
before: what stands between is passed over (chain.py).

The digest comes last and covers the version, in every version. This tells damaged bytes from those of another
version. Versions 1 and 2 are older than the first release with a log.

The kind has two bits. PART: the group goes on in the next record. AHEAD: the record was sent before its
writer knew that the one before it is in the log. That one was sent for the place directly before. If another
thing stands there, this record is none: *void* (chain.py).

A record is a claim if its epoch is its own seq. Its data is JSON: the node, its URL for clients, and a nonce.
The nonce makes two claims of one node for one place differ, since only one of them was granted. Each claim
names the timeline: an id that the first leader has made, and that stays. A MAC (HMAC-SHA256) covers its seq
and its other fields, by the cluster's key: who reads and writes the engine without that key cannot lead.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from .errors import Damaged, UnknownVersion

T = TypeVar("T")
Fields = dict[str, Any]

VERSION = 3
WHOLE, PART, AHEAD = 0, 1, 2
"""Bits of a record's kind."""
DIGEST_BYTES = 16
_NUMBER_BYTES = 8
_HEAD_BYTES = 1 + 2 * _NUMBER_BYTES + DIGEST_BYTES
PART_BYTES = (1 << 20) - 1024
"""Maximum bytes of a group in one record; with all around it 1 MiB, which NATS takes by default."""
EXTRA_BYTES = _HEAD_BYTES + 1 + DIGEST_BYTES
"""Bytes of a frame beside its data."""


class Seal(NamedTuple):
    """What names a record: a store keeps it, and the next frame is chained to it."""

    seq: int
    epoch: int
    digest: bytes = b""
    """Empty: not known."""

    def __str__(self) -> str:
        return f"with the log up to record {self.seq:,} of epoch {self.epoch:,}"


ORIGIN = Seal(0, 0, bytes(DIGEST_BYTES))
"""Before the first record."""


class Record(NamedTuple):
    """An opened frame. `before`: digest of the record before it."""

    seal: Seal
    before: bytes
    data: bytes
    is_part: bool = False
    """Whether the group goes on in the next record."""
    is_ahead: bool = False
    """Whether it was sent before the one before it was known to be in the log."""


class Claim(msgspec.Struct, frozen=True):
    """The node that leads from this record on."""

    node: str
    url: str
    nonce: str
    has_base: bool = False
    """The node's store had rows before the log had records: an empty store cannot begin with the first
    record."""
    mac: str = ""
    timeline: str = ""
    """The timeline's id, 32 hex digits."""
    base: int = 0
    """The record behind which a lost log was begun anew with this claim; 0: it was not."""


def frame_of(
    seq: int,
    epoch: int,
    before: Seal,
    data: bytes,
    *,
    is_part: bool = False,
    is_ahead: bool = False,
) -> bytes:
    """The bytes of record `seq`, which follows `before`."""
    assert seq > before.seq
    head = bytes((VERSION,)) + seq.to_bytes(_NUMBER_BYTES, "big") + epoch.to_bytes(_NUMBER_BYTES, "big")
    body = b"".join((head, before.digest, bytes((PART * is_part | AHEAD * is_ahead,)), data))
    return body + _digest(body)


def part_bytes(largest: int) -> int:
    """Maximum bytes of a group in one record, in frames of so many bytes at most."""
    return min(PART_BYTES, largest - EXTRA_BYTES)


def digest_in(frame: bytes) -> bytes:
    return frame[-DIGEST_BYTES:]


def opened(frame: bytes, seq: int) -> Record:
    """The record in the frame at `seq`. Raises Damaged, UnknownVersion."""
    if len(frame) < EXTRA_BYTES or _digest(memoryview(frame)[:-DIGEST_BYTES]) != digest_in(frame):
        raise Damaged(f"record {seq} of the log is damaged: its checksum does not fit")
    version, kind = frame[0], frame[_HEAD_BYTES]
    if version != VERSION:
        raise UnknownVersion(f"record {seq} of the log has version {version}, this node reads {VERSION}")
    place, epoch, before = _head_of(frame)
    if place != seq:
        raise Damaged(f"record {place} of the log stands at {seq}")
    if kind > PART | AHEAD:
        raise UnknownVersion(f"record {seq} of the log is of an unknown kind: a later version wrote it")
    data = frame[_HEAD_BYTES + 1 : -DIGEST_BYTES]
    return Record(Seal(seq, epoch, digest_in(frame)), before, data, bool(kind & PART), bool(kind & AHEAD))


def is_of(frame: bytes, seq: int, before: Seal) -> bool:
    """Whether bytes that cannot be opened look like a record of this place, by its number or its link."""
    number = frame[1 : 1 + _NUMBER_BYTES]
    link = frame[_HEAD_BYTES - DIGEST_BYTES : _HEAD_BYTES]
    return number == seq.to_bytes(_NUMBER_BYTES, "big") or link == before.digest != b""


def follows(record: Record, before: Seal) -> bool:
    """Whether a record was written directly after `before`, by the same leader or by a claim."""
    seq, epoch, _ = record.seal
    return seq > before.seq and record.before == before.digest and epoch in (before.epoch, seq)


def claim_data(claim: Claim) -> bytes:
    """A claim as JSON, without a MAC."""
    fields = msgspec.to_builtins(claim)
    del fields["mac"]
    if not claim.base:
        del fields["base"]
    return msgspec.json.encode(fields)


def claim_of(data: bytes) -> Claim:
    """Read a claim. Raises Damaged."""
    return _decoded(data, Claim)


def signed(data: bytes, seq: int, key: str) -> bytes:
    """A claim for the place `seq`, with its MAC."""
    return msgspec.json.encode({**_decoded(data, Fields), "mac": _mac(data, seq, key)})


def is_signed(data: bytes, seq: int, keys: Sequence[str]) -> bool:
    """Whether the claim at `seq` has a MAC by one of the keys, also with fields of a later version. Raises
    Damaged."""
    fields = _decoded(data, Fields)
    mac = str(fields.pop("mac", ""))
    body = msgspec.json.encode(fields)
    return any(hmac.compare_digest(mac.encode(), _mac(body, seq, key).encode()) for key in keys)


def _mac(data: bytes, seq: int, key: str) -> str:
    signed_bytes = b"fasti claim" + seq.to_bytes(_NUMBER_BYTES, "big") + data
    return hmac.digest(key.encode(), signed_bytes, "sha256").hex()


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Damaged(f"a claim of the log cannot be read: {error}") from error


def _head_of(frame: bytes) -> tuple[int, int, bytes]:
    """Seq, epoch and digest of the record before, as the frame says."""
    at = 1 + _NUMBER_BYTES
    seq, epoch = int.from_bytes(frame[1:at], "big"), int.from_bytes(frame[at : at + _NUMBER_BYTES], "big")
    return seq, epoch, frame[_HEAD_BYTES - DIGEST_BYTES : _HEAD_BYTES]


def _digest(body: bytes | memoryview) -> bytes:
    return hashlib.sha256(body).digest()[:DIGEST_BYTES]
