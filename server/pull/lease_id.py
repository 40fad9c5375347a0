"""A lease as text: `lease_id`, opaque to who has it, enough to find what was leased.

    version  1 byte                       packet id  4   of the delivery to the group's seat (seat.py)
    shard    4   signed, -1: not stored   position  12   of the row that was leased
    number   3   which time the group has lent the message (`Loan.number`)
    text     the rest: `$share/group/filter`

in base64url without padding. What is before the text fills whole characters, so that the many leases of a
call share their end, which is made and read once. While the server runs the packet id finds the delivery at
once. After a restart it means nothing: then the position finds the message, whatever has become of it. The
number tells this lease from an earlier one of the same message. Version 1 had none: such a lease can be
acked, and is gone for all else.

It is no secret and no proof. Who may lease of the group may ack what is leased of it.
"""

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error, a2b_base64
from typing import NamedTuple

from timeline.position import Position

_VERSION = 2
_HEAD = struct.Struct(">BIi12s3s")
_HEAD_CHARS = _HEAD.size // 3 * 4
_FIRST_HEAD = struct.Struct(">BIi12s")
_FIRST_CHARS = _FIRST_HEAD.size // 3 * 4
_FIRST_BEGINS = "AQ"
"""The first byte is 1. The second character has four bits of the packet id, which are 0."""
_NUMBER_MAX = (1 << 24) - 1
_STANDARD = bytes.maketrans(b"-_+/", b"+/**")
"""To the alphabet that `a2b_base64` reads; what is only of that becomes no character of it."""
Shares = dict[str, str]
"""The text of the leases of one call, by how they end. Empty at first."""


class BadLeaseId(ValueError):
    """It is not one of this server's."""


class LeaseId(NamedTuple):
    """What was leased. `text`: as it is subscribed to, or what somebody has made up. `number`: 0: unknown."""

    text: str
    packet_id: int
    position: Position
    shard: int
    number: int


def lease_text(lease: LeaseId) -> str:
    head = lease_head(lease.packet_id, lease.position, lease.shard, lease.number)
    return head + lease_tail(lease.text)


def lease_head(packet_id: int, position: Position, shard: int, number: int) -> str:
    """What is its own: with `lease_tail` it is the `lease_text`. `number` from 1 on."""
    place = position.to_bytes(12, "big")
    if not number:
        return urlsafe_b64encode(_FIRST_HEAD.pack(1, packet_id, shard, place)).decode()
    count = min(number, _NUMBER_MAX).to_bytes(3, "big")
    return urlsafe_b64encode(_HEAD.pack(_VERSION, packet_id, shard, place, count)).decode()


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
            version, packet_id, shard, place = _FIRST_HEAD.unpack(head)
            number = 0
        else:
            version, packet_id, shard, place, count = _HEAD.unpack(head)
            number = int.from_bytes(count, "big")
        share = shares.get(text[chars:])
        if share is None:
            share = shares[text[chars:]] = _share_of(text[chars:].encode("ascii"))
    except (UnicodeError, Error, struct.error):
        raise BadLeaseId("is not a lease_id") from None
    if version != _VERSION - is_first or number < 1 - is_first:
        raise BadLeaseId("is not a lease_id")
    return LeaseId(share, packet_id, Position(int.from_bytes(place, "big")), shard, number)


def _share_of(tail: bytes) -> str:
    """Raises UnicodeError, binascii.Error."""
    data = urlsafe_b64decode(tail + b"=" * (-len(tail) % 4))
    # What is no base64 is passed over by the decoder: only what comes back as it was is one.
    if urlsafe_b64encode(data).rstrip(b"=") != tail:
        raise Error
    return data.decode()
