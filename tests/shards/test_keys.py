"""Key bytes: what sorts on the timeline sorts on disk."""

from hypothesis import given
from hypothesis import strategies as st

from shards import keys
from timeline.position import MessageId, Position, at_of, position
from timeline.slices import Home, Shard


def numbers(bits: int) -> st.SearchStrategy[int]:
    """Large ones too: of a wide range hypothesis takes mostly the first few."""
    return st.one_of(st.integers(0, (1 << bits) - 1), st.integers(1 << bits - 1, (1 << bits) - 1))


positions = st.builds(position, numbers(48), numbers(48))
homes = st.builds(Home, numbers(48), st.integers(0, 0xFFFE))


@given(positions, positions)
def test_positions_sort_as_bytes(one: Position, two: Position) -> None:
    assert (keys.place(one) < keys.place(two)) == (one < two)
    assert keys.place_of(keys.place(one)) == one


@given(homes, st.integers(0, 0xFFFD), positions)
def test_a_message_key_holds_all_of_it(home: Home, number: int, place: Position) -> None:
    key = Shard(home, number).prefix + keys.place(place)
    assert len(key) == 22 == keys.MESSAGE_KEY_BYTES
    assert keys.place_of(key) == place
    assert keys.shard_of(key) == (home, number)
    assert keys.slice_of(key) == home
    assert int.from_bytes(key[keys.AT_BYTES], "big") == at_of(place)
    start, end = keys.under(keys.slice_key(home))
    assert start <= key < end
    assert start == keys.slice_key(home)


@given(homes, homes, st.integers(0, 0xFFFF))
def test_a_slice_range_holds_no_other_slice(one: Home, two: Home, number: int) -> None:
    start, end = keys.under(keys.slice_key(one))
    key = Shard(two, number).prefix + bytes(12)
    assert (start <= key < end) == (one == two)


@given(homes, st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 0xFFFD))
def test_ranges_end_right_before_their_neighbours(home: Home, slices: int, shards: int, number: int) -> None:
    other = Home(home.start_ms, max(0, home.generation + slices))
    key = Shard(other, number).prefix + bytes(12)
    start, end = keys.under(keys.slice_key(home))
    assert (start <= key < end) == (home == other)
    prefix = Shard(home, number).prefix
    beside = Shard(home, max(0, number + shards)).prefix
    start, end = keys.under(prefix)
    assert (start <= beside + b"\xff" * 12 < end) == (prefix == beside)


@given(st.text("ab\x01\x7f", min_size=1, max_size=3), st.text("ab\x01\x7f", min_size=1, max_size=3))
def test_the_range_of_a_client_holds_its_rows_only(one: str, two: str) -> None:
    start, end = keys.received_range(one)
    for packet_id in (1, 255, 256, 65_535):
        assert (start <= keys.received(two, packet_id) < end) == (one == two)


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 100), st.integers(0, (1 << 48) - 1))
def test_a_span_is_of_whole_milliseconds(start_ms: int, more_ms: int, at_ms: int, seq: int) -> None:
    prefix = Shard(Home(5, 0), 3).prefix
    start, end = keys.span_range(prefix, start_ms, start_ms + more_ms)
    key = prefix + keys.place(position(at_ms, seq))
    assert (start <= key < end) == (start_ms <= at_ms < start_ms + more_ms)


@given(st.integers(0, (1 << 128) - 1))
def test_message_ids(message: int) -> None:
    assert keys.message_of(keys.message(MessageId(message))) == message


def test_nothing_is_above_last() -> None:
    top = Shard(Home((1 << 48) - 1, 0xFFFF), 0xFFFF).prefix + keys.place(
        position((1 << 48) - 1, (1 << 48) - 1)
    )
    assert top < keys.LAST
    assert keys.message(MessageId((1 << 128) - 1)) < keys.LAST


def test_the_bytes_of_small_keys() -> None:
    assert keys.structure(258) == b"\x01\x02"
    assert keys.retained_at(position(1, 2)) == b"\xff" + bytes(5) + b"\x01" + bytes(5) + b"\x02"
    assert keys.received("c", 258) == b"c\0\x01\x02"
