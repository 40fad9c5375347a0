"""What dispatch notes for an endpoint that is behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.delivery import ahead as ahead_
from server.delivery.ahead import EACH_MAX, PLACES_MAX, Ahead, SharedNotes
from timeline.position import END, START, Position

PLACES = st.lists(st.integers(1, 1 << 95), unique=True, max_size=2 * PLACES_MAX).map(sorted)


def begun(shared: SharedNotes) -> Ahead:
    made = Ahead(shared)
    made.begin()
    return made


def noted(ahead: Ahead, places: list[int]) -> list[int]:
    for place in places:
        ahead.note(Position(place), 0)
    return [place for place, _ in ahead.after(START)]


@given(PLACES, st.integers(0, 1 << 95), st.integers(0, PLACES_MAX))
def test_what_is_noted_is_told_in_order_up_to_where_it_is_sure(
    places: list[int], read: int, more: int
) -> None:
    shared = SharedNotes()
    shared.taken = ahead_.SHARED_MAX - more
    ahead = begun(shared)
    for number, place in enumerate(places):
        ahead.note(Position(place), number)
    most = PLACES_MAX + more
    kept = [(place, number) for number, place in enumerate(places[:most])]
    assert list(ahead.after(Position(read))) == [one for one in kept if one[0] > read]
    assert len(ahead) == sum(one[0] > read for one in kept)
    assert ahead.sure == (places[most] - 1 if len(places) > most else END)
    assert shared.taken == ahead_.SHARED_MAX - more + max(0, len(ahead) - PLACES_MAX)
    ahead.note(Position((1 << 95) + 1), 7)
    assert [number for _, number in ahead.after(Position(1 << 95))] == ([] if len(places) > most else [7])
    ahead.forget()
    assert (len(ahead), ahead.sure, shared.taken) == (0, START, ahead_.SHARED_MAX - more)


def test_nothing_is_known_at_first_nor_noted_then() -> None:
    ahead = Ahead(SharedNotes())
    assert ahead.sure == START
    assert noted(ahead, [1, 2]) == []


def test_each_has_its_own_notes_when_those_for_all_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_, "SHARED_MAX", 50)
    shared = SharedNotes()
    places = list(range(1, 2 * PLACES_MAX))
    first, second = begun(shared), begun(shared)
    assert len(noted(first, places)) == PLACES_MAX + 50
    assert len(noted(second, places)) == PLACES_MAX
    assert second.sure == PLACES_MAX
    first.begin()
    second.begin()
    assert len(noted(second, places)) == PLACES_MAX + 50


def test_one_notes_no_more_than_its_most() -> None:
    ahead = begun(SharedNotes())
    assert len(noted(ahead, list(range(1, EACH_MAX + 10)))) == EACH_MAX
    assert ahead.sure == EACH_MAX
