"""A lease as text: what it names, and that nothing else passes for one."""

from base64 import urlsafe_b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.pull.lease_id import BadLeaseId, LeaseId, Shares, lease_text, parse_lease
from timeline.position import Position

ONE = LeaseId("$share/g/a/#", 7, Position((5 << 48) | 3), 2, 1)


@given(
    st.integers(0, 0xFFFF),
    st.integers(0, (1 << 96) - 1),
    st.integers(-1, (1 << 31) - 1),
    st.integers(0, (1 << 24) - 1),
    st.sampled_from(["$share/g/a", "$share/workers/+/é/#", "$share/g/" + "x" * 60_000]),
)
def test_there_and_back(packet_id: int, place: int, shard: int, number: int, text: str) -> None:
    """Number 0 is a lease of version 1, which release 0.1.0 gave."""
    lease = LeaseId(text, packet_id, Position(place), shard, number)
    told = lease_text(lease)
    assert parse_lease(told, {}) == lease
    assert told.replace("-", "").replace("_", "").isalnum()


def test_every_truncation_is_none() -> None:
    told = lease_text(LeaseId("$share/g/a", *ONE[1:]))
    for count in range(len(told)):
        try:
            lease = parse_lease(told[:count], {})
        except BadLeaseId:
            continue
        assert lease_text(lease) == told[:count]
        assert lease.text != "$share/g/a"


def test_every_corruption_is_none_or_another() -> None:
    told = lease_text(ONE)
    for index in range(len(told)):
        for put in "Aa0-_=+/ é\n\0":
            text = told[:index] + put + told[index + 1 :]
            with suppress(BadLeaseId):
                assert lease_text(parse_lease(text, {})) == text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1",
        b"\2" + bytes(23) + b"$share/g/a",
        b"\3" + bytes(20) + b"\0\0\1$share/g/a",
        b"\1" + bytes(20) + b"\xff",
    ],
)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(BadLeaseId):
        parse_lease(urlsafe_b64encode(data).rstrip(b"=").decode(), {})


def test_leases_of_one_call_share_how_they_end() -> None:
    leases = [ONE._replace(packet_id=packet_id, text=text) for packet_id in (1, 2) for text in ("a", "b/ü")]
    shares: Shares = {}
    assert [parse_lease(lease_text(lease), shares) for lease in leases] == leases
    assert sorted(shares.values()) == ["a", "b/ü"]
