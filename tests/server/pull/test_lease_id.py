"""A lease as text: what it names, and that nothing else passes for one."""

from base64 import urlsafe_b64encode
from contextlib import suppress
from re import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.delivery.settling.leases import NUMBER_MIN
from server.pull.lease_id import BadLeaseId, LeaseId, lease_heads, lease_text, parse_leases
from timeline.position import Position

ONE = LeaseId("$share/g/a/#", NUMBER_MIN + 7, Position((5 << 48) | 3), 2)
FIRST = ONE._replace(number=7)
"""Of version 1, which release 0.1.0 gave."""


def _parsed(text: str) -> LeaseId:
    """The lease, which is the same among others."""
    try:
        (lease,) = parse_leases([text])
    except BadLeaseId:
        with pytest.raises(BadLeaseId, match="is not a lease_id"):
            parse_leases([lease_text(ONE), text])
        raise
    assert parse_leases([lease_text(ONE), text, lease_text(FIRST)]) == [ONE, lease, FIRST]
    return lease


@given(
    st.integers(0, 0xFFFF) | st.integers(NUMBER_MIN, (1 << 56) - 1),
    st.integers(0, (1 << 96) - 1),
    st.integers(-1, (1 << 31) - 1),
    st.sampled_from(["$share/g/a", "$share/workers/+/é/#", "$share/g/" + "x" * 60_000]),
)
def test_there_and_back(number: int, place: int, shard: int, text: str) -> None:
    lease = LeaseId(text, number, Position(place), shard)
    told = lease_text(lease)
    assert _parsed(told) == lease
    assert told.replace("-", "").replace("_", "").isalnum()


def test_a_lease_of_the_first_release_is_read() -> None:
    told = "AQAAAAcAAAACAAAAAAAFAAAAAAADJHNoYXJlL2cvYS8j"
    assert (lease_text(FIRST), _parsed(told)) == (told, FIRST)


@pytest.mark.parametrize("one", [ONE, FIRST])
def test_every_truncation_is_none(one: LeaseId) -> None:
    told = lease_text(LeaseId("$share/g/a", *one[1:]))
    for count in range(len(told)):
        try:
            lease = _parsed(told[:count])
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
                assert lease_text(_parsed(text)) == text


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
        _parsed(urlsafe_b64encode(data).rstrip(b"=").decode())


@pytest.mark.parametrize("texts", [["$share/g/a"], ["$share/g/a", "$share/g/é/#"]])
@pytest.mark.parametrize("lowest", [1, NUMBER_MIN + 1])
def test_leases_of_one_call_are_those_of_one_each(texts: list[str], lowest: int) -> None:
    numbers = (lowest, NUMBER_MIN + 2, NUMBER_MIN + 3)
    leases = [ONE._replace(number=number, text=text) for number in numbers for text in texts]
    told = [lease_text(lease) for lease in leases]
    assert parse_leases(told) == leases
    heads = lease_heads([(lease.number, lease.position, lease.shard) for lease in leases])
    assert all(map(str.startswith, told, heads))
    assert not parse_leases([])


@given(st.integers(0, 2), st.integers(0, 60), st.characters(max_codepoint=300))
def test_a_bad_one_among_others_is_named(which: int, at: int, put: str) -> None:
    told = [lease_text(ONE._replace(number=NUMBER_MIN + number)) for number in range(3)]
    bad = told[which] = told[which][:at] + put + told[which][at + 1 :]
    try:
        _parsed(bad)
    except BadLeaseId:
        with pytest.raises(BadLeaseId, match=f"^{escape(repr(bad[:40]))} is not a lease_id$"):
            parse_leases(told)
    else:
        assert [lease_text(lease) for lease in parse_leases(told)] == told
