"""What dispatch notes for an endpoint that is behind."""

from hypothesis import given
from hypothesis import strategies as st

from server.delivery.ahead import PLACES_MAX, Ahead
from timeline.position import END, Position

PLACES = st.lists(st.integers(1, 1 << 95), unique=True, max_size=2 * PLACES_MAX).map(sorted)


@given(PLACES, st.integers(0, 1 << 95))
def test_what_is_noted_is_told_in_order_up_to_where_it_is_sure(places: list[int], read: int) -> None:
    ahead = Ahead()
    for number, place in enumerate(places):
        ahead.note(Position(place), number)
    noted = [(place, number) for number, place in enumerate(places[:PLACES_MAX])]
    assert list(ahead.after(Position(read))) == [one for one in noted if one[0] > read]
    assert len(ahead) == sum(one[0] > read for one in noted)
    more = places[PLACES_MAX : PLACES_MAX + 1]
    assert ahead.sure == (more[0] - 1 if more else END)
    ahead.note(Position((1 << 95) + 1), 7)
    assert [number for _, number in ahead.after(Position(1 << 95))] == (
        [] if len(places) >= PLACES_MAX else [7]
    )
