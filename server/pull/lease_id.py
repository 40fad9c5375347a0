"""A lease as text: `lease_id`, opaque to who has it, enough to find what was leased.

    version  1 byte                       packet id  2   of the delivery to the group's seat (seat.py)
    shard    4   signed, -1: not stored   position  12   of the row that was leased
    text     the rest: `$share/group/filter`

in base64url without padding. While the server runs the packet id finds the delivery at once. After a restart
it means nothing: then the position finds the message, whatever has become of it.

It is no secret and no proof. Who may lease of the group may ack what is leased of it.
"""

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from typing import NamedTuple

from timeline.position import Position

_VERSION = 1
_HEAD = struct.Struct(">BHi12s")


class BadLeaseId(ValueError):
    """It is not one of this server's."""


class LeaseId(NamedTuple):
    """What was leased. `text`: as it is subscribed to, or what somebody has made up.
    given."""

    text: str
    packet_id: int
    position: Position
    shard: int


def lease_text(lease: LeaseId) -> str:
    head = _HEAD.pack(_VERSION, lease.packet_id, lease.shard, lease.position.to_bytes(12, "big"))
    return urlsafe_b64encode(head + lease.text.encode()).rstrip(b"=").decode()


def parse_lease(text: str) -> LeaseId:
    """Raises BadLeaseId."""
    try:
        raw = text.encode("ascii")
        data = urlsafe_b64decode(raw + b"=" * (-len(raw) % 4))
        version, packet_id, shard, place = _HEAD.unpack_from(data)
        share = data[_HEAD.size :].decode()
    except (UnicodeError, Error, struct.error):
        raise BadLeaseId("is not a lease_id") from None
    # What is no base64 is passed over by the decoder: only what comes back as it was is one.
    if version != _VERSION or urlsafe_b64encode(data).rstrip(b"=") != raw:
        raise BadLeaseId("is not a lease_id")
    return LeaseId(share, packet_id, Position(int.from_bytes(place, "big")), shard)
