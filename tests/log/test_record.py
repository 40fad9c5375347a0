"""A frame: every flipped bit, every cut, and what follows what."""

import hashlib

import msgspec
import pytest

from shards.log.errors import Damaged, UnknownVersion
from shards.log.record import (
    AHEAD,
    DIGEST_BYTES,
    EXTRA_BYTES,
    ORIGIN,
    PART,
    VERSION,
    WHOLE,
    Claim,
    Seal,
    claim_data,
    claim_of,
    digest_in,
    follows,
    frame_of,
    is_of,
    is_signed,
    opened,
    signed,
)

pytestmark = pytest.mark.short

CLAIM = claim_data(Claim("a", "http://a", "00"))
CLAIMED = frame_of(1, 1, ORIGIN, CLAIM)
FIRST = Seal(1, 1, digest_in(CLAIMED))
FRAME = frame_of(2, 1, FIRST, b"data")
SECOND = opened(frame_of(2, 2, FIRST, signed(CLAIM, 2, "key")), 2).seal
LATER = frame_of(3, 2, SECOND, b"data")


def test_a_frame_is_what_the_page_says() -> None:
    assert FRAME[:17] == bytes.fromhex("0300000000000000020000000000000001")
    assert FRAME[17:33] == CLAIMED[-16:]
    assert FRAME[33:38] == bytes([WHOLE]) + b"data"
    assert len(FRAME) == EXTRA_BYTES + 4 == 54
    assert frame_of(3, 2, SECOND, b"data", is_part=True)[33:38] == bytes([PART]) + b"data"
    ahead = frame_of(3, 2, SECOND, b"data", is_part=True, is_ahead=True)
    assert ahead[33:38] == bytes([PART | AHEAD]) + b"data"
    assert opened(ahead, 3).is_ahead


def test_it_is_opened_as_it_was_sealed() -> None:
    record = opened(FRAME, 2)
    assert record == (Seal(2, 1, digest_in(FRAME)), FIRST.digest, b"data", False, False)
    assert follows(record, FIRST)
    assert follows(opened(CLAIMED, 1), ORIGIN)
    assert follows(opened(LATER, 3), SECOND)
    assert opened(frame_of(3, 2, SECOND, b"", is_part=True), 3).is_part


@pytest.mark.parametrize("version", [1, 2, VERSION + 1])
def test_another_version_is_named(version: int) -> None:
    body = bytes((version,)) + FRAME[1:-DIGEST_BYTES]
    with pytest.raises(UnknownVersion, match=f"has version {version}, this node reads {VERSION}"):
        opened(body + hashlib.sha256(body).digest()[:DIGEST_BYTES], 2)


def test_a_claim_is_signed_for_its_place_by_a_key() -> None:
    data = signed(CLAIM, 7, "new")
    claim = claim_of(data)
    assert (claim.node, claim.url, claim.nonce) == ("a", "http://a", "00")
    assert is_signed(data, 7, ("new",))
    assert is_signed(data, 7, ("newer", "new"))
    assert not is_signed(data, 7, ("newer",))
    assert not is_signed(data, 8, ("new",))
    assert not is_signed(CLAIM, 7, ("new",))
    assert not is_signed(data.replace(b"http://a", b"http://b"), 7, ("new",))
    later = msgspec.json.encode({**msgspec.json.decode(CLAIM), "timeline": "of a later version"})
    assert is_signed(signed(later, 7, "new"), 7, ("new",))


def test_what_names_its_place_is_of_it() -> None:
    flipped = FRAME[:-1] + bytes([FRAME[-1] ^ 1])
    assert is_of(flipped, 2, FIRST)
    assert is_of(flipped, 3, FIRST), "by its link"
    assert is_of(flipped, 2, SECOND), "by its number"
    assert not is_of(flipped, 3, SECOND)
    assert not is_of(flipped, 3, Seal(2, 1)), "an unknown link is nobody's"
    for stray in (b"", b"hello", b"x2", bytes(60)):
        assert not is_of(stray, 2, FIRST)


@pytest.mark.parametrize(("frame", "seq"), [(FRAME, 2), (LATER, 3)], ids=("first", "later"))
def test_every_flipped_bit_is_damage(frame: bytes, seq: int) -> None:
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            opened(bytes(flipped), seq)
        assert is_of(bytes(flipped), seq, FIRST if seq == 2 else SECOND), "it is not taken for a stray"


@pytest.mark.parametrize(("frame", "seq"), [(FRAME, 2), (LATER, 3)], ids=("first", "later"))
def test_every_cut_is_damage(frame: bytes, seq: int) -> None:
    for size in range(len(frame)):
        with pytest.raises(Damaged):
            opened(frame[:size], seq)
    with pytest.raises(Damaged):
        opened(frame + b"\0", seq)


def test_at_another_place_it_is_damage() -> None:
    with pytest.raises(Damaged, match="record 2 of the log stands at 3"):
        opened(FRAME, 3)


@pytest.mark.parametrize(
    "before",
    [FIRST._replace(seq=2), FIRST._replace(digest=bytes(16)), FIRST._replace(epoch=3), ORIGIN],
    ids=("place", "digest", "epoch", "origin"),
)
def test_what_was_written_after_another_does_not_follow(before: Seal) -> None:
    assert not follows(opened(FRAME, 2), before)


def test_a_claim_follows_any_epoch() -> None:
    assert follows(opened(frame_of(2, 2, FIRST, b""), 2), FIRST)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"node":"a","url":"b"}'])
def test_a_claim_that_says_nothing_is_damage(data: bytes) -> None:
    with pytest.raises(Damaged):
        claim_of(data)
    assert claim_of(claim_data(Claim("a", "b", "c"))) == Claim("a", "b", "c")
    assert claim_of(claim_data(Claim("a", "b", "c", has_base=True))).has_base
