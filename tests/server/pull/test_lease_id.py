"""A lease as text: what it names, and that nothing else passes for one."""

from base64 import urlsafe_b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.delivery.settling.leases import NUMBER_MIN
from server.pull.lease_id import BadLeaseId, LeaseId, Shares, lease_text, parse_lease
from timeline.position import Position

ONE = LeaseId("$share/g/a/#", NUMBER_MIN + 7, Position((5 << 48) | 3), 2)
FIRST = ONE._replace(number=7)
"""Of version 1, which release 0.1.0 gave."""


@given(
    st.integers(0, 0xFFFF) | st.integers(NUMBER_MIN, (1 << 56) - 1),
    st.integers(0, (1 << 96) - 1),
    st.integers(-1, (1 << 31) - 1),
    st.sampled_from(["$share/g/a", "$share/workers/+/é/#", "$share/g/" + "x" * 60_000]),
)
def test_there_and_back(number: int, place: int, shard: int, text: str) -> None:
    lease = LeaseId(text, number, Position(place), shard)
    told = lease_text(lease)
    assert parse_lease(told, {}) == lease
    assert told.replace("-", "").replace("_", "").isalnum()


def test_a_lease_of_the_first_release_is_read() -> None:
    told = "AQAAAAcAAAACAAAAAAAFAAAAAAADJHNoYXJlL2cvYS8j"
    assert (lease_text(FIRST), parse_lease(told, {})) == (told, FIRST)


@pytest.mark.parametrize("one", [ONE, FIRST])
def test_every_truncation_is_none(one: LeaseId) -> None:
    told = lease_text(LeaseId("$share/g/a", *one[1:]))
    for count in range(len(told)):
        try:
            lease = parse_lease(told[:count], {})
        except BadLeaseId:
            continue
        assert lease_text(lease) == told[:count]
        assert lease.text != "$share/g/a"


@pytest.mark.parametrize("one", [ONE, FIRST])
def test_every_corruption_is_none_or_another(one: LeaseId) -> None:
    told = lease_text(one)
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
        b"\3\0\1" + bytes(21) + b"$share/g/a",
        b"\1" + bytes(20) + b"\xff",
    ],
)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(BadLeaseId):
        parse_lease(urlsafe_b64encode(data).rstrip(b"=").decode(), {})


def test_leases_of_one_call_share_how_they_end() -> None:
    numbers = (NUMBER_MIN + 1, NUMBER_MIN + 2)
    leases = [ONE._replace(number=number, text=text) for number in numbers for text in ("a", "b/ü")]
    shares: Shares = {}
    assert [parse_lease(lease_text(lease), shares) for lease in leases] == leases
    assert sorted(shares.values()) == ["a", "b/ü"]
