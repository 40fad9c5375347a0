"""A frame: every flipped bit, every cut, and what follows what."""

import pytest

from shards.log.errors import Damaged
from shards.log.record import (
    EXTRA_BYTES,
    ORIGIN,
    Claim,
    Seal,
    claim_data,
    claim_of,
    digest_in,
    follows,
    frame_of,
    opened,
)

CLAIMED = frame_of(1, 1, ORIGIN, claim_data(Claim("a", "http://a", "00")))
FIRST = Seal(1, 1, digest_in(CLAIMED))
FRAME = frame_of(2, 1, FIRST, b"data")


def test_a_frame_is_what_the_page_says() -> None:
    assert FRAME[:17] == bytes.fromhex("0100000000000000020000000000000001")
    assert FRAME[17:33] == CLAIMED[-16:]
    assert FRAME[33:37] == b"data"
    assert len(FRAME) == EXTRA_BYTES + 4


def test_it_is_opened_as_it_was_sealed() -> None:
    record = opened(FRAME, 2)
    assert record == (Seal(2, 1, digest_in(FRAME)), FIRST.digest, b"data")
    assert follows(record, FIRST)
    assert follows(opened(CLAIMED, 1), ORIGIN)


def test_every_flipped_bit_is_damage() -> None:
    for bit in range(8 * len(FRAME)):
        flipped = bytearray(FRAME)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            opened(bytes(flipped), 2)


def test_every_cut_is_damage() -> None:
    for size in range(len(FRAME)):
        with pytest.raises(Damaged):
            opened(FRAME[:size], 2)
    with pytest.raises(Damaged):
        opened(FRAME + b"\0", 2)


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
