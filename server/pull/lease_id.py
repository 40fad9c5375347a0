"""Lease ids: a lease as opaque text that contains all that is needed to find it.

    version  1 byte, and 2 of zero        number    8   of the lease (server/delivery/settling/leases.py)
    shard    4   signed, -1: not stored   position  12  of the row that was leased
    text     the rest: `$share/group/filter`

in base64url without padding. The part before the text fills whole characters, so that the leases of one call
share their end, which is encoded and decoded once, and their beginnings are encoded and decoded as one text:
half the time. While the lease runs its number finds it, and no other
lease of the same message. The position finds the message, whatever has happened to it. Version 1 had a packet
id of 4 bytes instead of the number: such a lease can only be acked. No release gave version 2. A message that
was already done when it was given still gets an id of version 1, with packet id 0.

The number is random, so nobody can guess it. An ack by position needs the right to receive the message.
"""

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from timeline.position import Position

from ..delivery.settling.leases import NUMBER_MIN

_VERSION = 3
_HEAD = struct.Struct(">BHQi12s")
_HEAD_CHARS = _HEAD.size // 3 * 4
_FIRST_HEAD = struct.Struct(">BIi12s")
_FIRST_CHARS = _FIRST_HEAD.size // 3 * 4
_FIRST_BEGINS = "AQ"
"""Begins with byte 1. The second character has four bits of the packet id, which are 0."""
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
    return lease_heads([(lease.number, lease.position, lease.shard)])[0] + lease_tail(lease.text)


def lease_heads(leases: Sequence[tuple[int, Position, int]]) -> list[str]:
    """The part of its own of each, by number, position and shard; followed by `lease_tail`."""
    if any(number < NUMBER_MIN for number, _, _ in leases):
        return [_lease_head(*lease) for lease in leases]
    pack = _HEAD.pack
    heads = [pack(_VERSION, 0, number, shard, place.to_bytes(12, "big")) for number, place, shard in leases]
    text = _encoded(b"".join(heads))
    return [text[at : at + _HEAD_CHARS] for at in range(0, len(text), _HEAD_CHARS)]


def _lease_head(number: int, position: Position, shard: int) -> str:
    place = position.to_bytes(12, "big")
    if number < NUMBER_MIN:
        return _encoded(_FIRST_HEAD.pack(1, number, shard, place))
    return _encoded(_HEAD.pack(_VERSION, 0, number, shard, place))


def _encoded(head: bytes) -> str:
    return b2a_base64(head, newline=False).translate(_URL_SAFE).decode()


def lease_tail(text: str) -> str:
    """The end shared by all leases of a group."""
    return urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def parse_leases(texts: Iterable[str]) -> list[LeaseId]:
    """Parse the lease ids of one call. Raises BadLeaseId, which names the first bad one."""
    texts, shares = list(texts), Shares()
    return _parsed_together(texts) or [_parsed(text, shares) for text in texts]


def _parsed_together(texts: Sequence[str]) -> list[LeaseId]:
    """Lease ids, decoded. Empty unless all have version 3 and name one group."""
    tails = {text[_HEAD_CHARS:] for text in texts}
    heads = "".join([text[:_HEAD_CHARS] for text in texts])
    if len(tails) != 1 or len(heads) < len(texts) * _HEAD_CHARS:
        return []
    try:
        share = _share_of(tails.pop().encode("ascii"))
        data = a2b_base64(heads.encode("ascii").translate(_STANDARD), strict_mode=True)
        leases = [
            LeaseId(share, number, Position(int.from_bytes(place, "big")), shard)
            for version, zero, number, shard, place in _HEAD.iter_unpack(data)
            if version == _VERSION and not zero and number >= NUMBER_MIN
        ]
    except (UnicodeError, Error, struct.error):
        return []
    return leases if len(leases) == len(texts) else []


def _parsed(text: str, shares: Shares) -> LeaseId:
    try:
        is_first = text.startswith(_FIRST_BEGINS)
        chars = _FIRST_CHARS if is_first else _HEAD_CHARS
        head = a2b_base64(text[:chars].encode("ascii").translate(_STANDARD), strict_mode=True)
        if is_first:
            (version, number, shard, place), zero = _FIRST_HEAD.unpack(head), 0
        else:
            version, zero, number, shard, place = _HEAD.unpack(head)
        share = shares.get(text[chars:])
        if share is None:
            share = shares[text[chars:]] = _share_of(text[chars:].encode("ascii"))
    except (UnicodeError, Error, struct.error):
        raise BadLeaseId(f"{text[:40]!r} is not a lease_id") from None
    if version != (1 if is_first else _VERSION) or zero or (number < NUMBER_MIN) != is_first:
        raise BadLeaseId(f"{text[:40]!r} is not a lease_id")
    return LeaseId(share, number, Position(int.from_bytes(place, "big")), shard)


def _share_of(tail: bytes) -> str:
    """Decode the shared end. Raises UnicodeError, binascii.Error."""
    data = urlsafe_b64decode(tail + b"=" * (-len(tail) % 4))
    # The decoder skips invalid characters: only a text that encodes back to itself is valid.
    if urlsafe_b64encode(data).rstrip(b"=") != tail:
        raise Error
    return data.decode()
