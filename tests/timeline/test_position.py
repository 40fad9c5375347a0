"""Positions and message ids: one number each, that sorts as it should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.position import (
    AT_MAX,
    END,
    HELD_SHARD,
    POSITION_BYTES,
    SEQ_MAX,
    START,
    BadId,
    MessageId,
    at_of,
    before,
    id_position,
    id_shard,
    id_text,
    is_held,
    message_id,
    parse_id,
    position,
    seq_of,
)

# Large ones too: of a wide range hypothesis takes mostly the first few.
ats = st.one_of(st.integers(0, AT_MAX), st.integers(AT_MAX // 2, AT_MAX))
seqs = st.one_of(st.integers(0, SEQ_MAX), st.integers(SEQ_MAX // 2, SEQ_MAX))
words = st.integers(0, 0xFFFF)


@given(ats, seqs)
def test_a_position_holds_at_and_seq(at_ms: int, seq: int) -> None:
    place = position(at_ms, seq)
    assert (at_of(place), seq_of(place)) == (at_ms, seq)
    assert START <= place <= END


@given(ats, seqs, ats, seqs)
def test_positions_are_compared_whole(at_ms: int, seq: int, at_2: int, seq_2: int) -> None:
    assert (position(at_ms, seq) < position(at_2, seq_2)) == ((at_ms, seq) < (at_2, seq_2))


@given(st.integers(1, AT_MAX), seqs)
def test_before_is_below_the_whole_millisecond(at_ms: int, seq: int) -> None:
    assert before(at_ms) <= position(at_ms, seq)
    assert position(at_ms - 1, seq) < before(at_ms)


@given(ats, seqs, words, words)
def test_an_id_names_its_row(at_ms: int, seq: int, shard: int, node: int) -> None:
    place = position(at_ms, seq)
    message = message_id(place, shard, node)
    assert (id_position(message), id_shard(message), message >> 48 & 0xFFFF) == (place, shard, node)
    text = id_text(message)
    assert len(text) == 32
    assert parse_id(text) == message


def test_the_example_of_the_module() -> None:
    message = message_id(position(0x019AA5D1C400, 42), 3, 0)
    assert id_text(message) == "019aa5d1c4000003000000000000002a"


@given(ats, ats, seqs, seqs, words)
def test_ids_sort_by_time(at_ms: int, at_2: int, seq: int, seq_2: int, shard: int) -> None:
    first, second = (message_id(position(a, s), shard, 0) for a, s in ((at_ms, seq), (at_2, seq_2)))
    if at_ms != at_2:
        assert (id_text(first) < id_text(second)) == (at_ms < at_2)


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "0" * 31 + "g", "A" + "0" * 31, " " + "0" * 31, "-" + "0" * 31, "٠" * 32]
)
def test_anything_else_is_no_id(text: str) -> None:
    with pytest.raises(BadId):
        parse_id(text)


def test_an_id_of_zeros_can_be_read() -> None:
    assert parse_id("0" * 32) == MessageId(0)
    assert parse_id("0123456789abcdef" * 2) == 0x0123456789ABCDEF0123456789ABCDEF


def test_which_ids_are_of_held_messages() -> None:
    place = position(7, 42)
    assert is_held(message_id(place, HELD_SHARD, 0))
    assert not is_held(message_id(place, HELD_SHARD - 1, 0))
    assert id_text(message_id(place, HELD_SHARD, 0))[12:16] == "ffff"


def test_the_ends_of_the_timeline() -> None:
    assert (position(0, 0), position(AT_MAX, SEQ_MAX)) == (START, END)
    assert END + 1 == 1 << 8 * POSITION_BYTES
