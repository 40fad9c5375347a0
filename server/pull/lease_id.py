"""Lease ids: a lease as opaque text that contains all that is needed to find it.

    version  1 byte                       number    7   of the lease (server/delivery/settling/leases.py)
    shard    4   signed, -1: not stored   position  12  of the row that was leased
    text     the rest: `$share/group/filter`

in base64url without padding. The part before the text fills whole characters, so that the leases of one call
share their end, which is encoded and decoded once. While the lease runs its number finds it, and no other
lease of the same message. The position finds the message, whatever has happened to it. Version 1 had a packet
id of 4 bytes instead of the number: such a lease can only be acked. A message that was already done when it
was given still gets an id of version 1, with packet id 0.

It is no secret and no proof: a key that may lease from the group may ack all its leases.
"""

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error, a2b_base64, b2a_base64
from typing import NamedTuple

from timeline.position import Position

from ..delivery.settling.leases import NUMBER_MIN

_VERSION = 2
_HEAD = struct.Struct(">Qi12s")
_HEAD_CHARS = _HEAD.size // 3 * 4
_FIRST_HEAD = struct.Struct(">BIi12s")
_FIRST_CHARS = _FIRST_HEAD.size // 3 * 4
_FIRST_BEGINS = "AQ"
"""Begins with byte 1. The second character has four bits of the packet id, which are 0."""
_NUMBER_BITS = 56
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_STANDARD = bytes.maketrans(b"-_+/", b"+/**")
"""To the alphabet of `a2b_base64`; characters only in that one become invalid."""
Shares = dict[str, str]
"""Texts of the leases of one call, by their ends. Empty at first."""


class BadLeaseId(ValueError):
    """Not a lease id of this server."""


class LeaseId(NamedTuple):
    """A parsed lease id. `text`: the shared subscription, or anything a client made up. `number`: below
    NUMBER_MIN the packet id of version 1; 0: done when it was given."""

    text: str
    number: int
    position: Position
    shard: int


def lease_text(lease: LeaseId) -> str:
    return lease_head(lease.number, lease.position, lease.shard) + lease_tail(lease.text)


def lease_head(number: int, position: Position, shard: int) -> str:
    """The part of its own; followed by `lease_tail`."""
    place = position.to_bytes(12, "big")
    if number < NUMBER_MIN:
        head = _FIRST_HEAD.pack(1, number, shard, place)
    else:
        head = _HEAD.pack(_VERSION << _NUMBER_BITS | number, shard, place)
    return b2a_base64(head, newline=False).translate(_URL_SAFE).decode()


def lease_tail(text: str) -> str:
    """The end shared by all leases of a group."""
    return urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def parse_lease(text: str, shares: Shares) -> LeaseId:
    """Parse a lease id. `shares`: a cache for the leases of one call. Raises BadLeaseId."""
    try:
        is_first = text.startswith(_FIRST_BEGINS)
        chars = _FIRST_CHARS if is_first else _HEAD_CHARS
        head = a2b_base64(text[:chars].encode("ascii").translate(_STANDARD), strict_mode=True)
        if is_first:
            version, number, shard, place = _FIRST_HEAD.unpack(head)
        else:
            first, shard, place = _HEAD.unpack(head)
            version, number = first >> _NUMBER_BITS, first & ((1 << _NUMBER_BITS) - 1)
        share = shares.get(text[chars:])
        if share is None:
            share = shares[text[chars:]] = _share_of(text[chars:].encode("ascii"))
    except (UnicodeError, Error, struct.error):
        raise BadLeaseId("is not a lease_id") from None
    if version != _VERSION - is_first or (number < NUMBER_MIN) != is_first:
        raise BadLeaseId("is not a lease_id")
    return LeaseId(share, number, Position(int.from_bytes(place, "big")), shard)


def _share_of(tail: bytes) -> str:
    """Decode the shared end. Raises UnicodeError, binascii.Error."""
    data = urlsafe_b64decode(tail + b"=" * (-len(tail) % 4))
    # The decoder skips invalid characters: only a text that encodes back to itself is valid.
    if urlsafe_b64encode(data).rstrip(b"=") != tail:
        raise Error
    return data.decode()
