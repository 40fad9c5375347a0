"""A lease as text: `lease_id`, opaque to who has it, enough to find what was leased.

    version  1 byte                       number    7   of the lease (server/delivery/settling/leases.py)
    shard    4   signed, -1: not stored   position  12  of the row that was leased
    text     the rest: `$share/group/filter`

in base64url without padding. What is before the text fills whole characters, so that the many leases of a
call share their end, which is made and read once. While the lease runs the number finds it at once, and no
other lease of the same message. The position finds the message, whatever has become of it. Version 1 had a
packet id of 4 bytes in its place: such a lease can be acked, and is gone for all else. What was done with
when it was given still has an id of that version, with packet id 0.

It is no secret and no proof. Who may lease of the group may ack what is leased of it.
"""

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error, a2b_base64
from typing import NamedTuple

from timeline.position import Position

from ..delivery.settling.leases import NUMBER_MIN

_VERSION = 2
_HEAD = struct.Struct(">Qi12s")
_HEAD_CHARS = _HEAD.size // 3 * 4
_FIRST_HEAD = struct.Struct(">BIi12s")
_FIRST_CHARS = _FIRST_HEAD.size // 3 * 4
_FIRST_BEGINS = "AQ"
"""The first byte is 1. The second character has four bits of the packet id, which are 0."""
_NUMBER_BITS = 56
_STANDARD = bytes.maketrans(b"-_+/", b"+/**")
"""To the alphabet that `a2b_base64` reads; what is only of that becomes no character of it."""
Shares = dict[str, str]
"""The text of the leases of one call, by how they end. Empty at first."""


class BadLeaseId(ValueError):
    """It is not one of this server's."""


class LeaseId(NamedTuple):
    """What was leased. `text`: as it is subscribed to, or what somebody has made up. `number`: below
    NUMBER_MIN the packet id of version 1, 0: done with when it was given."""

    text: str
    number: int
    position: Position
    shard: int


def lease_text(lease: LeaseId) -> str:
    return lease_head(lease.number, lease.position, lease.shard) + lease_tail(lease.text)


def lease_head(number: int, position: Position, shard: int) -> str:
    """What is its own: with `lease_tail` it is the `lease_text`."""
    place = position.to_bytes(12, "big")
    if number < NUMBER_MIN:
        return urlsafe_b64encode(_FIRST_HEAD.pack(1, number, shard, place)).decode()
    return urlsafe_b64encode(_HEAD.pack(_VERSION << _NUMBER_BITS | number, shard, place)).decode()


def lease_tail(text: str) -> str:
    """What all leases of a group end with."""
    return urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def parse_lease(text: str, shares: Shares) -> LeaseId:
    """`shares`: of the leases that have been read with it. Raises BadLeaseId."""
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
    """Raises UnicodeError, binascii.Error."""
    data = urlsafe_b64decode(tail + b"=" * (-len(tail) % 4))
    # What is no base64 is passed over by the decoder: only what comes back as it was is one.
    if urlsafe_b64encode(data).rstrip(b"=") != tail:
        raise Error
    return data.decode()
